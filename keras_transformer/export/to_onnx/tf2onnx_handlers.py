"""tf2onnx handlers of TensorFlow operations that it lacks or converts inefficiently."""

from typing import Any

import numpy as np


def erfc(graph: Any, node: Any, *_: Any) -> None:
    """Convert Erfc, which TensorFlow's exact GELU uses and tf2onnx lacks, to 1 − Erf."""
    from onnx import helper

    node.type, node.domain = "Erf", ""
    dtype = helper.tensor_dtype_to_np_dtype(graph.get_dtype(node.output[0]))
    one = graph.make_const(f"{node.name}_one", np.array(1, dtype))
    graph.insert_new_node_on_output("Sub", node.output[0], inputs=[one.output[0], node.output[0]])


def select(graph: Any, node: Any, *_: Any) -> None:
    """Convert SelectV2 to Where; tf2onnx converts it to six nodes, two of which multiply possible NaNs by zero."""
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


def compare(graph: Any, node: Any, *_: Any) -> None:
    """Keep Less and Greater of integers, which tf2onnx would compare as floats; ONNX Runtime supports integers.

    The condition of a loop with a maximum number of steps compares this number with the number of steps so far, the
    first input of its function, which is int32 in TensorFlow and int64 in ONNX.
    """
    from onnx import TensorProto

    if node.input[0] == graph.input_names[0] and graph.get_dtype(node.input[0]) == TensorProto.INT32:
        for name in [*node.input]:
            graph.insert_new_node_on_input(node, "Cast", name, to=TensorProto.INT64)


def segment(graph: Any, node: Any, *_: Any) -> None:
    """Convert sums and maxima of segments to ScatterElements, and drop elements with a negative segment.

    tf2onnx converts them to a sort and a table of the elements of each segment, some of which ONNX Runtime loses on a
    GPU. ScatterND needs fewer indices, but ONNX Runtime adds in several threads without locks.
    """
    from onnx import TensorProto, helper
    from tf2onnx import utils

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        return graph.make_node(kind, [*inputs], attr=attributes).output[0]

    def integers(*values: int) -> str:
        return graph.make_const(utils.make_name(node.name), np.array(values, np.int64)).output[0]

    (data, segments, count), (output,) = node.input, node.output
    dtype, shape, is_sum = graph.get_dtype(output), graph.get_shape(output), node.type.endswith("Sum")
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    start = 0 if is_sum else (np.finfo if kind.kind == "f" else np.iinfo)(kind).min
    # ONNX Runtime does not add 16-bit floats on CPUs.
    computed = TensorProto.FLOAT if dtype == TensorProto.FLOAT16 else dtype
    count, segments = (add("Cast", name, to=TensorProto.INT64) for name in (count, segments))
    count = add("Reshape", count, integers(1))
    segments = add("Where", add("Less", segments, integers(0)), count, segments)
    others = integers(*range(1, graph.get_rank(data)))
    index = add("Expand", add("Unsqueeze", segments, others), add("Shape", data))
    sizes = add("Concat", add("Add", count, integers(1)), add("Shape", data, start=1), axis=0)
    initial = add("ConstantOfShape", sizes, value=helper.make_tensor("value", computed, [1], [start]))
    data = add("Cast", data, to=computed)
    result = add("ScatterElements", initial, index, data, axis=0, reduction="add" if is_sum else "max")
    result = add("Slice", result, integers(0), count, integers(0))
    graph.remove_node(node.name)
    cast = {"to": dtype}
    graph.make_node("Cast", [result], cast, outputs=[output], name=node.name, dtypes=[dtype], shapes=[shape])


HANDLERS = {
    "Erfc": (erfc, []),
    "SelectV2": (select, []),
    "UnsortedSegmentMax": (segment, []),
    "UnsortedSegmentSum": (segment, []),
    "Less": (compare, []),
    "Greater": (compare, []),
}
