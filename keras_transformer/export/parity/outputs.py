"""Parity of output tensors between an export and its model."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (a SavedModel has its operations)

from keras_transformer.export.parity.generation import ParityError
from keras_transformer.pipelines.base import Arrays
from keras_transformer.pipelines.forward import FORWARD

EXAMPLES = "examples.npz"
TOLERANCES = {"float32": 1e-4}  # absolute and relative, by compute dtype
_ROUGH = 5e-2


@dataclasses.dataclass(frozen=True)
class Example:
    """Inputs of a graph, and its expected outputs.

    Attributes:
        graph: the graph's name.
        inputs: the inputs, by name.
        outputs: the expected outputs, by name.
    """

    graph: str
    inputs: Arrays
    outputs: Arrays


def tolerance(model: Any) -> float:
    """Return the tolerance for differences between an export's and the model's outputs."""
    return TOLERANCES.get(model.compute_dtype, _ROUGH)


def examples_of(pipeline: Any, texts: Sequence[Any] | None = None) -> list[Example]:
    """Return examples of a pipeline that runs its model once.

    Args:
        pipeline: the pipeline.
        texts: the texts for a pipeline with a tokenizer, pairs if it takes two; by default made from the vocabulary.

    Returns:
        Inputs of each signature, and the outputs of the model for "forward", of a call for the others.

    Raises:
        ValueError: if `texts` are of another type.
    """
    forward = pipeline.forward_graph().function

    def outputs_of(graph: str, inputs: Arrays) -> Arrays:
        if graph != FORWARD:
            return {name: _decoded(values) for name, values in pipeline.outputs(*inputs.values()).items()}
        found = forward(*(tf.constant(values) for values in inputs.values()))
        return {name: tensor.numpy() for name, tensor in found.items()}

    return [
        Example(graph, inputs, outputs_of(graph, inputs))
        for graph, several in pipeline.example_inputs(texts).items()
        for inputs in several
    ]


def compare(examples: Sequence[Example], run: Callable[[str, Arrays], Arrays], most: float) -> dict[str, Any]:
    """Compare an export with the model's outputs.

    Args:
        examples: inputs and the model's outputs.
        run: a function that runs a graph of the export, by name, on inputs.
        most: the absolute and relative tolerance of floats. Integers and strings must be equal.

    Returns:
        "tolerance", and "graphs", for each the number of compared "rows" and the "largest_difference" of floats.

    Raises:
        ParityError: if an output differs.
    """
    graphs: dict[str, dict[str, Any]] = {}
    for example in examples:
        found = run(example.graph, example.inputs)
        if set(found) != set(example.outputs):
            raise ParityError(
                f"`{example.graph}` must give {sorted(example.outputs)}. Received: {sorted(found)}"
            )
        counts = graphs.setdefault(example.graph, {"rows": 0, "largest_difference": 0.0})
        counts["rows"] += len(next(iter(example.inputs.values())))
        for name, expected in example.outputs.items():
            difference = _difference(example, name, expected, found[name], most)
            counts["largest_difference"] = max(counts["largest_difference"], difference)
    return {"tolerance": most, "graphs": graphs}


def save(path: pathlib.Path, examples: Sequence[Example]) -> None:
    """Save examples to a file."""
    arrays = {}
    for number, example in enumerate(examples):
        for side in ("inputs", "outputs"):
            for name, values in getattr(example, side).items():
                arrays[f"{number}/{example.graph}/{side}/{name}"] = values
    np.savez_compressed(path, **arrays)


def load(path: pathlib.Path) -> list[Example]:
    """Load examples from a file written by `save`."""
    found: dict[str, Example] = {}
    with np.load(path) as arrays:
        for key, values in arrays.items():
            number, graph, side, name = key.split("/")
            example = found.setdefault(number, Example(graph, {}, {}))
            getattr(example, side)[name] = values
    return list(found.values())


class SavedModel:
    """A SavedModel on disk, run by TensorFlow."""

    def __init__(self, path: pathlib.Path) -> None:
        self._signatures = tf.saved_model.load(str(path)).signatures

    def __call__(self, graph: str, inputs: Arrays) -> Arrays:
        """Return the outputs of a signature."""
        given = {name: tf.constant(values) for name, values in inputs.items()}
        try:
            found = self._signatures[graph](**given)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                f"`inputs` must fit the model. Received: {error.message.splitlines()[0]}"
            ) from error
        return {name: _decoded(tensor.numpy()) for name, tensor in found.items()}


def _difference(example: Example, name: str, expected: np.ndarray, found: np.ndarray, most: float) -> float:
    """Return the largest difference of floats.

    Raises:
        ParityError: if it is too large, or values other than floats differ.
    """
    floats = expected.dtype.kind == "f"
    same = expected.shape == found.shape and (
        np.allclose(found, expected, rtol=most, atol=most, equal_nan=False)
        if floats
        else np.array_equal(expected, found)
    )
    if not same:
        raise ParityError(
            f"`{example.graph}` must give the model's {name}. Expected: {_shown(expected)}. Received: {_shown(found)}"
        )
    return float(np.abs(found - expected, dtype="float32").max(initial=0)) if floats else 0.0


def _shown(values: np.ndarray) -> str:
    return f"{np.array2string(values, threshold=20, edgeitems=2)} of shape {values.shape}"


def _decoded(values: np.ndarray) -> np.ndarray:
    """Decode bytes to strings."""
    if values.dtype.kind != "O":
        return values
    texts = [text.decode() for text in values.ravel()]
    return np.array(texts, dtype=str).reshape(values.shape)
