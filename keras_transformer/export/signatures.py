"""The signatures of the parts of an export: inputs, outputs, defaults and examples, for `parity.json`."""

import json
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format  # noqa: F401  (loads protobuf before TensorFlow's messages)
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.export.tensorflow_serving import warmup
from keras_transformer.pipelines.pipeline import BATCH, DEFAULT
from keras_transformer_serving import protobuf

MOST_CHARACTERS = 500
"""The length of an example as JSON up to which it is stored."""


def of_saved_model(path: pathlib.Path) -> dict[str, Any]:
    """Return the signatures of a SavedModel, for `parity.json`.

    Returns:
        By signature "inputs" and "outputs", each a type and a shape by name, the "defaults" of optional inputs and, if
        it is short, an "example", one row of inputs.
    """
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())

    def specs(tensors: Any) -> dict[str, list[Any]]:  # "error" last
        return {
            key: [tf.as_dtype(tensor.dtype).name, [BATCH, *tf.TensorShape(tensor.tensor_shape).as_list()[1:]]]
            for key, tensor in sorted(tensors.items(), key=lambda item: (item[0] == "error", item[0]))
        }

    signatures_by_name = {
        name: {
            "inputs": specs(signature.inputs),
            "outputs": specs(signature.outputs),
            "defaults": {
                key: [_json(item) for item in tf.make_ndarray(value)]
                for key, value in sorted(signature.defaults.items())
            },
        }
        for name, signature in sorted(
            saved_model.meta_graphs[0].signature_def.items(), key=lambda item: (item[0] != DEFAULT, item[0])
        )
        if not name.startswith("__")  # the initialisation of tables
    }
    for request in warmup.requests(path):
        row = {key: _json(values[0]) for key, values in sorted(warmup.arrays(request.inputs).items())}
        if len(json.dumps(row)) <= MOST_CHARACTERS:
            signatures_by_name[request.model_spec.signature_name].setdefault("example", row)
    return signatures_by_name


def _json(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_json(entry) for entry in value]
    return value.decode() if isinstance(value, bytes) else value.tolist()


def _size(dimension: Any) -> str | int | None:
    """Return the name or size of a dimension of an ONNX graph, None if it has neither."""
    return dimension.dim_param or (dimension.dim_value if dimension.HasField("dim_value") else None)


def _dtype(element_type: int) -> str:
    """Return the name of a type of ONNX."""
    import onnx

    name = str(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    return "string" if name == "object" else name


def _without_weights(file: pathlib.Path) -> Any:
    """Return the inputs of an ONNX graph, their defaults, and its outputs, without the nodes and other constants."""
    import onnx

    of_graph, of_tensor = onnx.GraphProto, onnx.TensorProto
    model = dict(protobuf.fields(memoryview(np.memmap(file, mode="r"))))
    fields = [*protobuf.fields(model[onnx.ModelProto.GRAPH_FIELD_NUMBER])]
    graph = onnx.GraphProto()
    for number, value in fields:
        if number in (of_graph.INPUT_FIELD_NUMBER, of_graph.OUTPUT_FIELD_NUMBER):
            graph.MergeFromString(protobuf.message((number, bytes(value))))
    inputs = {value.name.encode() for value in graph.input}
    for number, value in fields:
        if number == of_graph.INITIALIZER_FIELD_NUMBER:
            name = dict(protobuf.fields(value)).get(of_tensor.NAME_FIELD_NUMBER, b"")
            if bytes(name) in inputs:
                graph.initializer.append(of_tensor.FromString(bytes(value)))
    return graph


def of_graphs(path: pathlib.Path) -> dict[str, Any]:
    """Return the tensors of ONNX graphs, for `parity.json`.

    Returns:
        By graph "inputs" and "outputs", each a type and a shape by name, and the "defaults" of optional inputs.
    """
    import onnx

    def specs(values: Any) -> dict[str, list[Any]]:
        return {
            value.name: [
                _dtype(value.type.tensor_type.elem_type),
                [_size(dimension) for dimension in value.type.tensor_type.shape.dim],
            ]
            for value in values
        }

    graphs = {}
    for file in sorted(path.rglob("*.onnx")):
        graph = _without_weights(file)
        name = file.relative_to(path).with_suffix("").as_posix()
        graphs[name] = {
            "inputs": specs(graph.input),
            "outputs": specs(graph.output),
            "defaults": {
                constant.name: onnx.numpy_helper.to_array(constant).tolist() for constant in graph.initializer
            },
        }
    return graphs
