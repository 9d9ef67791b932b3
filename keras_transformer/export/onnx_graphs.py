"""Walking through ONNX graphs."""

from collections.abc import Iterator
from typing import Any


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
