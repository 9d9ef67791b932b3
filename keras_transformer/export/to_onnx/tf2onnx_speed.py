"""Changes of Keras and tf2onnx during a conversion, which takes a fraction of the time with them."""

import contextlib
import functools
import itertools
import os
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# The inputs and outputs of graphs, operations that TensorFlow changes after it created them, and the lists of loops, of
# which tf2onnx expects one for each loop.
_NOT_SHARED = (
    *("Placeholder", "Identity", "If", "StatelessIf", "While", "StatelessWhile", "NoOp"),
    *("TensorListReserve", "TensorListFromTensor", "EmptyTensorList"),
)

_REORDERED = {"Add", "AddV2", "Sub", "Mul", "Div", "RealDiv"}


@contextlib.contextmanager
def _patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes, given as (owner, name, value), for the duration of a block."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield


@contextlib.contextmanager
def one_operation_per_multiplication() -> Iterator[None]:
    """Let Keras multiply by a matrix in one operation.

    `keras.ops.matmul` reshapes tensors of three axes to matrices, in 27 operations for unknown sizes: two fifths of the
    operations of a decoder, whose conversion takes as much longer.
    """
    tensordot = tf.tensordot

    def multiply(a: Any, b: Any, axes: Any, name: str | None = None) -> Any:
        if axes == [[-1], [0]] and len(b.shape) == 2:
            return tf.matmul(a, b, name=name)
        return tensordot(a, b, axes, name)

    with _patched((tf, "tensordot", multiply)):
        yield


@contextlib.contextmanager
def one_operation_per_value() -> Iterator[None]:
    """Let TensorFlow create an operation of a graph once for the same inputs and attributes.

    Each layer computes sizes, masks and the tables of its positions again, and each use of a number is a constant: more
    than half of the operations of a decoder, which all later steps would visit.
    """
    create = tf.Graph._create_op_internal
    known: Any = weakref.WeakKeyDictionary()  # the operations of each graph, with their inputs

    def create_once(
        graph: Any,
        kind: str,
        inputs: Sequence[Any],
        dtypes: Any = None,
        input_types: Any = None,
        name: str | None = None,
        attrs: Any = None,
        *options: Any,
        **others: Any,
    ) -> Any:
        described = (attrs[attribute].SerializeToString() for attribute in sorted(attrs or ()))
        key = (kind, *map(id, inputs), *described)
        operations = known.setdefault(graph, {})
        if key in operations and not graph._control_dependencies_stack:
            return operations[key][0]
        operation = create(graph, kind, inputs, dtypes, input_types, name, attrs, *options, **others)
        if not operation.op_def.is_stateful and kind not in _NOT_SHARED:
            operations[key] = operation, inputs  # whose ids are not used again
        return operation

    with _patched((tf.Graph, "_create_op_internal", create_once)):
        yield


@contextlib.contextmanager
def without_copies() -> Iterator[None]:
    """Keep tf2onnx from copying the graph before each optimisation, to restore it if that fails."""
    from tf2onnx import constants

    name = constants.ENV_TF2ONNX_CATCH_ERRORS
    before = os.environ.get(name)
    os.environ[name] = "FALSE"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def fast_graphs() -> Iterator[None]:
    """Let tf2onnx visit, record and write the nodes of a graph once.

    It renames every value of a branch or loop body, and records all of their nodes as readers of each: its memory grows
    with the square of the number of nodes, by 18 GB for the loop of a decoder of 16 layers. It copies the whole graph
    with the condition of a loop, and reads all nodes twice to find the few that call functions. After each optimisation
    and each of two dozen rewrites, whether it changed something or not, it follows every output of a graph, visits the
    nodes that outputs share once for each of them, records all readers, and writes the whole graph as protocol buffers,
    which only the last one needs. It describes each node in messages that nobody reads. Before all that, it makes
    constants of variables, for which TensorFlow copies the graph several times even if it reads none.
    """
    from tf2onnx import tf_loader
    from tf2onnx.graph import Graph, Node
    from tf2onnx.onnx_opset import controlflow
    from tf2onnx.optimizer.optimizer_base import GraphOptimizerBase

    name_of = functools.cached_property(lambda node: node._op.name)
    name_of.__set_name__(Node, "name")
    with _patched(
        (Graph, "replace_all_inputs", _replacing(Graph.replace_all_inputs)),
        (Graph, "extract_sub_graph_nodes", _extract),
        (Graph, "_register_input_name", _register),
        (Graph, "_unregister_input_name", _keep_reader),
        (Graph, "update_proto", _sort_bodies),
        (Graph, "topological_sort", _sort),
        (Graph, "make_graph", _making(Graph.make_graph)),
        (Graph, "reset_nodes", _resetting(Graph.reset_nodes)),
        (GraphOptimizerBase, "optimize", _optimize),
        (Node, "name", name_of),
        (Node, "summary", ""),
        (Node, "update_proto", _update),
        (Node, "get_body_graphs", _body_graphs),
        (Node, "get_implicit_inputs", _implicit_inputs),
        (controlflow, "prefix_graph", _prefixing(controlflow.prefix_graph)),
        (controlflow, "inline_subgraph", _inlining(controlflow.inline_subgraph)),
        (tf_loader, "tflist_to_onnx", _called_functions),
        (
            tf_loader,
            "convert_variables_to_constants_v2",
            _freezing(tf_loader.convert_variables_to_constants_v2),
        ),
        (tf_loader, "tf_optimize_grappler", _forgetting_shapes(tf_loader.tf_optimize_grappler)),
    ):
        yield


