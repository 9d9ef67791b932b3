"""Removal of redundant reshapes, slices, gathers and shape computations, with equal outputs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes
from keras_transformer.export.to_onnx.sizes import is_size

_LOWEST = -1e38  # a bound that no finite logit reaches
_OMITTED_END = 10**9  # tf2onnx's value for an omitted end


def multiply_without_reshaping(graph: Any, shapes: Shapes) -> bool:
    """Reshape(MatMul(Reshape(x), w)) → MatMul(x, w), for the reshapes of TensorFlow's tensordot to two axes."""
    producers = graph_traversal.Producers(graph)
    changed = False
    for last in graph.node:
        product = producers.get(last.input[0], "MatMul") if last.op_type == "Reshape" else None
        if product is None or "Tensordot/MatMul" not in product.name:
            continue
        first = producers.get(product.input[0], "Reshape")
        if first is None:
            continue
        vectors, matrix = shapes.get(first.input[0], []), shapes.get(product.input[1], [])
        if len(vectors) < 3 or len(matrix) != 2 or matrix[0] is None or vectors[-1] != matrix[0]:
            continue
        made = shapes.get(last.output[0], [])
        if len(made) != len(vectors) or made[-1] not in (None, matrix[1]):
            continue
        if any(size not in (None, before) for size, before in zip(made[:-1], vectors[:-1], strict=True)):
            continue  # it reshapes to other axes, such as heads
        last.op_type = "MatMul"
        last.input[:] = [first.input[0], product.input[1]]
        changed = True
    return changed


def reshape_to_known_sizes(graph: Any, shapes: Shapes) -> bool:
    """Reshape(x, computed) → Reshape(x, constant), if at most one size of the result is unknown."""
    from onnx import numpy_helper

    producers = graph_traversal.Producers(graph)
    changed = False
    for node in graph.node:
        if node.op_type != "Reshape" or producers.get(node.input[1]) is None:
            continue
        sizes = shapes.get(node.output[0], [None, None])
        if sizes.count(None) > 1 or 0 in sizes:
            continue
        node.input[1] = f"{node.output[0]}_shape"
        known = np.array([-1 if size is None else size for size in sizes], "int64")
        graph.initializer.append(numpy_helper.from_array(known, node.input[1]))
        changed = True
    return changed


def copy_sizes(graph: Any, _: Shapes) -> bool:
    """Reshape(x, Concat(…, Shape(x)[i], …)) → Reshape(x, […, 0, …]), where size i of the result is Shape(x)[i].

    The size 0 copies the size of the input.
    """
    from onnx import numpy_helper

    producers = graph_traversal.Producers(graph)
    constants = {item.name: item for item in graph.initializer if math.prod(item.dims) < 10}

    def integers(name: str) -> list[int] | None:
        return numpy_helper.to_array(constants[name]).ravel().tolist() if name in constants else None

    def source(name: str, operation: str) -> Any:
        return producers.get(name, operation, through={"Cast"})

    def sizes_of(name: str, data: str, start: int) -> list[int] | None:
        """Return the sizes from axis `start` on, 0 for a size of `data`; None if they are unknown."""
        known = integers(name)
        if known is not None:
            return known
        slice_ = source(name, "Slice")
        shape = source(slice_.input[0], "Shape") if slice_ is not None else None
        if shape is None or shape.input[0] != data or shape.attribute:
            return None
        actual = [integers(value) for value in slice_.input[1:]]
        expected = [start], [start + 1], [0], [1]  # start, end, axis and step
        if any(one != other for one, other in zip(actual, expected, strict=False)):
            return None
        return [0]

    changed = False
    for node in graph.node:
        joined = source(node.input[1], "Concat") if node.op_type == "Reshape" else None
        if joined is None:
            continue
        sizes: list[int] | None = []
        for name in joined.input:
            more = None if sizes is None else sizes_of(name, node.input[0], len(sizes))
            sizes = None if more is None else [*sizes, *more]
        if sizes is None:
            continue
        node.input[1] = f"{node.output[0]}_sizes"
        graph.initializer.append(numpy_helper.from_array(np.array(sizes, "int64"), node.input[1]))
        changed = True
    return changed


