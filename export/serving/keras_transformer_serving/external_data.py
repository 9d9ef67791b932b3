"""Names of the files that an ONNX graph would read its weights from, without the package `onnx`."""

from collections.abc import Iterator

from keras_transformer_serving.protobuf import fields

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


def locations(model: bytes) -> set[str]:
    """Return the locations of the external data of a serialised `onnx.ModelProto`.

    Raises:
        ValueError: if it is not one.
    """
    try:
        return set(_locations("Model", memoryview(model)))
    except ValueError as error:
        raise ValueError(
            "a graph must be a serialised onnx.ModelProto, and is something else or cut"
        ) from error


def _locations(message: str, content: memoryview) -> Iterator[str]:
    if message == "Entry":
        entry = {
            number: bytes(value).decode(errors="replace")
            for number, value in fields(content)
            if isinstance(value, memoryview)
        }
        if entry.get(_KEY) == "location":
            yield entry.get(_VALUE, "")
        return
    for number, value in fields(content):
        if number in _MESSAGES[message] and isinstance(value, memoryview):
            yield from _locations(_MESSAGES[message][number], value)
