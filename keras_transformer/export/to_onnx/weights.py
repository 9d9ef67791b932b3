"""The weights of ONNX graphs: arguments of the traced function, initializers of the graph."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export.to_onnx import graph_traversal

LARGEST = 2**31 - 2**24  # bytes of weights in a graph's own file, a protocol buffer, which is at most 2 GiB
LEAST_BESIDE = 1024  # bytes of a weight that is written to the file beside, if there is one


class Matrices:
    """The matrices of a model, which a traced function takes as arguments.

    As constants, they would be limited to 2 GiB and copied by each step of a conversion, and folded with others, such
    as an embedding matrix with the transposition that computes logits, which stores it twice. Vectors, as of
    normalisations, remain constants, which rewrites look at.

    Args:
        variables: the model's weights.

    Attributes:
        specs: of the arguments.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = [each for each in variables if len(each.shape) > 1]
        # Of unknown sizes: TensorFlow's optimiser allocates what has known ones.
        self.specs = [
            tf.TensorSpec([None] * len(each.shape), each.dtype, name=f"weight_{number}")
            for number, each in enumerate(self._variables)
        ]

    def arguments_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes the matrices after the arguments of `function`."""
        count = len(self._variables)

        def with_matrices(*arguments: Any) -> Any:
            own = len(arguments) - count
            matrices = [
                (each, tf.ensure_shape(value, each.shape))
                for each, value in zip(self._variables, arguments[own:], strict=True)
            ]
            with keras.StatelessScope(state_mapping=matrices):
                return function(*arguments[:own])

        return with_matrices

    def set_shapes(self, graph: Any) -> None:
        """Set the shapes of the inputs of a converted graph for the matrices."""
        shapes = {spec.name: each.shape for spec, each in zip(self.specs, self._variables, strict=True)}
        for value in graph.input:
            sizes = shapes.get(value.name, ())
            for dimension, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
                dimension.dim_value = size

    def insert(self, graph: Any) -> None:
        """Replace the inputs of a converted graph for the matrices by initializers.

        Args:
            graph: an `onnx.GraphProto`, which is changed.
        """
        from onnx import helper, numpy_helper

        variables = {spec.name: each for spec, each in zip(self.specs, self._variables, strict=True)}
        inputs = [each for each in graph.input if each.name not in variables]
        del graph.input[:]
        graph.input.extend(inputs)
        dtypes: dict[str, Any] = {}
        for node in [node for node in graph.node if node.op_type == "Cast" and node.input[0] in variables]:
            # In mixed precision, the weights are stored in the precision of the computation.
            variables[node.output[0]] = variables[node.input[0]]
            dtypes[node.output[0]] = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
            graph.node.remove(node)
        read = {name for node in graph_traversal.nodes(graph) for name in node.input}
        paths: dict[str, str] = {}
        for name, variable in variables.items():
            if name in read:
                path, values = variable.path, variable.numpy()
                paths[name] = path if path not in paths.values() else f"{path}/{name}"
                values = values.astype(dtypes.get(name, values.dtype), copy=False)
                graph.initializer.append(numpy_helper.from_array(values, paths[name]))
        for node in graph_traversal.nodes(graph):
            node.input[:] = [paths.get(name, name) for name in node.input]