def remove_same_reshapes(graph: Any, shapes: Shapes) -> bool:
    """Reshape(x, shape of x) → x, where the shape is a constant; its zeros copy the sizes of x."""
    from onnx import numpy_helper

    constants = {item.name: item for item in graph.initializer if len(item.dims) == 1}
    returned = {output.name for output in graph.output}
    renamed: dict[str, str] = {}
    for node in [node for node in graph.node if node.op_type == "Reshape" and node.input[1] in constants]:
        before = shapes.get(node.input[0], [])
        made = numpy_helper.to_array(constants[node.input[1]]).tolist()
        same = len(made) == len(before) and all(
            size in (0, known) for size, known in zip(made, before, strict=True)
        )
        if same and 0 not in before and node.output[0] not in returned:
            renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
    graph_traversal.skip(graph, renamed)
    return bool(renamed)


def reshape_once(graph: Any, shapes: Shapes) -> bool:
    """Reshape(Reshape(x, a), b) → Reshape(x, b), also with a multiplication by a scalar in between."""
    from onnx import numpy_helper

    producers = graph_traversal.Producers(graph)
    readers = graph_traversal.readers(graph)
    small = {
        item.name: numpy_helper.to_array(item) for item in graph.initializer if math.prod(item.dims) < 10
    }
    changed = False
    for last in graph.node:
        # The size 0 copies the size of the input.
        if last.op_type != "Reshape" or not small.get(last.input[1], np.zeros(1)).all():
            continue
        reader, place = last, 0
        between = producers.get(last.input[0], "Mul")
        if between is not None and len(readers[between.output[0]]) == 1:
            numbers = [shapes.get(name) in ([], [1]) and name in small for name in between.input]
            if numbers.count(True) == 1:
                reader, place = between, numbers.index(False)
        first = producers.get(reader.input[place], "Reshape")
        if first is not None:
            reader.input[place] = first.input[0]
            changed = True
    return changed


def scale_last(graph: Any, shapes: Shapes) -> bool:
    """Reshape(c · x) → c · Reshape(x), and likewise for Transpose; ONNX Runtime fuses the factor with a product."""
    scalars = graph_traversal.scalars(graph)
    multiplications = {node.output[0]: node for node in graph.node if node.op_type == "Mul"}
    readers = graph_traversal.readers(graph)
    moves: dict[str, Any] = {}  # the multiplications that follow values
    for node in [node for node in graph.node if node.op_type in ("Reshape", "Transpose")]:
        scaled = multiplications.get(node.input[0])
        factors = [name for name in getattr(scaled, "input", []) if shapes.get(name) in ([], [1])]
        factors = [name for name in factors if name in scalars]
        if scaled is None or len(factors) != 1 or len(readers[scaled.output[0]]) != 1:
            continue
        (x,) = [name for name in scaled.input if name not in factors]
        result, moved = node.output[0], f"{node.output[0]}_unscaled"
        shapes[moved] = shapes.get(result, [])
        moves.pop(x, None)  # it followed another of these nodes
        multiplications[result] = moves[moved] = multiplications.pop(scaled.output[0])
        scaled.input[:], node.input[0] = [moved, *factors], x
        scaled.output[0], node.output[0] = result, moved
    if moves:
        graph_traversal.place_after(graph, moves)
    return bool(moves)


def remove_lowest_maximum(graph: Any, _: Shapes) -> bool:
    """Max(x, −3 · 10³⁸) → x, which keeps XLA from fusing x with other operations; only −∞ is changed."""
    returned = {output.name for output in graph.output}
    scalars = graph_traversal.scalars(graph)
    renamed: dict[str, str] = {}
    for node in graph.node:
        is_bound = node.op_type == "Max" and len(node.input) == 2 and node.output[0] not in returned
        if is_bound and scalars.get(node.input[1], 0.0) <= _LOWEST:
            renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
    graph_traversal.skip(graph, renamed)
    return bool(renamed)


