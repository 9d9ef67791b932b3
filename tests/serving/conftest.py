import types

import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer.export.bundle_writer import config_of


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


@pytest.fixture(scope="session")
def served_in_tensorflow():
    """Return served_in_tensorflow(pipeline), a serving pipeline whose graph TensorFlow runs."""

    def make(pipeline):
        config = config_of(pipeline)
        served = object.__new__(getattr(serving, config["pipeline"]))
        served.config = config
        served.tokenizer = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config)
        served._session = GraphInTensorFlow(pipeline.forward_graph())
        served.inputs = [entry.name for entry in served._session.get_inputs()]
        return served

    return make
