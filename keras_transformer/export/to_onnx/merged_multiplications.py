"""Products of one factor with several matrices as one product, with equal outputs."""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes

_WIDEST = 3  # times as many columns as rows: those of queries, keys and values


def merge_multiplications(model: Any, shapes: Shapes, weights: Sequence[str]) -> None:
    """x·U, x·V → Split(x·[U V]), for the matrices of a loop, such as those of queries, keys and values.

    A step then starts fewer products, each of which would round x to 8 bits in int4. Where the same products are also
    outside the loop, they are merged, too, so that a weight is stored once. Wide matrices, such as those of gated
    feed-forward networks, stay: they gain less, and the parts of their products take time to copy where there are many
    rows.

    Args:
        model: an `onnx.ModelProto`, which is changed.
        shapes: the known shapes of its values.
        weights: the names of the inputs that become constants, in the order in which they are joined.
    """
    from onnx import helper, numpy_helper

    joined: dict[str, list[str]] = {}
    sizes: dict[str, list[int | None]] = {}
    merged = _merged(model.graph, shapes, weights)
    for graph in graph_traversal.graphs(model.graph):
        nodes: list[Any] = []
        for group in _by_factor(graph, merged):
            if len(group) == 1:
                nodes += group
                continue
            multiplications = sorted(group, key=lambda node: weights.index(node.input[1]))
            matrices = [node.input[1] for node in multiplications]
            columns = [shapes[name][1] for name in matrices]
            matrix, parts = "+".join(matrices), "_".join(map(str, ["columns", *columns]))
            joined[matrix], sizes[parts] = matrices, columns
            product, outputs = (
                f"{multiplications[0].output[0]}_merged",
                [node.output[0] for node in multiplications],
            )
            nodes += [
                helper.make_node("MatMul", [multiplications[0].input[0], matrix], [product], product),
                helper.make_node("Split", [product, parts], outputs, f"{product}_split", axis=-1),
            ]
        graph_traversal.replace_nodes(graph, nodes)
    for matrix, matrices in joined.items():
        model.graph.node.insert(0, helper.make_node("Concat", matrices, [matrix], matrix, axis=1))
    for name, columns in sizes.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(columns, "int64"), name))


def _merged(graph: Any, shapes: Shapes, weights: Sequence[str]) -> set[str]:
    """Return the matrices that are multiplied by one factor in a loop, and by one factor wherever they are read."""
    matrices = {name for name in weights if len(shapes.get(name, [])) == 2}
    for node in graph_traversal.nodes(graph):
        matrices.difference_update(node.input[:1] if node.op_type == "MatMul" else node.input)
    groups: dict[str, set[frozenset[str]]] = collections.defaultdict(set)
    in_loops: set[str] = set()
    for subgraph, is_in_loop in _graphs(graph):
        for multiplications in _by_factor(subgraph, matrices):
            group = (
                frozenset(node.input[1] for node in multiplications if node.op_type == "MatMul") & matrices
            )
            for name in group:
                groups[name].add(group)
            in_loops |= group if is_in_loop else set()
    return {
        name
        for name, found in groups.items()
        if name in in_loops and len(found) == 1 and _is_narrow([shapes[each] for each in next(iter(found))])
    }


def _is_narrow(sizes: Sequence[Sequence[Any]]) -> bool:
    """Return whether matrices (rows, columns) have few columns together."""
    return bool(sum(columns for _, columns in sizes) <= _WIDEST * sizes[0][0])


def _by_factor(graph: Any, matrices: set[str]) -> list[list[Any]]:
    """Return the nodes of a graph in their order, the products of one factor with `matrices` together."""
    found: dict[tuple[bool, str], list[Any]] = {}
    for node in graph.node:
        is_product = node.op_type == "MatMul" and node.input[1] in matrices
        found.setdefault((is_product, node.input[0] if is_product else node.output[0]), []).append(node)
    return [*found.values()]


def _graphs(graph: Any, is_in_loop: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield a graph and its subgraphs, and whether they are in a loop."""
    yield graph, is_in_loop
    for node in graph.node:
        for subgraph in graph_traversal.inner(node):
            yield from _graphs(subgraph, is_in_loop or node.op_type == "Loop")