def remove_factors_of_one(graph: Any, _: Shapes) -> bool:
    """1 · x → x, as of SiLU, x · sigmoid(1 · x)."""
    returned = {output.name for output in graph.output}
    scalars = graph_traversal.scalars(graph)
    ones = {item.name for item in graph.initializer if not item.dims and scalars[item.name] == 1}
    renamed: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Mul" and not ones.isdisjoint(node.input) and node.output[0] not in returned:
            x = node.input[0] if node.input[1] in ones else node.input[1]
            renamed[node.output[0]] = renamed.get(x, x)
    graph_traversal.skip(graph, renamed)
    return bool(renamed)


def remove_full_slices(graph: Any, _: Shapes) -> bool:
    """Slice(x, 0, ∞) → x, as in TensorFlow's x[:, None], which also has an Unsqueeze."""
    from onnx import numpy_helper

    constants = {constant.name: constant for constant in graph.initializer}

    def all_values(name: str, predicate: Callable[[np.ndarray], np.ndarray]) -> bool:
        return name in constants and bool(predicate(numpy_helper.to_array(constants[name])).all())

    full_slices = [
        node
        for node in graph.node
        if node.op_type == "Slice"
        and all_values(node.input[1], lambda starts: starts == 0)
        and all_values(node.input[2], lambda ends: ends >= _OMITTED_END)
        and (len(node.input) < 5 or all_values(node.input[4], lambda steps: steps == 1))
        and node.output[0] not in {output.name for output in graph.output}
    ]
    renamed: dict[str, str] = {}
    for node in full_slices:
        renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
    graph_traversal.skip(graph, renamed)
    return bool(renamed)


def gather_in_rows(graph: Any, shapes: Shapes) -> bool:
    """Reshape(Gather(Reshape(x, [-1, …]), Reshape(b · J + i, [-1]))) → GatherND(x, i), of x (B, J, …), i (B, R).

    GatherElements for x (B, J). If x has other axes, it is reshaped. The result may be reshaped to two axes.
    """
    from onnx import TensorProto, helper, numpy_helper

    producers = graph_traversal.Producers(graph)
    changed = False
    for last in [node for node in graph.node if node.op_type == "Reshape"]:
        gather = producers.get(last.input[0], "Gather")
        first = None if gather is None else producers.get(gather.input[0], "Reshape")
        flat = None if gather is None else producers.get(gather.input[1], "Reshape")
        added = None if flat is None else producers.get(flat.input[0], "Add")
        if first is None or added is None or any(attribute.i for attribute in gather.attribute):
            continue
        x, name = first.input[0], last.output[0]
        made, inner = shapes.get(name, []), shapes.get(first.output[0], [None, None])[1:]
        if len(made) < 2 or None in inner:
            continue
        for rows, index in (added.input, added.input[::-1]):
            size = _row_size(graph, producers, rows)
            picked = [*shapes.get(index, [])[1:], *inner]
            is_flat = len(picked) > 1 and None not in picked and made[1:] == [math.prod(picked)]
            if size is not None and (made[1:] == picked or is_flat):
                break
        else:
            continue
        sizes, steps = shapes.get(x, [None, None])[1:], []
        known = graph_traversal.constant(graph, size)
        if known is None or None in picked:  # then J must be the size of x, and R that of the index
            joined = producers.get(last.input[1], "Concat", through={"Cast"})
            same = joined is not None and is_size(graph, producers, shapes, joined.input[1], index, 1)
            if inner or not same or not is_size(graph, producers, shapes, size, x, 1):
                continue
        elif None in sizes or known * math.prod(inner) % math.prod(sizes):
            continue
        elif sizes != [known, *inner]:
            rows_shape = np.array([-1, known, *inner], "int64")
            shape = numpy_helper.from_array(rows_shape, f"{name}_rows_shape")
            graph.initializer.append(shape)
            steps.append(helper.make_node("Reshape", [x, shape.name], [f"{name}_rows"], f"{name}_rows"))
            x = f"{name}_rows"
        gathered = f"{name}_gathered" if is_flat else name
        if inner:
            axes, integers, indices = f"{name}_axes", f"{name}_integers", f"{name}_indices"
            graph.initializer.append(numpy_helper.from_array(np.array([2], "int64"), axes))
            steps += [
                helper.make_node("Cast", [index], [integers], integers, to=TensorProto.INT64),
                helper.make_node("Unsqueeze", [integers, axes], [indices], indices),
                helper.make_node("GatherND", [x, indices], [gathered], gathered, batch_dims=1),
            ]
        else:
            steps.append(helper.make_node("GatherElements", [x, index], [name], name, axis=1))
        place = [*graph.node].index(last)
        if is_flat:
            last.input[0] = gathered
        else:
            graph.node.remove(last)
        for node in reversed(steps):
            graph.node.insert(place, node)
        changed = True
    return changed


