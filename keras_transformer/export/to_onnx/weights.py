"""The weights of ONNX graphs, which are arguments of the traced function and initializers of the graph."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export.to_onnx import graph_traversal

MAX_BYTES = 2**31 - 2**24  # of weights in the graph's file, a protocol buffer of at most 2 GiB
MIN_EXTERNAL_BYTES = 1024  # of a weight that is written to the external file, if there is one


class Matrices:
    """The matrices of a model, which a traced function takes as arguments.

    As constants, they would be limited to 2 GiB, copied by each step of a conversion, and folded with other operations:
    an embedding matrix and its transposition for the logits would be stored twice. Vectors, such as those of
    normalisations, remain constants, because rewrites read them.

    Args:
        variables: the model's weights.

    Attributes:
        specs: the specs of the arguments.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = [variable for variable in variables if len(variable.shape) > 1]
        # The sizes are unknown, because TensorFlow's optimiser allocates tensors of known sizes.
        self.specs = [
            tf.TensorSpec([None] * len(variable.shape), variable.dtype, name=f"weight_{number}")
            for number, variable in enumerate(self._variables)
        ]

    def arguments_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes the matrices after the arguments of `function`."""
        count = len(self._variables)

        def with_matrices(*arguments: Any) -> Any:
            num_inputs = len(arguments) - count
            matrices = [
                (variable, tf.ensure_shape(value, variable.shape))
                for variable, value in zip(self._variables, arguments[num_inputs:], strict=True)
            ]
            with keras.StatelessScope(state_mapping=matrices):
                return function(*arguments[:num_inputs])

        return with_matrices

    def set_shapes(self, graph: Any) -> None:
        """Set the shapes of a converted graph's inputs for the matrices."""
        shapes = {
            spec.name: variable.shape for spec, variable in zip(self.specs, self._variables, strict=True)
        }
        for value in graph.input:
            sizes = shapes.get(value.name, ())
            for dimension, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
                dimension.dim_value = size

    def insert(self, graph: Any) -> None:
        """Replace a converted graph's inputs for the matrices by initializers.

        Args:
            graph: an `onnx.GraphProto`, which is changed.
        """
        from onnx import helper, numpy_helper

        variables = {spec.name: variable for spec, variable in zip(self.specs, self._variables, strict=True)}
        inputs = [value for value in graph.input if value.name not in variables]
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
