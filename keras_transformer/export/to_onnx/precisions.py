"""Conversion of ONNX graphs to float16, int8 and int4."""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal, weights
from keras_transformer.export.to_onnx.block_quantization import to_int4
from keras_transformer.export.to_onnx.quantization import to_int8

Readers = dict[str, weights.Reader]

# Operations that stay in float32: in float16 they overflow, or round too coarsely.
_FLOAT32 = frozenset(
    {
        "Cos",
        "CumSum",
        "Exp",
        "Log",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceMean",
        "ReduceSum",
        "ScatterElements",
        "Sin",
        "Sqrt",
        "TopK",
    }
)
_BLOCK = 2**22  # values that are converted at a time


def to_float16(model: Any, readers: Readers | None = None) -> Any:
    """Convert a graph to float16, except for inputs, outputs, positions, sums and the variance of normalisations.

    Args:
        model: an `onnx.ModelProto` in float32, which is not changed.
        readers: the functions that read the values of weights that have none in the model, by name; those of the
            converted weights take their place.

    Returns:
        A new `onnx.ModelProto`.
    """
    from onnx import TensorProto, numpy_helper
    from onnxruntime.transformers import float16

    copy, readers = type(model)(), {} if readers is None else readers
    copy.CopyFrom(model)
    # ONNX Runtime's converter adds casts of values in loop bodies to the main graph. It does not convert float64, so
    # operations that stay in float32 are changed to float64 before the conversion, and back afterwards.
    widened = _Widening(copy, readers).names
    for constant in copy.graph.initializer:  # the converter would read their values
        if constant.name in readers and constant.data_type == TensorProto.FLOAT:
            constant.data_type = TensorProto.FLOAT16
            readers[constant.name] = functools.partial(_float16, readers[constant.name])
    copy = float16.convert_float_to_float16(copy, keep_io_types=True, op_block_list=[])
    inputs = [node for node in copy.graph.node if node.name.startswith("graph_input_cast")]
    rounded = {node.output[0]: node.input[0] for node in inputs}
    for node in graph_traversal.nodes(copy.graph):
        if node.name in widened:
            node.attribute[0].i = TensorProto.FLOAT
            node.input[0] = rounded.get(node.input[0], node.input[0])  # an input before it is cast to float16
    for constant in copy.graph.initializer:
        if constant.name in widened:
            values = numpy_helper.to_array(constant).astype("float32")
            constant.CopyFrom(numpy_helper.from_array(values, constant.name))
    for node in reversed(inputs):  # the converter adds them at the end
        copy.graph.node.remove(node)
        copy.graph.node.insert(0, node)
    _remove_shapes(copy)
    graph_traversal.remove_unused(copy.graph)
    _keep(readers, {constant.name for constant in copy.graph.initializer})
    return copy


def _float16(read: weights.Reader) -> np.ndarray:
    """Return values as ONNX Runtime's converter converts them, block by block: it takes many times their memory."""
    from onnxruntime.transformers import float16

    values = read()
    flat, converted = values.reshape(-1), np.empty(values.size, np.float16)
    for start in range(0, values.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        converted[block] = float16.convert_np_to_float16(flat[block])
    return converted.reshape(values.shape)


def _keep(readers: Readers, names: Collection[str]) -> None:
    """Remove the functions of weights that have other names."""
    for name in readers.keys() - names:
        del readers[name]


CONVERTERS = {"float16": to_float16, "int8": to_int8, "int4": to_int4}


class _Widening:
    """The change to float64 of the operations that stay in float32.

    Args:
        model: an `onnx.ModelProto`, which is changed.
        readers: the functions that read the values of weights that have none in the model, by name.

    Attributes:
        names: the names of the casts to float64 and of the constants in float64.
    """

    def __init__(self, model: Any, readers: Readers) -> None:
        self.names: set[str] = set()
        self._readers = readers
        self._graph = model.graph
        self._types = _types(model)
        self._constants = {
            constant.name: constant
            for graph in graph_traversal.graphs(model.graph)
            for constant in graph.initializer
        }
        self._wide: dict[str, str] = {}  # the names of values in float64, by their names in float32
        sensitive = _sensitive(model, self._types, readers)
        for graph in graph_traversal.graphs(model.graph):  # enclosing graphs first
            casts: dict[str, str] = {}
            changed: list[Any] = []
            for node in graph.node:
                if sensitive.isdisjoint(node.output):
                    changed.append(node)
                else:
                    changed += self._widened(node, casts)
            graph_traversal.replace_nodes(graph, changed)

    def _widened(self, node: Any, casts: dict[str, str]) -> list[Any]:
        """Return a node in float64 with casts of its inputs, unless they are in `casts`, and of its outputs."""
        from onnx import TensorProto

        before, after = [], []
        for place, name in enumerate(node.input):
            if self._is_float(name):
                if name not in self._wide and name not in casts and not self._has_constant(name):
                    casts[name] = f"{name}_float32_{len(self.names)}"
                    before.append(_cast(name, casts[name], TensorProto.DOUBLE))
                    self.names.add(before[-1].name)
                node.input[place] = self._wide.get(name) or casts[name]
        for place, name in enumerate(node.output):
            if self._is_float(name):
                node.output[place] = self._wide[name] = f"{name}_float32"
                after.append(_cast(self._wide[name], name, TensorProto.FLOAT))
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT:
            node.attribute[0].i = TensorProto.DOUBLE
            node.name = f"{node.output[0]}_made"
            self.names.add(node.name)
        return [*before, node, *after]

    def _has_constant(self, name: str) -> bool:
        """Return whether a value is a constant; if so, add its copy in float64."""
        from onnx import numpy_helper

        if name not in self._constants:
            return False
        self._wide[name] = f"{name}_float32"
        is_detached = name in self._readers
        values = self._readers[name]() if is_detached else numpy_helper.to_array(self._constants[name])
        self._graph.initializer.append(numpy_helper.from_array(values.astype("float64"), self._wide[name]))
        self.names.add(self._wide[name])
        return True

    def _is_float(self, name: str) -> bool:
        from onnx import TensorProto

        return self._types.get(name) == TensorProto.FLOAT


def _cast(source: str, target: str, to: int) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [source], [target], f"{target}_cast", to=to)


