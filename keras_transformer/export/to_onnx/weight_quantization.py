"""The base of quantizations of ONNX graphs: which weights are quantised, and where they are stored."""

import abc
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal, weights

Readers = dict[str, weights.Reader]

_MIN_VALUES = 1024  # of a table that is quantised; smaller ones, such as biases by distance, gain nothing


class WeightQuantization(abc.ABC):
    """The quantisation of the matrices of products and of the tables of gathers.

    Matrices that are not among the weights of `readers`, such as the filters of a spectrogram, stay as they are.

    Args:
        model: an `onnx.ModelProto` of float32, whose graph is changed.
        readers: the functions that read the values of weights that have none in the graph, by name; those of quantised
            weights are added.
    """

    def __init__(self, model: Any, readers: Readers) -> None:
        self._graph, self._readers = model.graph, readers
        self._weights = {*readers}
        self._constants = {
            constant.name: constant
            for subgraph in graph_traversal.graphs(model.graph)
            for constant in subgraph.initializer
        }

    def apply(self) -> None:
        """Replace the nodes of products and gathers."""
        for graph in reversed([*graph_traversal.graphs(self._graph)]):  # inner graphs first: nodes are copied
            graph_traversal.replace_nodes(graph, [*self._quantised_nodes(graph.node)])

    @abc.abstractmethod
    def _quantised_nodes(self, nodes: Iterable[Any]) -> Iterable[Any]:
        """Yield the nodes of a graph, or others that compute the same with quantised weights."""

    def _is_product(self, node: Any) -> bool:
        return bool(node.op_type == "MatMul") and self._is_matrix(node.input[1])

    def _is_gather(self, node: Any) -> bool:
        if node.op_type != "Gather" or not self._is_matrix(node.input[0]):
            return False
        dims = self._constants[node.input[0]].dims
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        return axis == 0 and len(dims) == 2 and dims[0] * dims[1] >= _MIN_VALUES

    def _is_matrix(self, name: str) -> bool:
        from onnx import TensorProto

        constant = self._constants.get(name)
        is_weight = not self._weights or name in self._weights
        return (
            is_weight
            and constant is not None
            and constant.data_type == TensorProto.FLOAT
            and len(constant.dims) > 1
        )

    def _add(self, name: str, values: np.ndarray) -> None:
        from onnx import numpy_helper

        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
            self._graph.initializer.append(self._constants[name])

    def _add_integers(
        self, name: str, weight: str, dtype: str, shape: Collection[int], read: weights.Reader
    ) -> None:
        """Add the integers of a weight; they are computed later if the weight has no values in the graph."""
        from onnx import helper

        if weight in self._readers:
            data_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self._graph.initializer.append(weights.without_values(name, data_type, [*shape]))
            self._readers[name] = read
        else:
            self._add(name, read())

    def _reader(self, weight: str) -> weights.Reader:
        from onnx import numpy_helper

        return self._readers.get(weight) or functools.partial(numpy_helper.to_array, self._constants[weight])


def quantised(
    model: Any,
    readers: Readers | None,
    quantization: Callable[[Any, Readers], WeightQuantization],
    folded: Collection[str] = ("Gather", "Transpose"),
) -> Any:
    """Return a graph with quantised weights.

    Args:
        model: an `onnx.ModelProto` of float32, which is not changed.
        readers: the functions that read the values of weights that have none in the model, by name; those of quantised
            weights take their place.
        quantization: a class of quantisations.
        folded: the operations on weights whose results are quantised as weights of their own.

    Returns:
        A new `onnx.ModelProto`.
    """
    copy, readers = type(model)(), {} if readers is None else readers
    copy.CopyFrom(model)
    _fold_weights(copy.graph, readers, folded)
    quantization(copy, readers).apply()
    graph_traversal.remove_unused(copy.graph)
    for graph in graph_traversal.graphs(copy.graph):
        del graph.value_info[:]  # some of their shapes may be wrong in loop bodies
    for name in readers.keys() - {constant.name for constant in copy.graph.initializer}:
        del readers[name]
    return copy


def _fold_weights(graph: Any, readers: Readers, operations: Collection[str]) -> None:
    """Replace transpositions and rows of weights by other weights, as only products with constants are quantised."""
    from onnx import helper, numpy_helper

    graphs = [*graph_traversal.graphs(graph)]
    constants = {constant.name: constant for subgraph in graphs for constant in subgraph.initializer}
    candidates = [
        (subgraph, node) for subgraph in graphs for node in subgraph.node if node.op_type in operations
    ]
    for subgraph, node in candidates:
        if not constants.keys() >= {*node.input}:
            continue
        weight, name = constants[node.input[0]], node.output[0]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Transpose":
            fold = functools.partial(np.transpose, axes=attributes.get("perm"))
        else:
            indices = numpy_helper.to_array(constants[node.input[1]])
            fold = functools.partial(np.take, indices=indices, axis=attributes.get("axis", 0))
        if weight.name in readers:
            shape = fold(np.broadcast_to(np.int8(0), weight.dims)).shape
            constants[name] = weights.without_values(name, weight.data_type, shape)
            readers[name] = functools.partial(_folded, readers[weight.name], fold)
        else:
            folded = np.ascontiguousarray(fold(numpy_helper.to_array(weight)))
            constants[name] = numpy_helper.from_array(folded, name)
        graph.initializer.append(constants[name])
        subgraph.node.remove(node)
    graph_traversal.remove_unused(graph)


def _folded(read: weights.Reader, fold: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(fold(read()))
