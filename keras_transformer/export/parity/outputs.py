"""Parity of output tensors between an export and its model."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (a SavedModel has its operations)

from keras_transformer.pipelines.forward import FORWARD
from keras_transformer.pipelines.pipeline import Arrays
from keras_transformer_serving.parity import Example

TOLERANCES = {"float32": 1e-4}  # absolute and relative, by compute dtype
_ROUGH = 5e-2


def tolerance(model: Any) -> float:
    """Return the tolerance for differences between an export's and the model's outputs."""
    return TOLERANCES.get(model.compute_dtype, _ROUGH)


def examples_of(pipeline: Any, texts: Sequence[Any] | None = None) -> list[Example]:
    """Return examples of a pipeline that runs its model once.

    Args:
        pipeline: the pipeline.
        texts: the texts for a pipeline with a tokenizer, pairs if it takes two; by default made from the vocabulary.

    Returns:
        Examples with the inputs of each signature and the outputs of the model ("forward") or of a call (the others).
    """
    forward = pipeline.forward_graph().function

    def outputs_of(graph: str, inputs: Arrays) -> Arrays:
        if graph != FORWARD:
            return {name: _decoded(values) for name, values in pipeline.outputs_of(*inputs.values()).items()}
        tensors = forward(*(tf.constant(values) for values in inputs.values()))
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    return [
        Example(graph, inputs, outputs_of(graph, inputs))
        for graph, batches in pipeline.example_inputs(texts).items()
        for inputs in batches
    ]


def save(path: pathlib.Path, examples: Sequence[Example]) -> None:
    """Save examples to a file."""
    arrays = {}
    for number, example in enumerate(examples):
        for side in ("inputs", "outputs"):
            for name, values in getattr(example, side).items():
                arrays[f"{number}/{example.graph}/{side}/{name}"] = values
    np.savez_compressed(path, **arrays)


class LoadedSavedModel:
    """A SavedModel on disk, run by TensorFlow."""

    def __init__(self, path: pathlib.Path) -> None:
        self._signatures = tf.saved_model.load(str(path)).signatures

    def __call__(self, graph: str, inputs: Arrays) -> Arrays:
        """Return the outputs of a signature."""
        tensors = {name: tf.constant(values) for name, values in inputs.items()}
        try:
            outputs = self._signatures[graph](**tensors)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"`inputs` must fit the model. Received: {error.message.splitlines()[0]}"
            ) from error
        return {name: _decoded(tensor.numpy()) for name, tensor in outputs.items()}


def _decoded(values: np.ndarray) -> np.ndarray:
    """Decode bytes to strings."""
    if values.dtype.kind != "O":
        return values
    texts = [text.decode() for text in values.ravel()]
    return np.array(texts, dtype=str).reshape(values.shape)
