"""Optimisation of loops in ONNX graphs: fewer loop variables and hoisted invariants, with equal outputs."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes, inner, rename

_MAX_SHARED_SIZE = 4096  # elements of a constant that is compared with others
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


def set_scalar_shapes(graph: Any) -> None:
    """Set the shapes of the iteration number and the condition in loop bodies, which ONNX Runtime reads."""
    for node in graph.node:
        if node.op_type == "Loop":
            (body,) = inner(node)
            for value in body.input[:2]:
                value.type.tensor_type.shape.SetInParent()


def hoist_invariants(graph: Any) -> None:
    """Replace loop variables that the body does not change by values of the enclosing graph."""
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = inner(node)
        kept = {output.name for output in graph.output}
        renamed_inside: dict[str, str] = {}
        renamed_outside: dict[str, str] = {}
        copies = {
            identity.output[0]: identity.input[0] for identity in body.node if identity.op_type == "Identity"
        }
        for number in reversed(range(len(node.input) - 2)):
            inside, outside = body.input[2 + number].name, node.input[2 + number]
            returned = body.output[1 + number].name
            others = [output.name for place, output in enumerate(body.output) if place != 1 + number]
            if copies.get(returned, returned) != inside or inside in others or node.output[number] in kept:
                continue
            renamed_inside[inside] = renamed_outside[node.output[number]] = outside
            del body.input[2 + number], body.output[1 + number], node.input[2 + number], node.output[number]
        rename(body, renamed_inside)
        rename(graph, renamed_outside)


def share_constants(graph: Any) -> None:
    """Share small constants that are equal."""
    from onnx import numpy_helper

    first: dict[tuple[Any, ...], str] = {}
    renamed: dict[str, str] = {}
    for constant in graph.initializer:
        if math.prod(constant.dims) > _MAX_SHARED_SIZE:
            continue
        values = numpy_helper.to_array(constant)
        same = first.setdefault((values.dtype.str, values.shape, values.tobytes()), constant.name)
        if same != constant.name:
            renamed[constant.name] = same
    rename(graph, renamed)


def compute_before_loops(graph: Any, weights: Collection[str]) -> None:
    """Hoist nodes out of loops that do not depend on loop variables.

    Nodes that depend on constants only stay in a loop around another one (see `place_constants`).

    Args:
        graph: an `onnx.GraphProto`, which is changed.
        weights: the names of the main graph's inputs that become constants.
    """
    outside = {*weights, *(constant.name for constant in graph.initializer)}
    for place, node in reversed([*enumerate(graph.node)]):
        if node.op_type != "Loop":
            continue
        (body,) = inner(node)
        constants = {*outside, *(constant.name for constant in body.initializer)}
        keeps_constants = _has_loop(body)
        changing = {value.name for value in body.input}
        returned = {value.name for value in body.output}
        moved = []
        for inner_node in body.node:
            is_constant = constants.issuperset(inner_node.input) and not inner(inner_node)
            if is_constant:
                constants.update(inner_node.output)
            if (
                inner(inner_node)
                or inner_node.op_type in _RANDOM
                or not changing.isdisjoint(inner_node.input)
                or not returned.isdisjoint(inner_node.output)
                or (keeps_constants and is_constant)
            ):
                changing.update(inner_node.output)
            else:
                moved.append(inner_node)
        needed = {name for inner_node in moved for name in inner_node.input}
        hoisted = [constant for constant in body.initializer if constant.name in needed]
        graph.initializer.extend(hoisted)
        for constant in hoisted:
            body.initializer.remove(constant)
        for inner_node in reversed(moved):
            graph.node.insert(place, inner_node)
            body.node.remove(inner_node)


def _has_loop(graph: Any) -> bool:
    return any(node.op_type == "Loop" for node in graph.node)


def place_constants(graph: Any) -> None:
    """Move the constants that only a loop around another one reads into its body.

    ONNX Runtime packs a constant that an operation multiplies if it is of the operation's graph or of the one directly
    around it.
    """
    for node in graph.node:
        if node.op_type != "Loop" or not _has_loop(inner(node)[0]):
            continue
        (body,) = inner(node)
        read_outside = {name for other in graph.node if other is not node for name in _read(other)}
        read_outside |= {*node.input, *(value.name for value in [*graph.input, *graph.output])}
        read_inside = {name for inner_node in graph_traversal.nodes(body) for name in inner_node.input}
        moved = [
            constant
            for constant in graph.initializer
            if constant.name in read_inside and constant.name not in read_outside
        ]
        body.initializer.extend(moved)
        for constant in moved:
            graph.initializer.remove(constant)


def _read(node: Any) -> set[str]:
    """Return the names of the values that a node and its subgraphs read."""
    return {
        *node.input,
        *(name for body in inner(node) for each in graph_traversal.nodes(body) for name in each.input),
    }


def select_before_loops(graph: Any, shapes: Shapes) -> None:
    """Where(c, MatMul(p, v), 0) → MatMul(p, Where(c, v, 0)) in loops that change neither c nor v.

    The values of attention to a memory are then selected once, for samples whose memory is all padding. c must have one
    element for each matrix.
    """
    from onnx import helper

    for body, changing in _bodies(graph):
        producers, readers_of = graph_traversal.Producers(body), graph_traversal.readers(body)
        for node in [node for node in body.node if node.op_type == "Where"]:
            condition, selected, zero = node.input
            product = producers.get(selected, "MatMul")
            if product is None or len(readers_of[selected]) != 1 or graph_traversal.constant(body, zero) != 0:
                continue
            values = product.input[1]
            sizes = shapes.get(condition, [])
            if len(sizes) != len(shapes.get(values, [None])) or sizes[-2:] != [1, 1]:
                continue
            if not changing.isdisjoint([condition, values]):
                continue
            name = f"{node.output[0]}_values"
            shapes[name] = shapes[values]
            select = helper.make_node("Where", [condition, values, zero], [name], name)
            place = [*body.node].index(node)
            body.node.insert(place, select)
            node.op_type = "MatMul"
            node.input[:] = [product.input[0], name]
            body.node.remove(product)


def merge_branches(graph: Any) -> None:
    """If(a){b; If(c){d} else {e}} else {f} → b; If(a ∧ c){d} else {If(a){e} else {f}}.

    ONNX Runtime packs a constant that an operation of d multiplies if it is of d or of the graph directly around it.
    The nodes b are computed whatever a is: they must be few, as those before the prompt is read.
    """
    for each in [*graph_traversal.graphs(graph)]:
        nodes: list[Any] = []
        for node in each.node:
            merged = _merged(node) if node.op_type == "If" else None
            if merged is None:
                nodes.append(node)
            else:
                each.initializer.extend(_branches(node)["then_branch"].initializer)
                nodes += merged
        if len(nodes) > len(each.node):
            graph_traversal.replace_nodes(each, nodes)


def _merged(node: Any) -> list[Any] | None:
    """Return the nodes that take the place of an If, None if its first branch does not end in another If."""
    from onnx import helper

    first, other = _branches(node)["then_branch"], _branches(node)["else_branch"]
    before, (last,) = [*first.node][:-1], [*first.node][-1:] or (None,)
    returned = [output.name for output in first.output]
    if last is None or last.op_type != "If" or [*last.output] != returned or any(map(inner, before)):
        return None
    both, names = f"{node.output[0]}_both", [f"{name}_otherwise" for name in node.output]
    outputs = [type(output).FromString(output.SerializeToString()) for output in other.output]
    for output, name in zip(outputs, names, strict=True):
        output.name = name
    branches = {"then_branch": _branches(last)["else_branch"], "else_branch": other}
    otherwise = helper.make_node("If", [node.input[0]], names, f"{names[0]}_if", **branches)
    return [
        *before,
        helper.make_node("And", [node.input[0], last.input[0]], [both], both),
        helper.make_node(
            "If",
            [both],
            node.output,
            node.name,
            then_branch=_branches(last)["then_branch"],
            else_branch=helper.make_graph([otherwise], f"{names[0]}_branch", [], outputs),
        ),
    ]


def _branches(node: Any) -> dict[str, Any]:
    return {attribute.name: attribute.g for attribute in node.attribute}


def _bodies(graph: Any) -> Iterator[tuple[Any, set[str]]]:
    """Yield the body of each loop and the names of the values in it that depend on loop variables."""
    for node in graph.node:
        if node.op_type != "Loop":
            continue
        (body,) = inner(node)
        changing = {value.name for value in body.input}
        for inner_node in body.node:
            if (
                inner(inner_node)
                or inner_node.op_type in _RANDOM
                or not changing.isdisjoint(inner_node.input)
            ):
                changing.update(inner_node.output)
        yield body, changing


def merge_equal_outputs(graph: Any) -> None:
    """Remove duplicate outputs of branches and duplicate loop variables, such as the positions in every layer's cache.

    Outputs of branches are equal if each branch returns equal values, loop variables if they have equal initial values
    and updates.
    """
    kept = {output.name for output in graph.output}
    renamed: dict[str, str] = {}
    for node in graph.node:
        same = {name: first for name, first in _same_outputs(node, renamed).items() if name not in kept}
        places = {name: place for place, name in enumerate(node.output)}
        for body in inner(node) if node.op_type == "Loop" else ():
            variables = [value.name for value in body.input[2:]]
            rename(body, {variables[places[name]]: variables[places[first]] for name, first in same.items()})
        for name in reversed(same):
            place = places[name]
            for body in inner(node):
                if node.op_type == "Loop":
                    del body.input[2 + place], body.output[1 + place]
                else:
                    del body.output[place]
            if node.op_type == "Loop":
                del node.input[2 + place]
            del node.output[place]
        renamed |= same
    rename(graph, renamed)


def compute_once(graph: Any, is_main: bool = False) -> None:
    """Eliminate common subexpressions; the outputs of the main graph keep their names."""
    same = _same_values(graph, {})
    rename(graph, same)
    returned = {output.name for output in graph.output}
    produced = {name for node in graph.node for name in node.output}
    for output in () if is_main else graph.output:
        earlier = same.get(output.name)
        if earlier in produced and earlier not in returned:
            returned.add(earlier)
            output.name = earlier


def _same_values(graph: Any, same: Mapping[str, str]) -> dict[str, str]:
    """Map values to the earlier values that they equal, given the equalities in `same`; a copy equals its source."""
    same, first = dict(same), {}
    for node in graph.node:
        if node.op_type in _RANDOM:
            continue
        if inner(node):
            same |= _same_outputs(node, same)
            continue
        if node.op_type == "Identity":
            same[node.output[0]] = same.get(node.input[0], node.input[0])
            continue
        settings = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        inputs = (same.get(name, name) for name in node.input)
        key = (node.domain, node.op_type, len(node.output), *inputs, *settings)
        earlier = first.setdefault(key, node)
        if earlier is not node:
            same |= dict(zip(node.output, earlier.output, strict=True))
    return same


def _same_outputs(node: Any, same: Mapping[str, str]) -> dict[str, str]:
    """Map the outputs of a loop or of branches to the earlier outputs that they equal."""
    if node.op_type == "Loop":
        classes = _equal_variables(node, same)
    elif node.op_type == "If":
        classes = [*zip(*(_returned(branch, same) for branch in inner(node)), strict=True)]
    else:
        return {}
    first: dict[Any, str] = {}
    pairs = ((name, first.setdefault(group, name)) for name, group in zip(node.output, classes, strict=False))
    return {name: earlier for name, earlier in pairs if name and name != earlier}


def _equal_variables(loop: Any, same: Mapping[str, str]) -> list[Any]:
    """Return a class for each loop variable, the same for variables that are always equal."""
    (body,) = inner(loop)
    inside = [value.name for value in body.input[2:]]
    classes: list[Any] = [
        same.get(name, name) for name in loop.input[2:]
    ]  # at first, by their initial values
    while True:
        leaders = dict(reversed([*zip(classes, inside, strict=True)]))
        equal = {name: leaders[group] for group, name in zip(classes, inside, strict=True)}
        returned = _returned(body, {**same, **equal})[1 : 1 + len(inside)]
        finer = [*zip(classes, returned, strict=True)]
        if len({*finer}) == len({*classes}):
            return classes
        classes = finer


def _returned(graph: Any, same: Mapping[str, str]) -> list[str]:
    """Return the outputs of a body or branch, equal ones by one name."""
    same = _same_values(graph, same)
    return [same.get(output.name, output.name) for output in graph.output]
