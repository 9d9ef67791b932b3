"""Conversion of a function to ONNX, and its outputs in both runtimes."""

import collections
import json
import math
import pathlib

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


def reductions_of_empty_axes(graph, inputs, prefix):
    """Run a graph, and return the names of the operations, also in loops, that reduce an empty axis.

    ONNX Runtime's CUDA provider cannot run them.

    Args:
        graph: the path or the content of a graph.
        inputs: the arrays by name.
        prefix: the prefix of the path of the profile.
    """
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)
    events = json.loads(pathlib.Path(session.end_profiling()).read_text())

    def num_elements(types):
        return [math.prod(shape) for each in types[:1] for shape in each.values()]

    runs = [event for event in events if event.get("args", {}).get("op_name", "").startswith("Reduce")]
    runs = [event for event in runs if "input_type_shape" in event["args"]]
    assert runs
    return {
        event["name"]
        for event in runs
        if 0 in num_elements(event["args"]["input_type_shape"])
        and 0 not in num_elements(event["args"]["output_type_shape"])
    }
