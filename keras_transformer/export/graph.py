"""A function that is exported."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

Axes = dict[str, list[str | None]]
"""Of each tensor the names of its first axes; None where the size is known."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """A signature of a SavedModel, or an ONNX graph.

    Attributes:
        function: from tensors to a dictionary of them.
        inputs: what it takes.
        axes: names of the dynamic axes of inputs and outputs, which ONNX wants.
    """

    function: Callable[..., dict[str, Any]]
    inputs: list[tf.TensorSpec]
    axes: Axes = dataclasses.field(default_factory=dict)
