"""Removal of the reshapes between groups of heads and heads in the attention of decoding steps, with equal outputs."""

import math
from typing import Any

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes


def mask_groups(graph: Any, shapes: Shapes) -> bool:
    """Reshape(Softmax(Reshape(x) + m)) → Softmax(x + m), for scores x (B, K, G, S) of G heads in each of K groups.

    The reshapes give (B, K · G, 1, S) and x's shape again; the mask m (B, 1, 1, S) is the same for all heads.
    """
    producers, readers = graph_traversal.Producers(graph), graph_traversal.readers(graph)
    vectors = graph_traversal.vectors(graph)
    renamed: dict[str, str] = {}
    for softmax in [node for node in graph.node if node.op_type == "Softmax"]:
        added = producers.get(softmax.input[0], "Add")
        last = _only_reshape(readers[softmax.output[0]])
        for scores, mask in () if added is None or last is None else (added.input, added.input[::-1]):
            first = producers.get(scores, "Reshape")
            if first is None or any(0 not in vectors.get(node.input[1], [])[::3] for node in (first, last)):
                continue  # it may not keep B and S
            groups, heads, restored, masked = (
                shapes.get(name, []) for name in (first.input[0], scores, last.output[0], mask)
            )
            if any(len(sizes) != 4 for sizes in (groups, heads, restored, masked)) or None in groups[1:3]:
                continue
            if heads[1:3] != [math.prod(groups[1:3]), 1] or restored[1:3] != groups[1:3]:
                continue
            if masked[1:3] != [1, 1]:
                continue
            added.input[:] = [first.input[0], mask]
            shapes |= dict.fromkeys((added.output[0], softmax.output[0]), groups)
            renamed[last.output[0]] = softmax.output[0]
            break
    graph_traversal.skip(graph, renamed)
    return bool(renamed)


def zero_groups(graph: Any, shapes: Shapes) -> bool:
    """Reshape(Where(c, Reshape(x), 0)) → Reshape(Where(c, x, 0)), for a condition c (B, 1, …) of each sample."""
    producers, readers = graph_traversal.Producers(graph), graph_traversal.readers(graph)
    vectors = graph_traversal.vectors(graph)
    changed = False
    for node in [node for node in graph.node if node.op_type == "Where"]:
        condition, values, zero = node.input
        first, last = producers.get(values, "Reshape"), _only_reshape(readers[node.output[0]])
        if first is None or last is None or 0 in vectors.get(last.input[1], [0])[1:]:
            continue  # it may copy sizes of heads
        before, after = (shapes.get(name, []) for name in (first.input[0], values))
        if len(before) != len(after) or None in (*before[1:], *after[1:]):
            continue
        if math.prod(before[1:]) != math.prod(after[1:]) or {*shapes.get(condition, [])[1:]} != {1}:
            continue
        if len(shapes[condition]) != len(before) or graph_traversal.constant(graph, zero) != 0:
            continue
        node.input[1] = first.input[0]
        shapes[node.output[0]] = before
        changed = True
    return changed


def _only_reshape(readers: list[Any]) -> Any:
    """Return the only reader of a value if it is a Reshape, None otherwise."""
    is_reshape = [getattr(reader, "op_type", "") for reader in readers] == ["Reshape"]
    return readers[0] if is_reshape else None
