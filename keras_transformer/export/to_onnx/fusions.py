"""Fusions of layer normalisation, masked softmax, GELU and the choice of tokens, equal up to rounding."""

from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes

_MASKED = -1e20  # a score that softmax makes 0


def fuse_layer_normalization(graph: Any, shapes: Shapes) -> bool:
    """Replace the operations of Keras' layer normalisation by ONNX's LayerNormalization.

    Keras computes x · s + (β − mean · s) with s = γ / √(variance + ε).
    """
    from onnx import helper

    producer = graph_traversal.Producers(graph).get
    changed = False
    for last in graph.node:
        match = _layer_normalization(last, producer) if last.op_type == "Add" else None
        if match is None:
            continue
        x, gamma, beta, epsilon_name = match
        epsilon, size = graph_traversal.constant(graph, epsilon_name), shapes.get(x, [None])[-1]
        sources = [shape.input[0] if (shape := producer(name, "Reshape")) else name for name in (gamma, beta)]
        vectors = [_as_vector(graph, name, shapes) for name in sources]
        if epsilon is None or size is None or any(shapes.get(name) != [size] for name in vectors):
            continue
        last.op_type = "LayerNormalization"
        last.input[:] = [x, *vectors]
        last.attribute.extend([helper.make_attribute("axis", -1), helper.make_attribute("epsilon", epsilon)])
        changed = True
    return changed


def divide_by_root_mean_square(graph: Any, shapes: Shapes) -> bool:
    """Compute x · r, with r = 1 / √(mean(x · x) + ε), as x / √(mean(x²) + ε), and x · (r · γ) as (x / √(…)) · γ.

    ONNX Runtime fuses the quotient with γ.
    """
    from onnx import numpy_helper

    producers, readers = graph_traversal.Producers(graph), graph_traversal.readers(graph)
    changed = False
    for last in [node for node in graph.node if node.op_type == "Mul"]:
        for x, factor in (last.input, last.input[::-1]):
            scaled = producers.get(factor, "Mul")
            forms = [(last, factor, "")]
            if scaled is not None and len(readers[factor]) == 1 and shapes.get(factor) == shapes.get(x):
                forms += [(scaled, *scaled.input), (scaled, *scaled.input[::-1])]
            for quotient, reciprocal, scale in forms:
                square, root = _root_mean_square(producers, reciprocal, x)
                if square is None:
                    continue
                two = f"{square.output[0]}_two"
                graph.initializer.append(numpy_helper.from_array(np.array(2, "float32"), two))
                square.op_type, square.input[:] = "Pow", [x, two]
                quotient.op_type, quotient.input[:] = "Div", [x, root.output[0]]
                if scale:
                    last.input[:] = [factor, scale]
                changed = True
    return changed


def _root_mean_square(producers: graph_traversal.Producers, name: str, x: str) -> tuple[Any, Any]:
    """Return the nodes of x · x and of the root for a value 1 / √(mean(x · x) + ε), None for others."""
    node = root = producers.get(name, "Reciprocal")
    for operation in ("Sqrt", "Add", "ReduceMean", "Mul"):
        node = None if node is None else producers.get(node.input[0], operation)
        root = node if operation == "Sqrt" else root
    return (None, None) if node is None or [*node.input] != [x, x] else (node, root)


