"""Simplification of the computation of sizes, with equal results.

TensorFlow computes sizes in int32, ONNX in int64, so that converted graphs cast them back and forth.
"""

from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes, rename

# The number of inputs of each operation that can be sizes, None for all.
_OPERATIONS = {
    **dict.fromkeys(["Slice", "Split", "Squeeze", "Unsqueeze"], 1),
    **dict.fromkeys(["Add", "Concat", "Div", "Max", "Min", "Mul", "Sub"]),
}


def is_size(
    graph: Any, producers: graph_traversal.Producers, shapes: Shapes, name: str, data: str, axis: int
) -> bool:
    """Return whether a value is the size of `data` along an axis."""
    known = graph_traversal.constant(graph, name)
    if known is not None:
        return shapes.get(data, [None] * (axis + 1))[axis] == known
    slice_ = producers.get(name, "Slice", through={"Cast", "Squeeze", "Unsqueeze"})
    shape = producers.get(slice_.input[0], "Shape", through={"Cast"}) if slice_ is not None else None
    if shape is None or shape.input[0] != data or shape.attribute:
        return False
    return [graph_traversal.constant(graph, value) for value in slice_.input[1:3]] == [axis, axis + 1]


def compute_in_int64(graph: Any) -> None:
    """Compute sizes in int64: f(Cast(Shape(x), int32)) → Cast(f(Shape(x)), int32), for operations f.

    A later cast of the result to int64 is removed.
    """
    from onnx import TensorProto, helper, numpy_helper

    constants = {item.name: item for item in graph.initializer if item.data_type == TensorProto.INT32}
    returned = {output.name for output in graph.output}
    sizes: set[str] = set()
    in_int64: dict[str, str] = {}  # from values in int32 to the same in int64
    renamed: dict[str, str] = {}  # from removed casts to what they cast
    place = -1
    for node in [*graph.node]:
        place += 1
        if not renamed.keys().isdisjoint(node.input):
            node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type == "Shape":
            sizes.update(node.output)
        elif node.op_type == "Cast":
            node.input[0] = in_int64.get(node.input[0], node.input[0])
            if node.input[0] not in sizes:
                continue
            if node.attribute[0].i == TensorProto.INT32:
                in_int64[node.output[0]] = node.input[0]
            elif node.attribute[0].i == TensorProto.INT64 and node.output[0] not in returned:
                renamed[node.output[0]] = node.input[0]
                del graph.node[place]
                place -= 1
        elif node.op_type in _OPERATIONS:
            values = [*node.input][: _OPERATIONS[node.op_type]]
            if in_int64.keys().isdisjoint(values) or not {*in_int64, *constants}.issuperset(values):
                continue
            for name in [name for name in dict.fromkeys(values) if name not in in_int64]:
                in_int64[name] = f"{name}_int64"
                value = numpy_helper.to_array(constants[name]).astype(np.int64)
                graph.initializer.append(numpy_helper.from_array(value, in_int64[name]))
            node.input[: len(values)] = [in_int64[name] for name in values]
            for number, name in enumerate(node.output):
                node.output[number] = in_int64[name] = f"{name}_int64"
                place += 1
                cast = helper.make_node("Cast", [in_int64[name]], [name], name, to=TensorProto.INT32)
                graph.node.insert(place, cast)
            sizes.update(node.output)
    rename(graph, renamed)  # in loop bodies and branches


def slice_shapes(graph: Any) -> None:
    """Slice(Shape(x), start, end) → Shape(x, start, end)."""
    from onnx import helper, numpy_helper

    producers = graph_traversal.Producers(graph)
    constants = {item.name: item for item in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Slice"]:
        shape = producers.get(node.input[0], "Shape")
        if shape is None or shape.attribute or not {*constants}.issuperset(node.input[1:]):
            continue
        (start,), (end,), *rest = (numpy_helper.to_array(constants[name]).tolist() for name in node.input[1:])
        if rest[1:] not in ([], [[1]]):  # the steps
            continue
        node.op_type = "Shape"
        node.input[:] = shape.input
        node.attribute.extend(
            helper.make_attribute(name, place) for name, place in (("start", start), ("end", end))
        )
