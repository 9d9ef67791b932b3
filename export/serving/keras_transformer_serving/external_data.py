"""The weights that an ONNX graph reads from a file, without the package `onnx`."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving.protobuf import fields, integers, message

# The messages of onnx.proto that contain a TensorProto: the type of each field, by its number.
_MESSAGES: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Training": {1: "Graph", 2: "Graph"},
}
MAX_BYTES = 2**30
"""The size of the weights in a graph's file, which readers such as ONNX Runtime have in memory up to three times."""
_INITIALIZER = ("Model", 7, "Graph", 5, "Tensor")
# Those of them that contain the weights of graphs.
_WITH_GRAPHS = {
    "Model": {7: "Graph"},
    "Graph": {1: "Node", 5: "Tensor"},
    "Node": {5: "Attribute"},
    "Attribute": {6: "Graph"},
}
_DIMS, _TYPE, _NAME, _RAW_DATA, _EXTERNAL_DATA, _LOCATION = 1, 2, 8, 9, 13, 14  # fields of a TensorProto
_MIN_DETACHED = 1024  # bytes
_KEY, _VALUE = 1, 2  # fields of an entry of TensorProto.external_data
# by TensorProto.DataType
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("float32"),
    2: np.dtype("uint8"),
    3: np.dtype("int8"),
    6: np.dtype("int32"),
    7: np.dtype("int64"),
    10: np.dtype("float16"),
    11: np.dtype("float64"),
}


def file_name(graph: str) -> str:
    """Return the name of the file that a graph reads weights from, if they exceed 1 GiB."""
    return f"{graph}.onnx_data"


class ExternalTensor(NamedTuple):
    """A tensor in another file.

    Attributes:
        location: the file.
        name: the tensor's name.
        data_type: its type, a `TensorProto.DataType`.
        dims: its shape.
        offset: of its first byte.
        length: the number of its bytes; None if it is not stored.
        is_initializer: whether it is a weight of the graph, not part of a node.
    """

    location: str
    name: str
    data_type: int
    dims: tuple[int, ...]
    offset: int
    length: int | None
    is_initializer: bool

    def values(self, content: bytes) -> np.ndarray:
        """Return the values, a view of the file's content."""
        dtype, size = _DTYPES.get(self.data_type), math.prod(self.dims)
        length = 0 if dtype is None else size * dtype.itemsize
        wrong = self.length not in (None, length) or not 0 <= self.offset <= len(content) - length
        if dtype is None or wrong:
            raise ValueError(
                f"`{self.location}` must have the weights of its graph. Received: {len(content)} bytes, for {self}"
            )
        return np.frombuffer(content, dtype, size, self.offset).reshape(self.dims)


def tensors(model: bytes) -> list[ExternalTensor]:
    """Return the tensors of a serialised `onnx.ModelProto` that are in other files."""
    try:
        return [*_tensors(("Model",), memoryview(model))]
    except ValueError as error:
        raise ValueError(
            "a graph must be a serialised onnx.ModelProto, and is something else or cut"
        ) from error


def detached(model: memoryview, location: str) -> bytes:
    """Return a serialised `onnx.ModelProto` that reads its large weights from its file.

    ONNX Runtime maps them into memory. From the file itself, it would have them in memory up to three times.
    """
    start = _address(model)

    def rewritten(kind: str, content: memoryview) -> bytes:
        values: list[tuple[int, Any]] = [*fields(content)]
        raw: Any = dict(values).get(_RAW_DATA, b"") if kind == "Tensor" else b""
        if len(raw) >= _MIN_DETACHED:
            entries = {"location": location, "offset": _address(raw) - start, "length": len(raw)}
            external = [message((_KEY, key), (_VALUE, str(value))) for key, value in entries.items()]
            others = [value for value in values if value[0] != _RAW_DATA]
            values = [*others, *((_EXTERNAL_DATA, entry) for entry in external), (_LOCATION, 1)]
        inner = _WITH_GRAPHS.get(kind, {})
        return message(
            *(
                (number, rewritten(inner[number], value) if number in inner else value)
                for number, value in values
            )
        )

    return rewritten("Model", model)


def _address(content: memoryview) -> int:
    return np.frombuffer(content, np.uint8).ctypes.data


def _tensors(path: tuple[Any, ...], content: memoryview) -> Iterator[ExternalTensor]:
    """Yield the external tensors of a message; `path` has its type after those of the messages around it."""
    if path[-1] == "Tensor":
        values = [*fields(content)]
        entries = dict(
            _entry(value)
            for number, value in values
            if number == _EXTERNAL_DATA and isinstance(value, memoryview)
        )
        if "location" in entries:
            last: dict[int, Any] = dict(values)
            length = entries.get("length")
            yield ExternalTensor(
                entries["location"],
                bytes(last.get(_NAME, b"")).decode(errors="replace"),
                int(last.get(_TYPE, 0)),
                tuple(dim for number, value in values if number == _DIMS for dim in integers(value)),
                int(entries.get("offset", 0)),
                None if length is None else int(length),
                path == _INITIALIZER,
            )
        return
    for number, value in fields(content):
        if number in _MESSAGES[path[-1]] and isinstance(value, memoryview):
            yield from _tensors((*path, number, _MESSAGES[path[-1]][number]), value)


def _entry(content: memoryview) -> tuple[str, str]:
    entry = {
        number: bytes(value).decode(errors="replace")
        for number, value in fields(content)
        if isinstance(value, memoryview)
    }
    return entry.get(_KEY, ""), entry.get(_VALUE, "")