def _row_size(graph: Any, producers: graph_traversal.Producers, name: str) -> str | None:
    """Return the name of J for a value 0, J, 2 · J, … (B, 1), None for others."""
    product = producers.get(name, "Mul")
    counted = None if product is None else producers.get(product.input[0], "Unsqueeze")
    range_ = None if counted is None else producers.get(counted.input[0], "Range", through={"Cast"})
    if range_ is None or [graph_traversal.constant(graph, value) for value in range_.input[::2]] != [0, 1]:
        return None
    return product.input[1]


def cast_once(graph: Any, _: Shapes) -> bool:
    """Cast(Cast(i, int32), t) → Cast(i, t), and i for int64, for the indices i of a TopK or the first of them."""
    from onnx import TensorProto

    producers = graph_traversal.Producers(graph)
    returned = {output.name for output in graph.output}
    changed, renamed = False, {}
    for last in [node for node in graph.node if node.op_type == "Cast"]:
        cast = producers.get(last.input[0], "Cast")
        if cast is None or not graph_traversal.are_indices(producers, cast.input[0]):
            continue
        if last.attribute[0].i == TensorProto.INT64 and last.output[0] not in returned:
            renamed[last.output[0]] = cast.input[0]
        else:
            last.input[0] = cast.input[0]
        changed = True
    graph_traversal.skip(graph, renamed)
    return changed


def squeeze_any_of_one(graph: Any, shapes: Shapes) -> bool:
    """Greater(ReduceSum(Cast(c)), 0) → Squeeze(c), as in TensorFlow's `reduce_any`, along axes of size one."""
    producers = graph_traversal.Producers(graph)
    changed = False
    for last in [node for node in graph.node if node.op_type == "Greater"]:
        total = graph_traversal.sum_of_any(graph, producers, last.output[0])
        if total is None:
            continue
        conditions = producers.get(total.input[0]).input[0]
        axis, sizes = graph_traversal.constant(graph, total.input[1]), shapes.get(conditions, [])
        if axis is None or not -len(sizes) <= axis < len(sizes) or sizes[int(axis)] != 1:
            continue
        if any(attribute.name == "keepdims" and attribute.i for attribute in total.attribute):
            continue
        last.op_type = "Squeeze"
        last.input[:] = [conditions, total.input[1]]
        changed = True
    return changed


def gather_negative_indices(graph: Any, shapes: Shapes) -> bool:
    """Gather(x, Where(i < 0, i + size, i)) → Gather(x, i), as Gather counts negative indices from the end."""
    producers = graph_traversal.Producers(graph)

    changed = False
    for node in graph.node:
        choice = producers.get(node.input[1], "Where") if node.op_type == "Gather" else None
        if choice is None:
            continue
        index = choice.input[2]
        negative, fixed = producers.get(choice.input[0], "Less"), producers.get(choice.input[1], "Add")
        if negative is None or fixed is None:
            continue
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if (
            list(negative.input[:1]) == [index] == list(fixed.input[:1])
            and graph_traversal.constant(graph, negative.input[1]) == 0
            and is_size(graph, producers, shapes, fixed.input[1], node.input[0], axis)
        ):
            node.input[1] = index
            changed = True
    return changed
