"""Serving pipelines without an export."""

import types

import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer.export.bundle_writer import config_of
from keras_transformer_serving.server.forward import ForwardEngine


class GraphInTensorFlow:
    """Stand-in for a session of ONNX Runtime, as conversion takes seconds."""

    def __init__(self, graph):
        self._names = [spec.name for spec in graph.inputs]
        self._ranks = [len(spec.shape) for spec in graph.inputs]
        self._function = tf.function(graph.function, input_signature=graph.inputs, autograph=False)
        self._outputs = [*self._function.get_concrete_function().structured_outputs]

    def get_inputs(self):
        shapes = ([None] * rank for rank in self._ranks)
        return [
            types.SimpleNamespace(name=name, type="tensor(int64)", shape=shape)
            for name, shape in zip(self._names, shapes, strict=True)
        ]

    def get_outputs(self):
        return [
            types.SimpleNamespace(name=name, type="tensor(float)", shape=[None]) for name in self._outputs
        ]

    def run(self, names, feed):
        outputs = self._function(*(tf.constant(feed[name]) for name in self._names))
        return [outputs[name].numpy() for name in names]


def without_graphs(config):
    """Return a stand-in for the graphs of an export that generates, of which the texts alone are compared."""
    others = {"sampler": config["generation"], "end_ids": {config["end_id"]}, "num_return": 1}
    return types.SimpleNamespace(**config, **others, methods={}, map=None)


def served_in_tensorflow(pipeline):
    """Return the serving pipeline of a pipeline, whose graph TensorFlow runs."""
    config = config_of(pipeline)
    served = object.__new__(getattr(serving, config["pipeline"]))
    served.config = config
    served.tokenizer = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config)
    served._sessions = serving.Sessions(lambda _: b"")  # computes one batch at a time
    served.map = served._sessions.map
    served._session = GraphInTensorFlow(pipeline.forward_graph())
    served.inputs = [entry.name for entry in served._session.get_inputs()]
    return served


def signature_outputs(served, signature, columns):
    """Return the outputs of a signature of the server for columns of rows."""
    rows = signature.rows(columns, "{}[{}]".format)
    return signature.stack(signature.compute(rows, {}, ForwardEngine(served, 4), 4))
