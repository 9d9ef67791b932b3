"""Tensors of a folder's weights by name, each read when it is asked for."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from keras_transformer_serving import files

SAFETENSORS = "model.safetensors"
PYTORCH = "pytorch_model.bin"
INDEX = ".index.json"  # of the shards of either
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
}
_CONVERT_TENSORFLOW = "which docs/coming_from_tensorflow_models.md converts"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        shape: its shape.
        dtype: the type of its values.
        read: a function that returns its values, which may be mapped from the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray]


def tensors_of(folder: pathlib.Path) -> dict[str, StoredTensor]:
    """Return the tensors of a folder by name: of `model.safetensors`, else of `pytorch_model.bin`, or of their shards.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or the index of shards does not fit them.
    """
    for name in (SAFETENSORS, PYTORCH):
        if (folder / name).is_file():
            return _tensors_of_file(folder / name)
        if (folder / (name + INDEX)).is_file():
            return _tensors_of_shards(folder / (name + INDEX))
    others = [f"TensorFlow's {path.name}, {_CONVERT_TENSORFLOW}" for path in folder.glob("tf_model*.h5")]
    raise FileNotFoundError(
        f"`folder` must hold {SAFETENSORS} or {PYTORCH}, or the shards of either and their index"
        + (f", not {min(others)}" if others else "")
        + f". Received: folder={str(folder)!r}"
    )


def shards_of(index: pathlib.Path) -> dict[str, str]:
    """Return the file of each tensor, from the index of shards.

    Raises:
        ValueError: if the file is no index, or names a file outside its folder.
    """
    content = files.read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if (
        not isinstance(shards, dict)
        or not shards
        or not all(isinstance(file, str) for file in shards.values())
    ):
        raise ValueError(f"`{index}` must have the file of each tensor as weight_map. Received: {shards!r}")
    for name in shards.values():
        if pathlib.PurePath(name).name != name:
            raise ValueError(f"`{index}` must name files in its folder. Received: {name!r}")
    return shards


def _tensors_of_shards(index: pathlib.Path) -> dict[str, StoredTensor]:
    shards = shards_of(index)
    names = sorted(set(shards.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"`folder` must hold the files that {index.name} names. Missing: {', '.join(missing)}"
        )
    tensors = {name: _tensors_of_file(index.parent / name) for name in names}
    for tensor, name in shards.items():
        if tensor not in tensors[name]:
            raise ValueError(
                f"`{index.parent / name}` must have the tensors that {index.name} names. Missing: {tensor}"
            )
    return {tensor: tensors[name][tensor] for tensor, name in shards.items()}


def _tensors_of_file(path: pathlib.Path) -> dict[str, StoredTensor]:
    if path.suffix == ".bin":
        from keras_transformer.interop.pytorch_files import tensors_of_pytorch_file

        return tensors_of_pytorch_file(path)
    return _tensors_of_safetensors(path)


def _tensors_of_safetensors(path: pathlib.Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file: the length of a header, the header in JSON, the values."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header = file.read(start - 8) if 8 < start <= size else b""
    try:
        described = json.loads(header)
        metadata = described.pop("__metadata__", {})
        unknown = {
            f"{name} of {tensor['dtype']}"
            for name, tensor in described.items()
            if tensor["dtype"] not in _DTYPES
        }
        if not unknown:
            tensors = {
                name: _stored(path, start, size, **description) for name, description in described.items()
            }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{path}` must be a valid safetensors file. Received: a damaged or truncated one ({error})"
        ) from error
    if unknown:
        raise ValueError(
            f"`{path}` must have tensors of the types {', '.join(sorted(_DTYPES))}. Received: {min(unknown)}"
        )
    if metadata.get("format") == "tf":
        raise ValueError(
            f"`{path}` must have PyTorch's names of weights. Received: those of a TensorFlow class "
            f"(format 'tf'), {_CONVERT_TENSORFLOW}"
        )
    return tensors


def _stored(
    path: pathlib.Path, start: int, size: int, dtype: str, shape: list[int], data_offsets: tuple[int, int]
) -> StoredTensor:
    """Return a tensor of a file of a given size, whose values begin at `start`."""
    first, end = data_offsets
    kind = np.dtype(_DTYPES[dtype])
    if not 0 <= first <= end <= size - start or end - first != math.prod(shape) * kind.itemsize:
        raise ValueError(f"{shape} values of {dtype} from byte {first} to {end} of {size - start}")
    if first == end:
        return StoredTensor(tuple(shape), kind, lambda: np.empty(shape, kind))
    return StoredTensor(tuple(shape), kind, lambda: np.memmap(path, kind, "r", start + first, tuple(shape)))


def save_tensors(tensors: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """Write a safetensors file for `transformers`, which requires the format in the metadata."""
    import_safetensors()
    import safetensors.numpy

    safetensors.numpy.save_file(dict(tensors), path, metadata={"format": "pt"})


def import_safetensors() -> Any:
    """Return the module `safetensors`, or raise an ImportError that says how to install it."""
    try:
        import safetensors
    except ModuleNotFoundError as error:
        raise ImportError(
            "writing safetensors requires its package, of the extra [hf]: pip install safetensors"
        ) from error
    return safetensors
