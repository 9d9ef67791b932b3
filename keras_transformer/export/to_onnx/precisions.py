"""Conversion of ONNX graphs to float16 and int8."""

import pathlib
import tempfile
from typing import Any

from keras_transformer.export.to_onnx import graph_traversal

# Operations that stay in float32: in float16 they overflow, or round too coarsely.
_FLOAT32 = frozenset(
    {
        "Cos",
        "CumSum",
        "Exp",
        "Log",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceMean",
        "ReduceSum",
        "Sin",
        "Sqrt",
        "TopK",
    }
)


def to_float16(model: Any) -> Any:
    """Convert a graph to float16, except for inputs, outputs, positions, sums and the variance of normalisations.

    Args:
        model: an `onnx.ModelProto` in float32, which is not changed.

    Returns:
        A new `onnx.ModelProto`.
    """
    from onnx import TensorProto, numpy_helper
    from onnxruntime.transformers import float16

    copy = type(model)()
    copy.CopyFrom(model)
    # ONNX Runtime's converter adds casts of values in loop bodies to the main graph. It leaves float64 alone: so
    # operations that stay in float32 get casts here, to float64, which are replaced afterwards.
    widened = _widen(copy)
    copy = float16.convert_float_to_float16(copy, keep_io_types=True, op_block_list=[])
    for node in graph_traversal.nodes(copy.graph):
        if node.name in widened:
            node.attribute[0].i = TensorProto.FLOAT
    for constant in copy.graph.initializer:
        if constant.name in widened:
            values = numpy_helper.to_array(constant).astype("float32")
            constant.CopyFrom(numpy_helper.from_array(values, constant.name))
    inputs = [node for node in copy.graph.node if node.name.startswith("graph_input_cast")]
    for node in reversed(inputs):  # the converter adds them at the end
        copy.graph.node.remove(node)
        copy.graph.node.insert(0, node)
    _remove_shapes(copy)
    return copy


def to_int8(model: Any) -> Any:
    """Quantise the weights of a graph to int8; matrix multiplications quantise activations when they run.

    Args:
        model: an `onnx.ModelProto` of float32, which is not changed.

    Returns:
        A new `onnx.ModelProto`.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quant_utils, quantize_dynamic

    copy = type(model)()
    copy.CopyFrom(model)
    quant_utils.add_pre_process_metadata(copy)  # `rewrites` simplified it; otherwise a warning asks for that
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        onnx.save_model(copy, path)
        quantize_dynamic(path, path, weight_type=QuantType.QInt8, extra_options={"EnableSubgraph": True})
        quantised = onnx.load(path)
    _remove_shapes(quantised)
    return quantised


CONVERTERS = {"float16": to_float16, "int8": to_int8}


def _widen(model: Any) -> set[str]:
    """Compute the operations that stay in float32 in float64, and return the names of its casts and constants."""
    from onnx import TensorProto, helper, numpy_helper

    types = _types(model)
    constants = {each.name: each for part in graph_traversal.graphs(model.graph) for each in part.initializer}
    sensitive = _sensitive(model)
    widened = set()

    def cast(source: str, target: str, to: int) -> Any:
        return helper.make_node("Cast", [source], [target], f"{target}_cast", to=to)

    for graph in graph_traversal.graphs(model.graph):
        wide: dict[str, str] = {}
        changed: list[Any] = []
        for node in graph.node:
            if not sensitive.isdisjoint(node.output):
                for place, name in enumerate(node.input):
                    if types.get(name) != TensorProto.FLOAT:
                        continue
                    if name in constants:
                        wide[name] = f"{name}_float32"
                        if wide[name] not in widened:
                            values = numpy_helper.to_array(constants[name]).astype("float64")
                            model.graph.initializer.append(numpy_helper.from_array(values, wide[name]))
                            widened.add(wide[name])
                    elif name not in wide:
                        # A value of an enclosing graph may have a cast in several graphs.
                        wide[name] = f"{name}_float32_{len(widened)}"
                        changed.append(cast(name, wide[name], TensorProto.DOUBLE))
                        widened.add(changed[-1].name)
                    node.input[place] = wide[name]
                changed.append(node)
                for place, name in enumerate(node.output):
                    if types.get(name) == TensorProto.FLOAT:
                        wide[name] = f"{name}_float32"
                        node.output[place] = wide[name]
                        changed.append(cast(wide[name], name, TensorProto.FLOAT))
                if node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT:
                    node.attribute[0].i = TensorProto.DOUBLE
                    node.name = f"{node.output[0]}_cast"
                    widened.add(node.name)
            else:
                changed.append(node)
        nodes = [type(node).FromString(node.SerializeToString()) for node in changed]
        del graph.node[:]
        graph.node.extend(nodes)
    return widened


def _sensitive(model: Any) -> set[str]:
    """Return the outputs of nodes that stay in float32: `_FLOAT32`, squares, and all that angles are computed from."""
    nodes = [*graph_traversal.nodes(model.graph)]
    made_by = {name: node for node in nodes for name in node.output}
    found = {
        name
        for node in nodes
        if node.op_type in _FLOAT32 or (node.op_type == "Mul" and node.input[0] == node.input[1])
        for name in node.output
    }
    left = [node for node in nodes if node.op_type in ("Sin", "Cos")]
    while left:
        for name in left.pop().input:
            if name in made_by and name not in found and not graph_traversal.inner(made_by[name]):
                found.update(made_by[name].output)
                left.append(made_by[name])
    return found


def _types(model: Any) -> dict[str, int]:
    """Return the element type of each value."""
    from onnx import shape_inference

    types: dict[str, int] = {}
    for graph in graph_traversal.graphs(shape_inference.infer_shapes(model).graph):
        for value in [*graph.input, *graph.value_info, *graph.output]:
            types[value.name] = value.type.tensor_type.elem_type
        types |= {constant.name: constant.data_type for constant in graph.initializer}
    return types


def _remove_shapes(model: Any) -> None:
    """Remove inferred types and shapes: of loop bodies, converters leave some that are wrong."""
    for graph in graph_traversal.graphs(model.graph):
        del graph.value_info[:]