def choose_by_top_k(graph: Any, shapes: Shapes) -> bool:
    """ReduceMin(Where(x = max(x), 0 … V − 1, V − 1)) → TopK(x, 1), the lowest index of the maximum."""
    from onnx import TensorProto, helper, numpy_helper

    producers = graph_traversal.Producers(graph)
    changed = False
    for last in [node for node in graph.node if node.op_type == "ReduceMin"]:
        choice = producers.get(last.input[0], "Where")
        equal = None if choice is None else producers.get(choice.input[0], "Equal")
        if equal is None:
            continue
        x, highest = equal.input
        maximum = producers.get(highest, "ReduceMax", through={"Unsqueeze"})
        size = shapes.get(x, [None])[-1]
        if maximum is None or maximum.input[0] != x or size is None:
            continue
        axis = len(shapes[x]) - 1
        if not all(_reduces_axis(graph, node, axis) for node in (maximum, last)):
            continue
        if not _is_range(graph, choice.input[1], size):
            continue
        if graph_traversal.constant(graph, choice.input[2]) != size - 1:
            continue
        name = last.output[0]
        one, axes = f"{name}_one", f"{name}_axes"
        graph.initializer.append(numpy_helper.from_array(np.array([1], "int64"), one))
        graph.initializer.append(numpy_helper.from_array(np.array([axis], "int64"), axes))
        steps = [
            helper.make_node(
                "TopK", [x, one], [f"{name}_values", f"{name}_indices"], f"{name}_top", axis=axis
            ),
            helper.make_node("Squeeze", [f"{name}_values", axes], [maximum.output[0]], f"{name}_highest"),
            helper.make_node("Squeeze", [f"{name}_indices", axes], [f"{name}_index"], f"{name}_squeezed"),
            helper.make_node("Cast", [f"{name}_index"], [name], f"{name}_cast", to=TensorProto.INT32),
        ]
        place = [*graph.node].index(maximum)
        for node in reversed(steps):
            graph.node.insert(place, node)
        for node in (maximum, last):
            graph.node.remove(node)
        changed = True
    return changed


def sort_indices(graph: Any, _: Shapes) -> bool:
    """−TopK(−float(i)) → TopK(i, largest=0), the lowest of the indices i of a TopK in ascending order."""
    from onnx import helper

    producers, readers = graph_traversal.Producers(graph), graph_traversal.readers(graph)
    renamed: dict[str, str] = {}
    for last in [node for node in graph.node if node.op_type == "Neg"]:
        top = producers.get(last.input[0], "TopK")
        negated = None if top is None else producers.get(top.input[0], "Neg")
        cast = None if negated is None else producers.get(negated.input[0], "Cast")
        if cast is None or not graph_traversal.are_indices(producers, cast.input[0]):
            continue
        if top.output[1] in readers or len(readers[last.input[0]]) > 1:
            continue
        if any(getattr(reader, "op_type", "") != "Cast" for reader in readers[last.output[0]]):
            continue
        top.input[0], top.output[0] = cast.input[0], f"{last.output[0]}_lowest"
        top.attribute.append(helper.make_attribute("largest", 0))
        renamed[last.output[0]] = top.output[0]
    graph_traversal.skip(graph, renamed)
    return bool(renamed)


def gather_selected(graph: Any, shapes: Shapes) -> bool:
    """Where(c, a, b) → GatherND([b, a], c), for constant vectors a and b and conditions c (…, 1).

    ONNX Runtime copies vectors in a fraction of the time in which it selects each of their elements.
    """
    from onnx import TensorProto, helper, numpy_helper

    vectors = {item.name: item for item in graph.initializer if len(item.dims) == 1}
    changed = False
    for node in [node for node in graph.node if node.op_type == "Where"]:
        condition, *chosen = node.input
        sizes = shapes.get(condition, [])
        if not vectors.keys() >= {*chosen} or len(sizes) < 2 or sizes[-1] != 1:
            continue
        one, other = (numpy_helper.to_array(vectors[name]) for name in chosen)
        if one.shape != other.shape or len(one) == 1:
            continue
        table, index = f"{node.output[0]}_table", f"{node.output[0]}_index"
        graph.initializer.append(numpy_helper.from_array(np.stack([other, one]), table))
        cast = helper.make_node("Cast", [condition], [index], index, to=TensorProto.INT64)
        graph.node.insert([*graph.node].index(node), cast)
        node.op_type, node.input[:] = "GatherND", [table, index]
        changed = True
    return changed


def _is_range(graph: Any, name: str, size: int) -> bool:
    """Return whether a value is the constant 0, 1, … size − 1."""
    from onnx import numpy_helper

    values = [numpy_helper.to_array(item) for item in graph.initializer if item.name == name]
    return bool(values) and np.array_equal(values[0], np.arange(size))


def _reduces_axis(graph: Any, node: Any, axis: int) -> bool:
    """Return whether a reduction removes an axis, the last one."""
    keepdims = next((attribute.i for attribute in node.attribute if attribute.name == "keepdims"), 1)
    axes = graph_traversal.constant(graph, node.input[1]) if len(node.input) > 1 else None
    return keepdims == 0 and axes in (-1, axis)


