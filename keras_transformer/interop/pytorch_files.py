"""Tensors of PyTorch's `.bin` files, read without PyTorch and without running code of the file."""

import collections
import io
import math
import pathlib
import pickle
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from keras_transformer.interop.tensors import StoredTensor

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
_STORAGES: dict[str, Any] = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


def tensors_of_pytorch_file(path: pathlib.Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file that `torch.save` has written, by name.

    The file is a pickle, which could call any function. Here it can only build dictionaries and tensors: every other
    global is rejected by its name.

    Args:
        path: a file of a state dictionary, in the zip format of PyTorch 1.6 or the one before.

    Raises:
        ValueError: if the file is damaged, names another global, or is not a dictionary of tensors.
    """
    try:
        return _read_zip(path) if zipfile.is_zipfile(path) else _read_legacy(path)
    except _REFUSED as error:
        raise ValueError(
            f"`{path}` must be a dictionary of tensors in PyTorch's format. Received: {error or 'a damaged file'}"
        ) from error


class _Storage(NamedTuple):
    """The values of one or more tensors in a file."""

    dtype: np.dtype[Any]
    size: int
    read: Callable[[], bytes]


def _read_zip(path: pathlib.Path) -> dict[str, StoredTensor]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = next((name for name in names if name.endswith("/data.pkl")), None)
        if pickled is None:
            raise pickle.UnpicklingError("a zip file without data.pkl")
        root = pickled.removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise pickle.UnpicklingError("values that are not little-endian")

        def storage(dtype: np.dtype[Any], key: str, count: int) -> _Storage:
            name = f"{root}data/{key}"
            if archive.getinfo(name).file_size != count * dtype.itemsize:
                raise pickle.UnpicklingError(f"{name} of another length than its {count} values")
            return _Storage(dtype, count, lambda: _read_member(path, name))

        return _tensors(_Unpickler(io.BytesIO(archive.read(pickled)), storage).load())


def _read_member(path: pathlib.Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    except zipfile.BadZipFile as error:
        raise ValueError(f"`{path}` must be undamaged. Received: {error}") from error


def _read_legacy(path: pathlib.Path) -> dict[str, StoredTensor]:
    starts: dict[str, int] = {}  # filled when the pickles have been read

    def storage(dtype: np.dtype[Any], key: str, count: int) -> _Storage:
        return _Storage(dtype, count, lambda: _read_part(path, starts[key], count * dtype.itemsize))

    with path.open("rb") as file:
        if _Unpickler(file).load() != _MAGIC_NUMBER or _Unpickler(file).load() != _PROTOCOL_VERSION:
            raise pickle.UnpicklingError("another format")
        if not _Unpickler(file).load().get("little_endian"):
            raise pickle.UnpicklingError("values that are not little-endian")
        unpickler = _Unpickler(file, storage)
        tensors, keys = _tensors(unpickler.load()), _Unpickler(file).load()
        end = file.seek(0, io.SEEK_CUR)
        for key in keys:
            file.seek(end)
            dtype, count = unpickler.storages[key].dtype, unpickler.storages[key].size
            if int.from_bytes(file.read(8), "little") != count:
                raise pickle.UnpicklingError(f"a storage of another length than its {count} values")
            starts[key] = end + 8
            end = starts[key] + count * dtype.itemsize
        if end > path.stat().st_size or starts.keys() != unpickler.storages.keys():
            raise pickle.UnpicklingError("a truncated file")
    return tensors


def _read_part(path: pathlib.Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


class _Unpickler(pickle.Unpickler):
    """An unpickler of dictionaries and tensors.

    Args:
        file: the file to read.
        storage: a function that returns the storage of a dtype, a key and a number of values; None where the pickle
            must not have tensors.
    """

    def __init__(self, file: BinaryIO | io.BytesIO, storage: Callable[..., _Storage] | None = None) -> None:
        super().__init__(file, encoding="utf-8")
        self._storage = storage
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if self._storage is not None:
            if (module, name) in _GLOBALS:
                return _GLOBALS[module, name]
            if module == "torch" and name in _STORAGES:
                return name
        raise pickle.UnpicklingError(f"the global {module}.{name}, which is not a part of a tensor")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, count, *view = pid
        if self._storage is None or kind != "storage" or dtype not in _STORAGES or any(view):
            raise pickle.UnpicklingError(f"the reference {pid!r}, which is not a storage of numbers")
        if key not in self.storages:
            self.storages[key] = self._storage(np.dtype(_STORAGES[dtype]), key, count)
        return self.storages[key]


def _tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> StoredTensor:
    """Return a tensor: values of a storage from an offset, by the strides of its axes."""
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError(f"a tensor of {storage!r} instead of a storage")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    is_outside = math.prod(shape) > 0 and not 0 <= last < storage.size
    if is_outside or offset < 0 or any(number < 0 for number in (*shape, *strides)):
        raise pickle.UnpicklingError(f"a tensor of shape {shape} outside its {storage.size} values")

    def read() -> np.ndarray:
        values = np.frombuffer(storage.read(), storage.dtype)[offset:]
        in_bytes = [stride * storage.dtype.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(values, shape, in_bytes, writeable=False)

    return StoredTensor(tuple(shape), storage.dtype, read)


def _parameter(tensor: StoredTensor, *_: Any) -> StoredTensor:
    return tensor


_GLOBALS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}


def _tensors(content: Any) -> dict[str, StoredTensor]:
    """Return a dictionary of tensors, or raise an error."""
    if not isinstance(content, dict):
        raise pickle.UnpicklingError(f"a {type(content).__name__}")
    others = [name for name, tensor in content.items() if not isinstance(tensor, StoredTensor)]
    if others:
        raise pickle.UnpicklingError(f"{others[0]!r}, a {type(content[others[0]]).__name__}")
    return dict(content)


# What a damaged pickle raises.
_REFUSED = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
)
