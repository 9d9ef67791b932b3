"""Traversal of ONNX graphs."""

import collections
import math
from collections.abc import Iterator
from typing import Any

Shapes = dict[str, list[int | None]]
"""The known sizes of values, by name; None for unknown sizes."""


def nodes(graph: Any) -> Iterator[Any]:
    """Yield every node, including those of loop bodies and branches."""
    for each in graphs(graph):
        yield from each.node


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and its subgraphs."""
    yield graph
    for node in graph.node:
        for each in inner(node):
            yield from graphs(each)


def inner(node: Any) -> list[Any]:
    """Return the loop bodies and branches of a node."""
    from onnx import AttributeProto

    graphs = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    return graphs + [graph for attribute in node.attribute for graph in attribute.graphs]


def rename(graph: Any, old: str, new: str) -> None:
    """Replace a value by another in all inputs of nodes."""
    for node in nodes(graph):
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def readers(graph: Any) -> dict[str, list[Any]]:
    """Return the readers of each value: nodes, including those of loop bodies and branches, and graph outputs."""
    found = collections.defaultdict(list)
    for node in nodes(graph):
        for name in node.input:
            found[name].append(node)
    for each in graphs(graph):
        for output in each.output:
            found[output.name].append(output)
    return found


def constant(graph: Any, name: str) -> float | None:
    """Return the value of a scalar constant of the graph."""
    from onnx import numpy_helper

    found = [each for each in graph.initializer if each.name == name and math.prod(each.dims) == 1]
    return float(numpy_helper.to_array(found[0]).item()) if found else None