def mask_by_addition(graph: Any, shapes: Shapes) -> bool:
    """Softmax(Where(c, x, −10³⁰)) → Softmax(x + Where(c, 0, −10³⁰)), if the condition broadcasts.

    In ONNX Runtime a broadcast Add is faster than a broadcast Where, and layers share the mask.
    """
    from onnx import helper, numpy_helper

    readers = graph_traversal.readers(graph)
    changed = False
    for node in [*graph.node]:
        if node.op_type != "Where" or {
            getattr(reader, "op_type", None) for reader in readers[node.output[0]]
        } != {"Softmax"}:
            continue
        condition, scores, lowest = node.input
        sizes = [*zip(shapes.get(condition, [])[::-1], shapes.get(scores, [])[::-1], strict=False)]
        number = graph_traversal.constant(graph, lowest)
        if number is None or number > _MASKED or not any(a == 1 != b for a, b in sizes):
            continue
        zero, mask = f"{lowest}_zero", f"{node.output[0]}_mask"
        if zero not in shapes:
            graph.initializer.append(numpy_helper.from_array(np.zeros([], "float32"), zero))
            shapes[zero] = []
        select = helper.make_node("Where", [condition, zero, lowest], [mask], mask)
        graph.node.insert([*graph.node].index(node), select)
        node.op_type = "Add"
        node.input[:] = [scores, mask]
        changed = True
    return changed


def zero_by_multiplication(graph: Any, shapes: Shapes) -> bool:
    """Where(c, MatMul(p, v), 0) → MatMul(p, v) · Where(c, 1, 0), for a condition that is the same for the last axis.

    For a condition that is TensorFlow's `reduce_any` of a mask m, the factor is ReduceMax(m). In ONNX Runtime a
    broadcast Mul is faster than a broadcast Where, and layers share the factor.
    """
    from onnx import helper, numpy_helper

    producers = graph_traversal.Producers(graph)
    changed = False
    for node in [node for node in graph.node if node.op_type == "Where"]:
        condition, product, zero = node.input
        if producers.get(product, "MatMul") is None or graph_traversal.constant(graph, zero) != 0:
            continue
        if shapes.get(condition, [])[-1:] != [1] or shapes.get(product, [1])[-1] == 1:
            continue
        factor, one = f"{node.output[0]}_factor", f"{node.output[0]}_one"
        shapes[factor] = shapes[condition]
        zeros = next(item for item in graph.initializer if item.name == zero)
        total = graph_traversal.sum_of_any(graph, producers, condition)
        if total is not None and producers.get(total.input[0]).attribute[0].i == zeros.data_type:
            new = helper.make_node("ReduceMax", [*total.input], [factor], factor, keepdims=1)
        else:
            ones = np.ones_like(numpy_helper.to_array(zeros))
            graph.initializer.append(numpy_helper.from_array(ones, one))
            new = helper.make_node("Where", [condition, one, zero], [factor], factor)
        graph.node.insert([*graph.node].index(node), new)
        node.op_type = "Mul"
        node.input[:] = [product, factor]
        changed = True
    return changed