def _replacing(replace_all_inputs: Callable[..., None]) -> Callable[..., None]:
    chosen: list[Any] = [None, set()]  # the last nodes that were chosen, and their set

    def replace(graph: Any, old: str, new: str, ops: Any = None) -> None:
        if ops is not None and ops is not chosen[0]:
            chosen[:] = ops, {*ops}
        readers = ops and [
            node
            for node in map(graph.get_node_by_name, graph._output_to_consumers.get(old, ()))
            if node is not None and old in node.input and (node in chosen[1] or node in ops)
        ]
        replace_all_inputs(graph, old, new, readers)

    return replace


def _extract(
    graph: Any, outputs: Sequence[str], is_input: Any = None, remove_unused_inputs: bool = True
) -> list[Any]:
    names = [*outputs, *(() if remove_unused_inputs else (node.output[0] for node in graph.inputs))]
    found = set()
    while names:
        node = graph.get_node_by_output(names.pop(), search_in_parent_graphs=False)
        if not node or node in found or (is_input and is_input(node) is False):
            continue
        found.add(node)
        names += [*node.input, *(node.get_implicit_inputs() if node.get_body_graphs() else ())]
    return [*found]


def _optimize(optimizer: Any, graph: Any, iteration: int) -> Any:
    optimizer.opt_iteration = iteration
    graph = optimizer._optimize(graph)
    if optimizer.graph_been_opt:
        graph.delete_unused_nodes(graph.outputs)
    return graph


def _register(graph: Any, name: str, node: Any, only_graph: bool = False) -> None:
    if not only_graph:
        graph._output_to_consumers.setdefault(name, set()).add(node.name)
    while graph.parent_graph is not None:
        graph.parent_graph._input_to_graph.setdefault(name, {})[id(graph)] = graph
        graph = graph.parent_graph


def _keep_reader(*_: Any) -> None:
    """Keep a node in the record of the readers of a value.

    tf2onnx would drop a loop body from the record when one of its readers is gone, even if others remain. A node that
    stays in the record does no harm, as tf2onnx checks the inputs of the readers that it finds.
    """


def _resetting(reset_nodes: Callable[..., None]) -> Callable[..., None]:
    def reset(graph: Any, ops: Any) -> None:
        if ops and len(ops) == len(graph._nodes) and {*ops} == {*graph._nodes}:
            graph._nodes = ops  # in their order; all changes of its own nodes have been recorded
        else:
            reset_nodes(graph, ops)

    return reset


def _sort_bodies(graph: Any, *_: Any) -> None:
    for body in _bodies(graph):
        body.delete_unused_nodes(body.outputs)  # and those of bodies in it
    bodies = _bodies(graph)
    while bodies:
        body = bodies.pop()
        body.topological_sort(body.get_nodes())
        bodies += _bodies(body)


def _bodies(graph: Any) -> list[Any]:
    return [body for node in graph.get_nodes() for body in (node.get_body_graphs() or {}).values()]


