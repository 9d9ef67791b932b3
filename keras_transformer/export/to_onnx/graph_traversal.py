"""Walking through ONNX graphs."""

import collections
import math
from collections.abc import Iterator
from typing import Any

Shapes = dict[str, list[int | None]]
"""What is known of the shapes of values, by name."""


def nodes(graph: Any) -> Iterator[Any]:
    """Every node, those of loop bodies and branches included."""
    for each in graphs(graph):
        yield from each.node


def graphs(graph: Any) -> Iterator[Any]:
    """A graph, and those inside it."""
    yield graph
    for node in graph.node:
        for each in inner(node):
            yield from graphs(each)


def inner(node: Any) -> list[Any]:
    """Loop bodies and branches of a node."""
    from onnx import AttributeProto

    graphs = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    return graphs + [graph for attribute in node.attribute for graph in attribute.graphs]


def rename(graph: Any, old: str, new: str) -> None:
    """Make readers of one value read another."""
    for node in nodes(graph):
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def readers(graph: Any) -> dict[str, list[Any]]:
    """What reads each value: nodes, those of loop bodies and branches too, and outputs of graphs."""
    found = collections.defaultdict(list)
    for node in nodes(graph):
        for name in node.input:
            found[name].append(node)
    for each in graphs(graph):
        for output in each.output:
            found[output.name].append(output)
    return found


def constant(graph: Any, name: str) -> float | None:
    """The number that a constant of the graph is."""
    from onnx import numpy_helper

    found = [each for each in graph.initializer if each.name == name and math.prod(each.dims) == 1]
    return float(numpy_helper.to_array(found[0]).item()) if found else None