def gelu_of_erf(graph: Any, _: Shapes) -> bool:
    """½ x · (1 − erf(−x · √½)) → x · (1 + erf(x / √2)) · ½, which ONNX Runtime fuses with the preceding bias.

    A multiplication by √½ before erf becomes a division, too.
    """
    from onnx import helper, numpy_helper

    producers, scalars = graph_traversal.Producers(graph), graph_traversal.scalars(graph)

    def operands(name: str, operation: str) -> Any:
        """Return the inputs of the node that computes a value, or an empty list if it is another operation."""
        node = producers.get(name, operation)
        return [] if node is None else [*node.input]

    def times(name: str, number: float) -> str | None:
        """Return x if a value is x times a number."""
        for value, factor in zip(operands(name, "Mul"), operands(name, "Mul")[::-1], strict=True):
            if factor in scalars and abs(scalars[factor] - number) < 1e-6:
                return str(value)
        return None

    def is_erfc(name: str, x: str) -> bool:
        one, erf = operands(name, "Sub") or ("", "")
        scaled = times(*operands(erf, "Erf"), 0.5**0.5) if operands(erf, "Erf") else None
        return scalars.get(one) == 1 and scaled is not None and operands(scaled, "Neg") == [x]

    changed = False
    for last in [node for node in graph.node if node.op_type == "Mul"]:
        for half, other in (last.input, last.input[::-1]):
            x = times(half, 0.5)
            if x is None or not is_erfc(other, x):
                continue
            name, place = last.output[0], [*graph.node].index(last)
            dtype = next(
                numpy_helper.to_array(constant).dtype
                for constant in graph.initializer
                if constant.name in operands(half, "Mul")
            )
            numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
            graph.initializer.extend(
                numpy_helper.from_array(np.array(value, dtype), f"{name}_{key}")
                for key, value in numbers.items()
            )
            steps = [
                ("Div", [x, f"{name}_root"], f"{name}_divided"),
                ("Erf", [f"{name}_divided"], f"{name}_erf"),
                ("Add", [f"{name}_erf", f"{name}_one"], f"{name}_added"),
                ("Mul", [x, f"{name}_added"], f"{name}_twice"),
            ]
            for offset, (operation, inputs, output) in enumerate(steps):
                graph.node.insert(place + offset, helper.make_node(operation, inputs, [output], output))
            last.input[:] = [f"{name}_twice", f"{name}_half"]
            changed = True
            break
    for erf in [node for node in graph.node if node.op_type == "Erf"]:
        x = times(erf.input[0], 0.5**0.5)
        if x is None or producers.get(x, "Neg") is not None:
            continue
        (factor,) = {*operands(erf.input[0], "Mul")} - {x}
        root, quotient = f"{erf.output[0]}_root", f"{erf.output[0]}_divided"
        dtype = next(numpy_helper.to_array(each).dtype for each in graph.initializer if each.name == factor)
        graph.initializer.append(numpy_helper.from_array(np.array(2**0.5, dtype), root))
        divided = helper.make_node("Div", [x, root], [quotient], quotient)
        graph.node.insert([*graph.node].index(erf), divided)
        erf.input[:] = [quotient]
        changed = True
    return changed


def _layer_normalization(last: Any, producer: Any) -> tuple[str, str, str, str] | None:
    """Return the names of x, γ, β and ε if `last` is the last addition of a layer normalisation."""
    for scaled, rest in (last.input, last.input[::-1]):
        product, shift = producer(scaled, "Mul"), producer(rest, "Add")
        if product is None or shift is None:
            continue
        x, scale = product.input
        gain, moved = producer(scale, "Mul"), producer(shift.input[0], "Mul")
        negated = producer(moved.input[0], "Neg") if moved is not None else None
        if gain is None or negated is None or moved.input[1] != scale:
            continue
        root = producer(gain.input[0], "Reciprocal")
        root = producer(root.input[0], "Sqrt") if root is not None else None
        spread = producer(root.input[0], "Add") if root is not None else None
        variance = producer(spread.input[0], "ReduceMean") if spread is not None else None
        square = producer(variance.input[0], "Mul") if variance is not None else None
        centred = producer(square.input[0], "Sub") if square is not None else None
        mean = producer(negated.input[0], "ReduceMean")
        if centred is None or mean is None or square.input[0] != square.input[1]:
            continue
        if list(centred.input) == [x, negated.input[0]] and mean.input[0] == x:
            return x, gain.input[1], shift.input[1], spread.input[1]
    return None


def _as_vector(graph: Any, name: str, shapes: Shapes) -> str:
    """Reshape a constant (1, 1, D) to (D,) and return its name; return other names unchanged."""
    from onnx import numpy_helper

    for constant in graph.initializer:
        if constant.name == name and len(constant.dims) > 1 and set(constant.dims[:-1]) == {1}:
            vector = f"{name}_vector"
            if vector not in shapes:
                values = numpy_helper.to_array(constant).reshape(-1)
                graph.initializer.append(numpy_helper.from_array(values, vector))
                shapes[vector] = [len(values)]
            return vector
    return name
