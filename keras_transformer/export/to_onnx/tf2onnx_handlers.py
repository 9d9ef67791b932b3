"""For tf2onnx: what becomes of TensorFlow's operations, where its own answer will not do."""

from typing import Any

import numpy as np


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


def as_it_is(*_: Any) -> None:
    """Less and Greater of integers, which tf2onnx compares as floats; ONNX Runtime knows integers."""


HANDLERS = {
    "Erfc": (erfc, []),
    "SelectV2": (select, []),
    "Less": (as_it_is, []),
    "Greater": (as_it_is, []),
}
