"""Warm-up requests, which TensorFlow Serving runs on a new version before it serves other requests."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format  # noqa: F401  (loads protobuf before TensorFlow's messages)
from tensorflow.core.framework import tensor_pb2

from keras_transformer.export.tensorflow_serving.messages import CLASSES
from keras_transformer.pipelines.pipeline import Arrays

FILE = "assets.extra/tf_serving_warmup_requests"
_BATCH_SIZES = (1, 8)


def write(path: pathlib.Path, name: str, example_inputs: Mapping[str, Sequence[Arrays]]) -> None:
    """Write the warm-up requests of a SavedModel: a single row and a batch of several rows for each signature.

    Args:
        path: the SavedModel's folder.
        name: the model's name in TensorFlow Serving.
        example_inputs: inputs of each signature.
    """
    (path / FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path / FILE)) as writer:
        for signature, examples in example_inputs.items():
            count, inputs = max(
                ((len(next(iter(inputs.values()))), inputs) for inputs in examples), key=lambda item: item[0]
            )
            for size in sorted({min(count, size) for size in _BATCH_SIZES} - {0}):
                batch = {key: values[:size] for key, values in inputs.items()}
                log = {"predict_log": {"request": predict_request(name, signature, batch)}}
                writer.write(CLASSES["PredictionLog"](**log).SerializeToString(deterministic=True))


def requests(path: pathlib.Path) -> list[Any]:
    """Return the warm-up requests of a SavedModel, messages `PredictRequest`."""
    records = tf.data.TFRecordDataset(str(path / FILE)).as_numpy_iterator()
    return [CLASSES["PredictionLog"].FromString(record).predict_log.request for record in records]


def predict_request(name: str, signature: str, inputs: Arrays) -> Any:
    """Return the `PredictRequest` of inputs (B, …), by name."""
    request = CLASSES["PredictRequest"](model_spec={"name": name, "signature_name": signature})
    for key, values in inputs.items():
        request.inputs[key].ParseFromString(tf.make_tensor_proto(values).SerializeToString())
    return request


def arrays(tensors: Mapping[str, Any]) -> Arrays:
    """Return the arrays of messages `TensorProto`, by name."""
    return {
        name: tf.make_ndarray(tensor_pb2.TensorProto.FromString(tensor.SerializeToString()))
        for name, tensor in tensors.items()
    }
