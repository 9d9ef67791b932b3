"""What ONNX Runtime runs faster, put in place of what TensorFlow's operations convert to; the answers stay the same."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_transformer.export import loops
from keras_transformer.export.onnx_graphs import graphs, nodes, rename

Shapes = dict[str, list[int | None]]

_ENDLESS = 10**9  # what tf2onnx puts for an end that is not given


def simplify(model: Any) -> Any:
    """The same model of fewer and larger operations.

    - What a loop carries round unchanged, weights above all, it reads from outside: ONNX Runtime then packs weights
      once, and copies nothing at each step. What is computed from that alone is computed once, before the loop.
      What two of its values would be alike, as the positions in every layer's cache, it carries once.
    - A Dense layer's product needs no reshaping to two axes and back.
    - Layer normalisation is one operation.
    - A reshape is told what is known of its result, and a lookup counts negative indices from the end by itself:
      nothing asks for shapes to compute either.
    - What is computed twice, from equal constants too, is computed once.
    """
    from onnx import shape_inference

    for graph in [*graphs(model.graph)][::-1]:  # inner loops first
        loops.read_invariants_from_outside(graph)
        loops.share_constants(graph)
    while True:
        shapes = _shapes(shape_inference.infer_shapes(model).graph)
        changed = [rewrite(graph, shapes) for graph in graphs(model.graph) for rewrite in _REWRITES]
        if not any(changed):
            break
    for graph in [*graphs(model.graph)]:
        loops.compute_once(graph)
        loops.carry_equals_once(graph)
    for graph in [*graphs(model.graph)][::-1]:
        loops.compute_before_loops(graph)
    _remove_unused(model.graph)
    return model


def _shapes(graph: Any) -> Shapes:
    """What is known of the shapes of values and constants."""
    known: Shapes = {}
    for each in graphs(graph):
        for value in [*each.input, *each.value_info, *each.output]:
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                known[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
        known |= {constant.name: list(constant.dims) for constant in each.initializer}
    return known


def _multiply_without_reshaping(graph: Any, shapes: Shapes) -> bool:
    """Reshape(MatMul(Reshape(x), w)) → MatMul(x, w), where TensorFlow's tensordot has reshaped to two axes and back."""
    made_by = {name: node for node in graph.node for name in node.output}
    changed = False
    for last in graph.node:
        product = made_by.get(last.input[0]) if last.op_type == "Reshape" else None
        if product is None or product.op_type != "MatMul" or not product.name.endswith("Tensordot/MatMul"):
            continue
        first = made_by.get(product.input[0])
        if first is None or first.op_type != "Reshape":
            continue
        vectors, matrix = shapes.get(first.input[0], []), shapes.get(product.input[1], [])
        if len(vectors) < 3 or len(matrix) != 2 or matrix[0] is None or vectors[-1] != matrix[0]:
            continue
        made = shapes.get(last.output[0], [])
        if len(made) != len(vectors) or made[-1] not in (
            None,
            matrix[1],
        ):  # it makes heads of the last axis, too
            continue
        last.op_type = "MatMul"
        last.input[:] = [first.input[0], product.input[1]]
        changed = True
    return changed


def _reshape_to_what_is_known(graph: Any, shapes: Shapes) -> bool:
    """Reshape(x, computed) → Reshape(x, constant), where no more than one size of the result is unknown."""
    from onnx import numpy_helper

    made_by = {name: node for node in graph.node for name in node.output}
    changed = False
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in made_by:
            continue
        sizes = shapes.get(node.output[0], [None, None])
        if sizes.count(None) > 1 or 0 in sizes:
            continue
        node.input[1] = f"{node.output[0]}_shape"
        known = np.array([-1 if size is None else size for size in sizes], "int64")
        graph.initializer.append(numpy_helper.from_array(known, node.input[1]))
        changed = True
    return changed


def _skip_whole_slices(graph: Any, _: Shapes) -> bool:
    """Slice(x, 0, ∞) → x: what remains of TensorFlow's x[:, None] beside an Unsqueeze."""
    from onnx import numpy_helper

    constants = {constant.name: constant for constant in graph.initializer}

    def every(name: str, is_so: Callable[[np.ndarray], np.ndarray]) -> bool:
        return name in constants and bool(is_so(numpy_helper.to_array(constants[name])).all())

    whole = [
        node
        for node in graph.node
        if node.op_type == "Slice"
        and every(node.input[1], lambda starts: starts == 0)
        and every(node.input[2], lambda ends: ends >= _ENDLESS)
        and (len(node.input) < 5 or every(node.input[4], lambda steps: steps == 1))
        and node.output[0] not in {output.name for output in graph.output}
    ]
    for node in whole:
        rename(graph, node.output[0], node.input[0])
        graph.node.remove(node)
    return bool(whole)


