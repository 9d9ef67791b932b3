"""Protocol buffers of TensorFlow Serving's Predict API, built from their published field names and numbers.

`tensorflow-serving-api` has them too, but each version requires the same or a newer version of TensorFlow, and 2.21 a
newer protobuf than Colab's. This module needs protobuf only.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "keras_transformer"

# The fields of each message: number and type, a type of protobuf or a message, after "repeated" for a list or "map" for
# a mapping from strings. Enumerations are int32, which has the same encoding. Readers skip omitted fields.
PREDICT = {
    "Dim": {"size": (1, "int64")},
    "TensorShapeProto": {"dim": (2, "repeated Dim"), "unknown_rank": (3, "bool")},
    "TensorProto": {
        "dtype": (1, "int32"),
        "tensor_shape": (2, "TensorShapeProto"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "repeated float"),
        "double_val": (6, "repeated double"),
        "int_val": (7, "repeated int32"),
        "string_val": (8, "repeated bytes"),
        "int64_val": (10, "repeated int64"),
        "bool_val": (11, "repeated bool"),
    },
    "Version": {"value": (1, "int64")},
    "ModelSpec": {"name": (1, "string"), "version": (2, "Version"), "signature_name": (3, "string")},
    "PredictRequest": {
        "model_spec": (1, "ModelSpec"),
        "inputs": (2, "map TensorProto"),
        "output_filter": (3, "repeated string"),
    },
    "PredictResponse": {"outputs": (1, "map TensorProto"), "model_spec": (2, "ModelSpec")},
    "PredictLog": {"request": (1, "PredictRequest"), "response": (2, "PredictResponse")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
}


def message_classes(messages: Mapping[str, Mapping[str, tuple[int, str]]]) -> dict[str, Any]:
    r"""Return the classes of messages, by name.

    They are in a separate pool, so that a program may also import `tensorflow-serving-api`.

    Args:
        messages: the fields of each message, as in `PREDICT`.

    Example:
        >>> message_classes(PREDICT)["ModelSpec"](name="es-en").SerializeToString()
        b'\n\x05es-en'
    """
    file = descriptor_pb2.FileDescriptorProto(name="predict.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, type_) in fields.items():
            label, _, element = type_.rpartition(" ")
            if label == "map":
                entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                _add_field(entry, "key", 1, "string")
                _add_field(entry, "value", 2, element)
                element = f"{name}.{entry.name}"
            _add_field(message, field, number, element, repeated=bool(label))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in messages
    }


def _add_field(message: Any, name: str, number: int, type_: str, repeated: bool = False) -> None:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if type_[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{type_}"
    else:
        field.type = getattr(field, f"TYPE_{type_.upper()}")


CLASSES = message_classes(PREDICT)
