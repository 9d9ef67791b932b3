"""Conversion of a function to ONNX, and its outputs in both runtimes."""

import collections

import onnxruntime
import tensorflow as tf

from keras_transformer.export.to_onnx import conversion, graph_traversal


def converted(function, *inputs, variables=()):
    """Return the counts of operations, the outputs of the graph and of TensorFlow, and the graph."""
    names = [f"x{i}" for i in range(len(inputs))]
    spec = [
        tf.TensorSpec([None, *x.shape[1:]], x.dtype, name=name) for name, x in zip(names, inputs, strict=True)
    ]
    graph = conversion.convert(
        "f", lambda *x: {"y": function(*x)}, spec, {name: [] for name in [*names, "y"]}, variables
    )
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(["y"], dict(zip(names, inputs, strict=True)))
    expected = function(*map(tf.constant, inputs)).numpy()
    return (
        collections.Counter(node.op_type for node in graph_traversal.nodes(graph.graph)),
        found,
        expected,
        graph,
    )
