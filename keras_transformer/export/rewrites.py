"""What ONNX Runtime runs faster, put in place of what TensorFlow's operations convert to; the answers stay the same."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Shapes = dict[str, list[int | None]]


def erfc(graph: Any, node: Any, *_: Any) -> None:
    """Erfc, which TensorFlow's exact GELU consists of and tf2onnx does not know, as 1 − Erf."""
    from onnx import helper

    node.type, node.domain = "Erf", ""
    dtype = helper.tensor_dtype_to_np_dtype(graph.get_dtype(node.output[0]))
    one = graph.make_const(f"{node.name}_one", np.array(1, dtype))
    graph.insert_new_node_on_output("Sub", node.output[0], inputs=[one.output[0], node.output[0]])


def select(graph: Any, node: Any, *_: Any) -> None:
    """SelectV2 as Where; tf2onnx makes six nodes of it, of which two multiply by zero what may be NaN."""
    from onnx import TensorProto

    if graph.get_dtype(node.output[0]) != TensorProto.BOOL:
        node.type, node.domain = "Where", ""
        return
    # ONNX Runtime has no Where of booleans.
    condition, yes, no = node.input
    otherwise = graph.make_node("Not", [condition]).output[0]
    chosen = [graph.make_node("And", pair).output[0] for pair in ([condition, yes], [otherwise, no])]
    outputs, shape = node.output, graph.get_shape(node.output[0])
    graph.remove_node(node.name)
    graph.make_node("Or", chosen, outputs=outputs, name=node.name, dtypes=[TensorProto.BOOL], shapes=[shape])


HANDLERS = {"Erfc": (erfc, []), "SelectV2": (select, [])}
"""For tf2onnx: what becomes of TensorFlow's operations, where its own answer will not do."""


def simplify(model: Any) -> Any:
    """The same model of fewer and larger operations.

    - What a loop carries round unchanged, weights above all, it reads from outside: ONNX Runtime then packs weights
      once, and copies nothing at each step.
    - A Dense layer's product needs no reshaping to two axes and back.
    - Layer normalisation is one operation.
    """
    from onnx import shape_inference

    for graph in [*_graphs(model.graph)][::-1]:  # inner loops first
        _read_invariants_from_outside(graph)
    while True:
        shapes = _shapes(shape_inference.infer_shapes(model).graph)
        changed = [
            rewrite(graph, shapes)
            for graph in _graphs(model.graph)
            for rewrite in (_multiply_without_reshaping, _normalize_at_once)
        ]
        if not any(changed):
            break
    _remove_unused(model.graph)
    return model


def nodes(graph: Any) -> Iterator[Any]:
    """Every node, those of loop bodies and branches included."""
    for each in _graphs(graph):
        yield from each.node


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph, and those inside it."""
    yield graph
    for node in graph.node:
        for inner in _inner(node):
            yield from _graphs(inner)


def _inner(node: Any) -> list[Any]:
    """Loop bodies and branches of a node."""
    from onnx import AttributeProto

    graphs = [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    return graphs + [graph for attribute in node.attribute for graph in attribute.graphs]


def _read_invariants_from_outside(graph: Any) -> None:
    """Drop from the graph's loops what their bodies return as they got it."""
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = _inner(node)
        kept = {output.name for output in graph.output}
        copies = {each.output[0]: each.input[0] for each in body.node if each.op_type == "Identity"}
        for number in reversed(range(len(node.input) - 2)):
            inside, outside = body.input[2 + number].name, node.input[2 + number]
            returned = body.output[1 + number].name
            others = [output.name for place, output in enumerate(body.output) if place != 1 + number]
            if copies.get(returned, returned) != inside or inside in others or node.output[number] in kept:
                continue
            _rename(body, inside, outside)
            _rename(graph, node.output[number], outside)
            del body.input[2 + number], body.output[1 + number], node.input[2 + number], node.output[number]


def _rename(graph: Any, old: str, new: str) -> None:
    """Make readers of one value read another."""
    for node in nodes(graph):
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = new


def _shapes(graph: Any) -> Shapes:
    """What is known of the shapes of values and constants."""
    known: Shapes = {}
    for each in _graphs(graph):
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
    from onnx import numpy_helper

    found = [numpy_helper.to_array(each) for each in graph.initializer if each.name == name]
    return float(found[0].item()) if found and found[0].size == 1 else None


def _remove_unused(graph: Any) -> None:
    """Drop nodes and constants that nothing reads any more."""
    while True:
        read = {name for node in nodes(graph) for name in node.input}
        read |= {output.name for each in _graphs(graph) for output in each.output}
        dead = 0
        for each in [*_graphs(graph)]:
            for node in [node for node in each.node if read.isdisjoint(node.output)]:
                each.node.remove(node)
                dead += 1
        if not dead:
            break
    for each in _graphs(graph):
        for constant in [constant for constant in each.initializer if constant.name not in read]:
            each.initializer.remove(constant)
