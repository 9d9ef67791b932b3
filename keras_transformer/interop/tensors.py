"""Tensors of a folder's weights by name, each read when it is asked for."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_transformer_serving import files

SAFETENSORS = "model.safetensors"
PYTORCH = "pytorch_model.bin"
INDEX = ".index.json"  # of the shards of either
_CONVERT_TENSORFLOW = "which docs/coming_from_tensorflow_models.md converts"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        shape: its shape.
        read: a function that reads its values.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def tensors_of(folder: pathlib.Path) -> dict[str, StoredTensor]:
    """Return the tensors of a folder by name: of `model.safetensors`, else of `pytorch_model.bin`, or of their shards.

    Raises:
        FileNotFoundError: if a file is missing.
        ImportError: if safetensors is not installed.
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
        or not all(isinstance(each, str) for each in shards.values())
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
    found = {name: _tensors_of_file(index.parent / name) for name in names}
    for tensor, name in shards.items():
        if tensor not in found[name]:
            raise ValueError(
                f"`{index.parent / name}` must have the tensors that {index.name} names. Missing: {tensor}"
            )
    return {tensor: found[name][tensor] for tensor, name in shards.items()}


def _tensors_of_file(path: pathlib.Path) -> dict[str, StoredTensor]:
    if path.suffix == ".bin":
        from keras_transformer.interop.pytorch_files import tensors_of_pytorch_file

        return tensors_of_pytorch_file(path)
    return _tensors_of_safetensors(path)


def _tensors_of_safetensors(path: pathlib.Path) -> dict[str, StoredTensor]:
    import ml_dtypes  # noqa: F401  (defines bfloat16 for safetensors)

    safetensors = import_safetensors()

    def reader(name: str) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            # The file is mapped for one tensor only: pages that were read count as memory until it is closed.
            with safetensors.safe_open(path, framework="numpy") as file:
                values: np.ndarray = file.get_tensor(name)
            return values

        return read

    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"`{path}` must be a valid safetensors file. Received: a damaged or truncated one ({error})"
        ) from error
    if metadata.get("format") == "tf":
        raise ValueError(
            f"`{path}` must have PyTorch's names of weights. Received: those of a TensorFlow class "
            f"(format 'tf'), {_CONVERT_TENSORFLOW}"
        )
    return {name: StoredTensor(shape, reader(name)) for name, shape in shapes.items()}


def import_safetensors() -> Any:
    """Return the module `safetensors`, or raise an ImportError that says how to install it."""
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "reading and writing safetensors requires its package: pip install 'keras-transformer-kit[hf]'"
        ) from error
    return safetensors
