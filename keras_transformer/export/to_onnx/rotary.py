"""Fusion of rotary positions to ONNX Runtime's RotaryEmbedding, equal up to rounding."""

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes

DOMAIN = "com.microsoft"


class _Rotation(NamedTuple):
    """The rotation of heads x (B, T, N, H) by angles (B, T, H / 2).

    Attributes:
        heads: x.
        joined: x with its heads joined, (B, T, N · H), or "".
        cosines: cos of the angles.
        sines: sin of the angles.
        sizes: N and H.
    """

    heads: str
    joined: str
    cosines: str
    sines: str
    sizes: tuple[int, int]


def fuse_rotations(model: Any, shapes: Shapes) -> None:
    """[x₁ cos − x₂ sin, x₂ cos + x₁ sin] → RotaryEmbedding(x, cos, sin), of the halves x₁ and x₂ of each head.

    The operation takes the rows of a table by positions. The angles of a batch are the table here, and the positions
    are the places of its rows, so that they need not be known before.

    Args:
        model: an `onnx.ModelProto`, which is changed.
        shapes: the known shapes of its values, to which those of the results are added.
    """
    for graph in graph_traversal.graphs(model.graph):
        producers = graph_traversal.Producers(graph)
        matches = {
            node.output[0]: match
            for node in graph.node
            if node.op_type == "Concat" and (match := _match(node, producers, shapes)) is not None
        }
        nodes: list[Any] = []
        tables: dict[tuple[str, str], list[str]] = {}
        for node in graph.node:
            match = matches.get(node.output[0]) if node.output else None
            if match is None:
                nodes.append(node)
                continue
            waves = match.cosines, match.sines
            if waves not in tables:
                tables[waves] = [f"{node.output[0]}_{name}" for name in ("places", "cosines", "sines")]
                nodes += _tables(graph, match, *tables[waves])
            nodes += _rotated(graph, node.output[0], match, tables[waves])
        if matches:
            graph_traversal.replace_nodes(graph, nodes)
            graph_traversal.import_domain(model, DOMAIN)


def _match(concat: Any, producers: graph_traversal.Producers, shapes: Shapes) -> _Rotation | None:
    """Return the rotation whose halves a node joins, None for other nodes."""
    first, second = (
        (producers.get(concat.input[0], "Sub"), producers.get(concat.input[1], "Add"))
        if len(concat.input) == 2
        else (None, None)
    )
    if first is None or second is None:
        return None
    multiplied = [producers.get(name, "Mul") for name in (*first.input, *second.input)]
    if None in multiplied:
        return None
    (x_1, cosines), (x_2, sines) = multiplied[0].input, multiplied[1].input
    if [[*each.input] for each in multiplied[2:]] != [[x_2, cosines], [x_1, sines]]:
        return None
    halves = [producers.get(name, "Slice") for name in (x_1, x_2)]
    waves = [producers.get(name, "Unsqueeze") for name in (cosines, sines)]
    if None in halves or None in waves or halves[0].input[0] != halves[1].input[0]:
        return None
    heads, angles = halves[0].input[0], [wave.input[0] for wave in waves]
    sizes = shapes.get(heads, [])
    if len(sizes) != 4 or None in sizes[2:] or shapes.get(x_1, [None])[-1] != sizes[3] / 2:
        return None
    if any(len(shape := shapes.get(name, [])) != 3 or shape[0] == 1 for name in angles):
        return None  # one row for the whole batch
    split = producers.get(heads, "Reshape")
    is_split = split is not None and shapes.get(split.input[0], [])[2:] == [sizes[2] * sizes[3]]
    return _Rotation(heads, split.input[0] if is_split else "", *angles, (sizes[2], sizes[3]))


def _tables(graph: Any, match: _Rotation, places: str, cosines: str, sines: str) -> list[Any]:
    """Return the nodes that compute the places (B, T) of angles, and tables (B · T, H / 2) of their waves."""
    from onnx import helper

    size = _constant(graph, "rotary_table", [-1, match.sizes[1] // 2])
    zero, one = (_constant(graph, f"rotary_{number}", number) for number in (0, 1))
    shape, count, numbers = (f"{places}_{name}" for name in ("shape", "count", "range"))
    return [
        helper.make_node("Shape", [match.cosines], [shape], shape, start=0, end=2),
        helper.make_node("ReduceProd", [shape], [count], count, keepdims=0),
        helper.make_node("Range", [zero, count, one], [numbers], numbers),
        helper.make_node("Reshape", [numbers, shape], [places], places),
        helper.make_node("Reshape", [match.cosines, size], [cosines], cosines),
        helper.make_node("Reshape", [match.sines, size], [sines], sines),
    ]


def _rotated(graph: Any, name: str, match: _Rotation, tables: list[str]) -> list[Any]:
    """Return the nodes that rotate heads, (B, T, N, H)."""
    from onnx import TensorProto, helper

    heads, size = match.sizes
    joined, rotated = match.joined or f"{name}_joined", f"{name}_rotated"
    together = _constant(graph, f"rotary_{heads * size}", [0, 0, heads * size])
    apart = _constant(graph, f"rotary_{heads}_{size}", [0, 0, heads, size])
    # ONNX does not know the type of the result, from which it infers those of later values.
    shape = [None, None, heads * size]
    graph.value_info.append(helper.make_tensor_value_info(rotated, TensorProto.FLOAT, shape))
    nodes = [
        helper.make_node("RotaryEmbedding", [joined, *tables], [rotated], rotated, domain=DOMAIN),
        helper.make_node("Reshape", [rotated, apart], [name], f"{name}_heads"),
    ]
    return (
        nodes
        if match.joined
        else [helper.make_node("Reshape", [match.heads, together], [joined], joined), *nodes]
    )


def _constant(graph: Any, name: str, values: Any) -> str:
    """Return the name of a constant of integers, which is added unless the graph has it."""
    from onnx import numpy_helper

    if name not in {constant.name for constant in graph.initializer}:
        graph.initializer.append(numpy_helper.from_array(np.array(values, "int64"), name))
    return name