def _look_up_as_given(graph: Any, shapes: Shapes) -> bool:
    """Gather(x, Where(i < 0, i + size, i)) → Gather(x, i), which counts negative indices from the end."""
    made_by = {name: node for node in graph.node for name in node.output}

    def origin(name: str, *through: str) -> Any:
        node = made_by.get(name)
        while node is not None and node.op_type in through:
            node = made_by.get(node.input[0])
        return node

    def is_size(name: str, data: str, axis: int) -> bool:
        """Whether a value is the size of `data` along an axis."""
        known = _constant(graph, name)
        if known is not None:
            return shapes.get(data, [None] * (axis + 1))[axis] == known
        part = origin(name, "Cast", "Squeeze")
        shape = origin(part.input[0], "Cast") if part is not None and part.op_type == "Slice" else None
        if shape is None or shape.op_type != "Shape" or shape.input[0] != data:
            return False
        return _constant(graph, part.input[1]) == axis

    changed = False
    for node in graph.node:
        choice = origin(node.input[1]) if node.op_type == "Gather" else None
        if choice is None or choice.op_type != "Where":
            continue
        index = choice.input[2]
        negative, fixed = origin(choice.input[0]), origin(choice.input[1])
        if negative is None or fixed is None or (negative.op_type, fixed.op_type) != ("Less", "Add"):
            continue
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if (
            list(negative.input[:1]) == [index] == list(fixed.input[:1])
            and _constant(graph, negative.input[1]) == 0
            and is_size(fixed.input[1], node.input[0], axis)
        ):
            node.input[1] = index
            changed = True
    return changed


def _normalize_at_once(graph: Any, shapes: Shapes) -> bool:
    """Layer normalisation as Keras computes it → LayerNormalization.

    x · s + (β − mean · s) with s = γ / √(variance + ε).
    """
    from onnx import helper

    made_by = {name: node for node in graph.node for name in node.output}

    def origin(name: str, operation: str) -> Any:
        node = made_by.get(name)
        return node if node is not None and node.op_type == operation else None

    changed = False
    for last in graph.node:
        match = _layer_normalization(last, origin) if last.op_type == "Add" else None
        if match is None:
            continue
        x, gamma, beta, epsilon_name = match
        epsilon, size = _constant(graph, epsilon_name), shapes.get(x, [None])[-1]
        sources = [shape.input[0] if (shape := origin(name, "Reshape")) else name for name in (gamma, beta)]
        vectors = [_as_vector(graph, name, shapes) for name in sources]
        if epsilon is None or size is None or any(shapes.get(name) != [size] for name in vectors):
            continue
        last.op_type = "LayerNormalization"
        last.input[:] = [x, *vectors]
        last.attribute.extend([helper.make_attribute("axis", -1), helper.make_attribute("epsilon", epsilon)])
        changed = True
    return changed


def _layer_normalization(last: Any, origin: Any) -> tuple[str, str, str, str] | None:
    """The names of x, γ, β and ε, where `last` is the last addition of a layer normalisation."""
    for scaled, rest in (last.input, last.input[::-1]):
        product, shift = origin(scaled, "Mul"), origin(rest, "Add")
        if product is None or shift is None:
            continue
        x, scale = product.input
        gain, moved = origin(scale, "Mul"), origin(shift.input[0], "Mul")
        negated = origin(moved.input[0], "Neg") if moved is not None else None
        if gain is None or negated is None or moved.input[1] != scale:
            continue
        root = origin(gain.input[0], "Reciprocal")
        root = origin(root.input[0], "Sqrt") if root is not None else None
        spread = origin(root.input[0], "Add") if root is not None else None
        variance = origin(spread.input[0], "ReduceMean") if spread is not None else None
        square = origin(variance.input[0], "Mul") if variance is not None else None
        centred = origin(square.input[0], "Sub") if square is not None else None
        mean = origin(negated.input[0], "ReduceMean")
        if centred is None or mean is None or square.input[0] != square.input[1]:
            continue
        if list(centred.input) == [x, negated.input[0]] and mean.input[0] == x:
            return x, gain.input[1], shift.input[1], spread.input[1]
    return None


def _as_vector(graph: Any, name: str, shapes: Shapes) -> str:
    """The name of a constant (1, 1, D) with its one axis alone; else the name itself."""
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


def _constant(graph: Any, name: str) -> float | None:
    """The number that a constant of the graph is."""
    from onnx import numpy_helper

    found = [each for each in graph.initializer if each.name == name and math.prod(each.dims) == 1]
    return float(numpy_helper.to_array(found[0]).item()) if found else None


_REWRITES = (
    _multiply_without_reshaping,
    _reshape_to_what_is_known,
    _skip_whole_slices,
    _look_up_as_given,
    _normalize_at_once,
)


def _remove_unused(graph: Any) -> None:
    """Drop nodes and constants that nothing reads any more."""
    while True:
        read = {name for node in nodes(graph) for name in node.input}
        read |= {output.name for each in graphs(graph) for output in each.output}
        dead = 0
        for each in [*graphs(graph)]:
            for node in [node for node in each.node if read.isdisjoint(node.output)]:
                each.node.remove(node)
                dead += 1
        if not dead:
            break
    for each in graphs(graph):
        for constant in [constant for constant in each.initializer if constant.name not in read]:
            each.initializer.remove(constant)
