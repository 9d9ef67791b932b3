"""Serving pipelines without an export."""

import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer.export.bundle_writer import config_of
from keras_transformer_serving.pipelines import pipeline_of
from keras_transformer_serving.server.forward import Rows
from keras_transformer_serving.tasks import Tensor


class EngineInTensorFlow:
    """A `ForwardEngine` that runs a graph in TensorFlow, as conversion takes seconds."""

    device = "cpu"
    map = serving.Sessions(lambda _: b"").map  # one batch at a time

    def __init__(self, graph):
        self.inputs = tuple(
            Tensor(spec.name, "int64", (None,) * (len(spec.shape) - 1)) for spec in graph.inputs
        )
        self._function = tf.function(graph.function, input_signature=graph.inputs, autograph=False)
        outputs = self._function.get_concrete_function().structured_outputs
        self.outputs = tuple(Tensor(name, "float32", (None,)) for name in outputs)

    def run(self, inputs):
        outputs = self._function(*(tf.constant(inputs[tensor.name]) for tensor in self.inputs))
        return {name: values.numpy() for name, values in outputs.items()}


def without_graphs(config):
    """Return a stand-in for the graphs of an export that generates, of which the texts alone are compared."""
    engine = serving.ExportedEngine(config)
    engine.methods = {}
    return engine


def served_in_tensorflow(pipeline):
    """Return the serving pipeline of a pipeline, whose graph TensorFlow runs."""
    config = config_of(pipeline)
    tokenizer = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config)
    return pipeline_of(EngineInTensorFlow(pipeline.forward_graph()), config, tokenizer)


def signature_outputs(served, signature, columns):
    """Return the outputs of a signature of the server for columns of rows."""
    rows = signature.rows(columns, "{}[{}]".format)
    return signature.stack(signature.compute(rows, {}, Rows(served, 4), 4))