def _sensitive(model: Any, types: dict[str, int], weight_names: Collection[str]) -> set[str]:
    """Return the outputs of nodes that stay in float32.

    They are `_FLOAT32`, squares, the computation of angles, casts from float64, such as of the energies of audio, what
    computes integers from integers, such as sizes, whose numbers float16 does not hold, and the draws of sampling: of
    the noise, float16 holds 1,024 values between 1/2 and 1, and of low temperatures none.
    """
    from onnx import TensorProto

    nodes = [*graph_traversal.nodes(model.graph)]
    producers = {name: node for node in nodes for name in node.output}
    sensitive = {
        name
        for node in nodes
        if node.op_type in _FLOAT32
        or (node.op_type == "Mul" and node.input[0] == node.input[1])
        or (node.op_type == "Cast" and types.get(node.input[0]) == TensorProto.DOUBLE)
        for name in node.output
    }
    remaining = [node for node in nodes if node.op_type in ("Sin", "Cos")]
    while remaining:
        for name in remaining.pop().input:
            if name in producers and name not in sensitive and not graph_traversal.inner(producers[name]):
                sensitive.update(producers[name].output)
                remaining.append(producers[name])
    for node in nodes:
        if node.op_type == "Log":
            sensitive |= _spectrogram(node, producers, weight_names)
    constants = {item.name for graph in graph_traversal.graphs(model.graph) for item in graph.initializer}
    return sensitive | _sizes(nodes, types, constants) | _draws(nodes, types)


def _draws(nodes: Sequence[Any], types: Mapping[str, int]) -> set[str]:
    """Return the outputs of nodes that compute from the noise and the temperature of sampling, or compare them."""
    from onnx import TensorProto

    computed, found = {"noise", "temperature"}, set[str]()
    for node in nodes:
        if not graph_traversal.inner(node) and not computed.isdisjoint(node.input):
            found.update(node.output)
            computed.update(name for name in node.output if types.get(name) == TensorProto.FLOAT)
    return found


def _spectrogram(logarithm: Any, producers: Mapping[str, Any], weight_names: Collection[str]) -> set[str]:
    """Return the values that a logarithm is computed from, none if weights are among them: it is not of features."""
    found: set[str] = set()
    remaining = [*logarithm.input]
    while remaining:
        name = remaining.pop()
        if name in weight_names or (name in producers and graph_traversal.inner(producers[name])):
            return set()
        if name in producers and name not in found:
            found.update(producers[name].output)
            remaining += producers[name].input
    return found if weight_names else set()


def _sizes(nodes: Sequence[Any], types: Mapping[str, int], constants: Collection[str]) -> set[str]:
    """Return the outputs of nodes that compute integers from integers by floats, such as tf2onnx's maximum of sizes.

    Args:
        nodes: the nodes of a graph in their order.
        types: the element types of values.
        constants: the names of constants.
    """
    from onnx import TensorProto

    integers = (TensorProto.INT32, TensorProto.INT64)
    made: dict[str, Any] = {}  # the nodes of floats that integers and constants determine
    remaining = []
    for node in nodes:
        floats = [name for name in node.input if types.get(name) == TensorProto.FLOAT]
        if node.op_type == "Cast" and types.get(node.output[0]) in integers:
            remaining += [node] if floats and floats[0] in made else []
        elif node.op_type == "Cast" and types.get(node.input[0]) in integers:
            made[node.output[0]] = node
        elif not made.keys().isdisjoint(floats) and all(name in made or name in constants for name in floats):
            made |= dict.fromkeys(node.output, node)
    found: set[str] = set()
    while remaining:
        node = remaining.pop()
        found.update(node.output)
        remaining += [made[name] for name in node.input if name in made and name not in found]
    return found


def _types(model: Any) -> dict[str, int]:
    """Return the element type of each value."""
    from onnx import shape_inference

    types: dict[str, int] = {}
    for graph in graph_traversal.graphs(shape_inference.infer_shapes(model).graph):
        for value in [*graph.input, *graph.value_info, *graph.output]:
            types[value.name] = value.type.tensor_type.elem_type
        types |= {constant.name: constant.data_type for constant in graph.initializer}
    return types


def _remove_shapes(model: Any) -> None:
    """Remove inferred types and shapes, some of which converters leave wrong in loop bodies."""
    for graph in graph_traversal.graphs(model.graph):
        del graph.value_info[:]
