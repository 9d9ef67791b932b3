"""Names of the files that an ONNX graph would read its weights from, without the package `onnx`."""

from collections.abc import Iterator

# The messages of onnx.proto that contain a TensorProto: the type of each field, by its number.
_MESSAGES: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Training": {1: "Graph", 2: "Graph"},
    "Tensor": {13: "Entry"},
}
_KEY, _VALUE = 1, 2  # the fields of an entry of TensorProto.external_data
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def locations(model: bytes) -> set[str]:
    """Return the locations of the external data of a serialised `onnx.ModelProto`.

    Raises:
        ValueError: if it is not one.
    """
    return set(_locations("Model", memoryview(model)))


def _locations(message: str, content: memoryview) -> Iterator[str]:
    if message == "Entry":
        entry = {number: bytes(value).decode(errors="replace") for number, value in _fields(content)}
        if entry.get(_KEY) == "location":
            yield entry.get(_VALUE, "")
        return
    for number, value in _fields(content):
        if number in _MESSAGES[message]:
            yield from _locations(_MESSAGES[message][number], value)


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and content of the fields that have a length: messages, strings, bytes."""
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = _varint(content, position)
            continue
        if wire_type == _BYTES:
            size, position = _varint(content, position)
        else:
            size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire_type, len(content))
        if position + size > len(content):
            raise ValueError("a graph must be a serialised onnx.ModelProto, and is something else or cut")
        if wire_type == _BYTES:
            yield tag >> 3, content[position : position + size]
        position += size


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it."""
    number = shift = 0
    while position < len(content):
        byte = content[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise ValueError("a graph must be a serialised onnx.ModelProto, and is something else or cut")
