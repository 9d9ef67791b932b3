"""Traversal of ONNX graphs."""

import collections
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

# The operations that return booleans.
_CONDITIONS = {"And", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not", "Or"}

_WITH_GRAPHS = {"If", "Loop", "Scan", "SequenceMap"}

Shapes = dict[str, list[int | None]]
"""The known sizes of values, by name; None for unknown sizes."""


def nodes(graph: Any) -> Iterator[Any]:
    """Yield every node, including those of loop bodies and branches."""
    for subgraph in graphs(graph):
        yield from subgraph.node


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and its subgraphs."""
    yield graph
    for node in graph.node:
        for subgraph in inner(node):
            yield from graphs(subgraph)


def inner(node: Any) -> list[Any]:
    """Return the loop bodies and branches of a node."""
    if node.op_type not in _WITH_GRAPHS:  # most nodes, whose attributes take long to read
        return []
    from onnx import AttributeProto

    graphs = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    return graphs + [graph for attribute in node.attribute for graph in attribute.graphs]


def import_domain(model: Any, domain: str) -> None:
    """Let a model use the operations of another domain."""
    if domain not in {opset.domain for opset in model.opset_import}:
        model.opset_import.add(domain=domain, version=1)


def rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename values, from old to new names, in the inputs of all nodes.

    It walks the whole graph: collect names, and rename them once.
    """
    for node in nodes(graph) if names else ():
        if not names.keys().isdisjoint(node.input):
            node.input[:] = [names.get(name, name) for name in node.input]


def skip(graph: Any, renamed: Mapping[str, str]) -> None:
    """Remove the nodes whose first output has another name, and let others read that value."""
    rename(graph, renamed)
    _remove(graph.node, [place for place, node in enumerate(graph.node) if node.output[0] in renamed])


def place_after(graph: Any, moves: Mapping[str, Any]) -> None:
    """Move nodes of a graph behind those that compute values, given by the values."""
    moved = {node.output[0] for node in moves.values()}
    order = []
    for node in graph.node:
        if node.output[0] not in moved:
            order.append(node)
            order += [moves[name] for name in node.output if name in moves]
    replace_nodes(graph, order)


def replace_nodes(graph: Any, new: Sequence[Any]) -> None:
    """Replace the nodes of a graph; they are copied, as some of the new ones are its own."""
    copies = [type(node).FromString(node.SerializeToString()) for node in new]
    del graph.node[:]
    graph.node.extend(copies)


def readers(graph: Any) -> dict[str, list[Any]]:
    """Return the readers of each value: nodes, including those of loop bodies and branches, and graph outputs."""
    readers_of = collections.defaultdict(list)
    for node in nodes(graph):
        for name in node.input:
            readers_of[name].append(node)
    for subgraph in graphs(graph):
        for output in subgraph.output:
            readers_of[output.name].append(output)
    return readers_of


class Producers:
    """The nodes of a graph that compute its values.

    Args:
        graph: an `onnx.GraphProto`. Nodes that are added later are not included.
    """

    def __init__(self, graph: Any) -> None:
        self._nodes = {name: node for node in graph.node for name in node.output}

    def get(self, name: str, operation: str | None = None, through: Collection[str] = ()) -> Any:
        """Return the node that computes a value.

        Args:
            name: the value.
            operation: the required operation; None for any.
            through: operations to skip, by following their first input.

        Returns:
            The node; None if the value is an input or a constant, or the node has another operation.
        """
        node = self._nodes.get(name)
        while node is not None and node.op_type in through:
            node = self._nodes.get(node.input[0])
        return node if node is not None and operation in (None, node.op_type) else None


def scalars(graph: Any) -> dict[str, float]:
    """Return the values of the scalar constants of the graph, by name."""
    from onnx import numpy_helper

    constants = (item for item in graph.initializer if math.prod(item.dims) == 1)
    return {item.name: float(numpy_helper.to_array(item).item()) for item in constants}


def vectors(graph: Any) -> dict[str, list[Any]]:
    """Return the values of the constants of the graph with one axis and few elements, such as sizes, by name."""
    from onnx import numpy_helper

    constants = (item for item in graph.initializer if len(item.dims) == 1 and item.dims[0] < 10)
    return {item.name: numpy_helper.to_array(item).tolist() for item in constants}


def constant(graph: Any, name: str) -> float | None:
    """Return the value of a scalar constant of the graph, None for other values."""
    from onnx import numpy_helper

    scalars = [item for item in graph.initializer if item.name == name and math.prod(item.dims) == 1]
    return float(numpy_helper.to_array(scalars[0]).item()) if scalars else None


def are_indices(producers: Producers, name: str) -> bool:
    """Return whether a value is the indices of a TopK, in int64, or the first of such indices in their order."""
    top = producers.get(name, "TopK")
    return top is not None and (name == top.output[1] or are_indices(producers, top.input[0]))


def sum_of_any(graph: Any, producers: Producers, name: str) -> Any:
    """Return the ReduceSum of Greater(ReduceSum(Cast(c)), 0), as in TensorFlow's `reduce_any` of conditions c.

    Returns:
        The node, whose inputs are Cast(c) and the axes; None if the value is computed in another way.
    """
    greater = producers.get(name, "Greater")
    total = None if greater is None else producers.get(greater.input[0], "ReduceSum")
    cast = None if total is None or len(total.input) < 2 else producers.get(total.input[0], "Cast")
    condition = None if cast is None else producers.get(cast.input[0], through={"Unsqueeze"})
    if condition is None or condition.op_type not in _CONDITIONS or constant(graph, greater.input[1]) != 0:
        return None
    return total


def sort(graph: Any) -> None:
    """Sort the nodes of a graph so that each follows those whose values it and its subgraphs read."""
    remaining = {name for node in graph.node for name in node.output if name}
    waiting, order = [*graph.node], []
    while waiting:
        later = []
        for node in waiting:
            read = {
                *node.input,
                *(name for body in inner(node) for each in nodes(body) for name in each.input),
            }
            read |= {output.name for body in inner(node) for each in graphs(body) for output in each.output}
            if remaining.isdisjoint(read):
                order.append(node)
                remaining.difference_update(node.output)
            else:
                later.append(node)
        waiting = later
    replace_nodes(graph, order)


def remove_unused(graph: Any) -> None:
    """Remove unused nodes and constants."""
    while True:
        read = {name for node in nodes(graph) for name in node.input}
        read |= {output.name for subgraph in graphs(graph) for output in subgraph.output}
        dead = 0
        for subgraph in [*graphs(graph)]:
            unused = [place for place, node in enumerate(subgraph.node) if read.isdisjoint(node.output)]
            _remove(subgraph.node, unused)
            dead += len(unused)
        if not dead:
            break
    for subgraph in graphs(graph):
        constants = subgraph.initializer
        _remove(constants, [place for place, constant in enumerate(constants) if constant.name not in read])


def _remove(messages: Any, places: Sequence[int]) -> None:
    """Remove messages from a repeated field by their places, as its method `remove` compares all before them."""
    for place in reversed(places):
        del messages[place]