def _sort(graph: Any, nodes: Sequence[Any]) -> None:
    nodes = sorted(nodes, key=lambda node: node.name)
    makers = {name: node for node in nodes for name in node.output}
    ordered: dict[Any, None] = {}
    pending, begun = nodes[::-1], set()
    while pending:
        node = pending[-1]
        names = [*node.input, *(node.get_implicit_inputs() if node.get_body_graphs() else ())]
        before = {maker for name in names if (maker := makers.get(name)) and maker not in ordered}
        if node in ordered or not before:
            ordered[pending.pop()] = None
        elif node in begun:
            raise ValueError(f"a graph must have no cycle. Received: one with {node.name}")
        else:
            begun.add(node)
            pending += sorted(before, key=lambda maker: maker.name, reverse=True)
    graph.reset_nodes([*ordered])


def _making(make_graph: Callable[..., Any]) -> Callable[..., Any]:
    def make(graph: Any, *arguments: Any, **options: Any) -> Any:
        graph.delete_unused_nodes(graph.outputs)
        for node in graph.get_nodes():
            node.update_proto()
        return make_graph(graph, *arguments, **options)

    return make


def _update(node: Any, *_: Any) -> None:
    for name, body in (node.get_body_graphs() or {}).items():
        node.set_attr(name, body.make_graph(f"graph for {node.name} {name}"))
    for field in (node._op.input, node._op.output, node._op.attribute):
        del field[:]
    node._op.input.extend(node.input)
    node._op.output.extend(node.output)
    node._op.attribute.extend(node.get_onnx_attrs().values())


def _freezing(convert_variables: Callable[..., Any]) -> Callable[..., Any]:
    def freeze(function: Any, **options: Any) -> Any:
        definition = function.graph.as_graph_def(add_shapes=True)
        nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
        calls = any(node.op.endswith("PartitionedCall") for node in nodes)
        if calls or any(value.dtype == tf.resource for value, _ in function.graph.captures):
            return convert_variables(function, **options)
        for node in nodes:
            node.attr.pop("_lower_using_switch_merge", None)  # loops and branches remain operations
        graph = types.SimpleNamespace(as_graph_def=lambda **_: definition)
        return types.SimpleNamespace(graph=graph)

    return freeze


def _forgetting_shapes(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that optimises a graph and forgets the shapes of sums and products.

    TensorFlow computes (x · v) · c as x · (v · c) for a constant c, and reuses the first product for v · c, but with
    the shape of x. It infers these shapes again when the graph is read.
    """

    def optimized(*arguments: Any) -> Any:
        definition = optimize(*arguments)
        functions = (function.node_def for function in definition.library.function)
        for node in itertools.chain(definition.node, *functions):
            if node.op in _REORDERED:
                node.attr.pop("_output_shapes", None)
        return definition

    return optimized


def _prefixing(prefix_graph: Callable[..., Any]) -> Callable[..., Any]:
    def prefix(graph: Any, scope: str) -> None:
        for index, name in enumerate(graph.outputs):
            if name in graph.outputs[:index]:  # tf2onnx renames the first of equal outputs only
                graph.outputs[index] = graph.make_node("Identity", [name]).output[0]
        prefix_graph(graph, scope)

    return prefix


def _inlining(inline_subgraph: Callable[..., Any]) -> Callable[..., Any]:
    def inline(parent: Any, graph: Any, scope: str, binding: dict[str, str]) -> Any:
        around, graph.parent_graph = graph.parent_graph, None  # or it is copied, too
        try:
            return inline_subgraph(parent, graph, scope, binding)
        finally:
            graph.parent_graph = around

    return inline


def _body_graphs(node: Any) -> Any:
    return node.graph.contained_graphs.get(node.name)


def _implicit_inputs(node: Any, recursive: bool = True) -> list[str]:
    read: set[str] = set()
    made: set[str] = set()
    graphs = [*(node.get_body_graphs() or {}).values()]
    while graphs:
        graph = graphs.pop()
        for inner in graph.get_nodes():
            made.update(inner._output)
            read.update(inner._input)
        if recursive:
            graphs += [body for bodies in graph.contained_graphs.values() for body in bodies.values()]
    return [*(read - made)]


def _called_functions(graph: Any, *_: Any) -> tuple[Any, ...]:
    """Return what `tflist_to_onnx` returns last, the input shapes of the functions that a graph calls, by name."""
    from tf2onnx.tf_utils import TF_SUBGRAPH_ATTRS

    functions = {}
    for node in graph.get_operations():
        for attribute in node.op_def.attr:
            if attribute.type == "func" and attribute.name in TF_SUBGRAPH_ATTRS:
                shapes = [tensor.get_shape() for tensor in node.inputs]
                functions[node.get_attr(attribute.name).name] = shapes
    return None, None, None, None, None, functions
