"""The target "litert": models for phones and other devices, which LiteRT (TensorFlow Lite) runs."""

import logging
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import keras_transformer_serving as serving
from keras_transformer.export import card
from keras_transformer.export.bundle_writer import check_pipeline, without_tensorflow_warnings
from keras_transformer.export.parity.comparison import WithPipeline
from keras_transformer.export.targets import ExportTarget
from keras_transformer.models.input_specs import inputs_checked
from keras_transformer.pipelines.pipeline import ExportedFunction
from keras_transformer_serving import precisions
from keras_transformer_serving.graph_files import FLOAT32
from keras_transformer_serving.litert_target import LITERT, LiteRtModel, litert_package, model_file

_LOGGER = logging.getLogger(__name__)
# In the converter's errors: "\ttf.Square(tensor<?x?x201xf64>) -> …".
_MISSING = re.compile(r"^\ttf\.(\w+)\((?:tensor<(?:[?\d]+x)*(\w+)>)?", re.MULTILINE)


class LiteRt(ExportTarget):
    """A model of LiteRT, in each precision, of a pipeline that does not generate.

    It has LiteRT's own operations only, and the inputs and outputs of the ONNX graph `model` in batches of any size and
    length. The tokenizer's files are beside it in the export.

    Args:
        precisions: "float32", and optionally "float16", weights of half the size, and "int8", weights of a quarter,
            with which activations are multiplied in 8 bits, by the range that they have in each batch.
    """

    name, tags, options = LITERT, ("tflite",), ("precisions",)

    def __init__(self, precisions: Sequence[str] | None = (FLOAT32,)) -> None:
        self.precisions = precisions

    def check(self, pipeline: Any) -> None:
        """Raise unless LiteRT is installed, and the pipeline runs a float32 model once."""
        check_pipeline(pipeline)
        if pipeline.generates:
            raise ValueError(
                "`pipeline` must not generate for LiteRT: it must run its model once, such as a `TextClassification` "
                f"or an `Embedding`. Received: a {type(pipeline).__name__}"
            )
        self.check_float32(pipeline, "LiteRT")
        self.check_precisions(FLOAT32)
        litert_package()

    def write(self, pipeline: Any, folder: pathlib.Path) -> None:
        """Write the model in each precision; a float16 or int8 model is in the folder of its name."""
        self._write(pipeline, folder, None)

    def write_compared(
        self, pipeline: Any, folder: pathlib.Path, compare: WithPipeline, left_out: dict[str, str] | None
    ) -> None:
        """Write the model in each precision that can be converted, if `left_out` is given."""
        self._write(pipeline, folder, left_out)

    def _write(self, pipeline: Any, folder: pathlib.Path, left_out: dict[str, str] | None) -> None:
        with without_tensorflow_warnings():
            function = frozen(pipeline.forward_graph())
            for precision in self.precisions or (FLOAT32, *self.converted):
                _LOGGER.info("Convert the model to LiteRT in %s", precision)
                try:
                    content = convert(function, precision)
                except ValueError as error:
                    if left_out is None or precision == FLOAT32:
                        raise
                    left_out[precision] = precisions.reason(error)
                    continue
                path = folder / model_file(precision)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)

    @classmethod
    def signatures(cls, folder: pathlib.Path) -> dict[str, Any]:
        """Return the inputs and outputs of the model."""
        model = LiteRtModel((folder / model_file()).read_bytes())
        return {"model": cls.signature(model.inputs, model.outputs)}

    @classmethod
    def card(cls, name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
        """Yield how to run the model with this package's engine, and with LiteRT alone."""
        yield "## LiteRT, on phones and other devices\n"
        yield "In this folder, with `keras-transformer-serving[litert,tokenizers]` and without TensorFlow:\n"
        numpy = "" if serving.reads_text(pipeline.export_config()) else "import numpy\n"
        yield f"```python\n{numpy}import keras_transformer_serving as serving\n"
        yield f'model = serving.load(".", engine="{LITERT}")'
        tensors = reports[LITERT]["signatures"]["model"]
        yield f"{card.forward_call(pipeline, tensors)}\n```\n"
        yield f"`{LITERT}/model.tflite` takes ids or arrays of any batch size. Other programs can run it:\n"
        yield from card.table("model", reports[LITERT]["signatures"])


def frozen(graph: ExportedFunction) -> Callable[..., dict[str, Any]]:
    """Return a function with the weights as constants, as LiteRT's converter takes it.

    Slices that add axes become operations that add one axis each: the converter takes them for axes of any size, too.
    """
    specs = [
        tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for spec, name in zip(graph.inputs, graph.axes, strict=True)
    ]
    with inputs_checked():
        concrete = tf.function(graph.function, autograph=False).get_concrete_function(*specs)
    constant = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    graph_def = constant.graph.as_graph_def()
    in_float64 = {
        node.op
        for node in (
            *graph_def.node,
            *(node for each in graph_def.library.function for node in each.node_def),
        )
        if any(attribute.type == tf.float64.as_datatype_enum for attribute in node.attr.values())
    }
    if in_float64:
        raise ValueError(
            "`pipeline` must have a model whose features are not computed in float64, which LiteRT's operations do not "
            f"take. Received: float64 in {', '.join(sorted(in_float64))}"
        )
    add_axes_one_by_one(graph_def)
    imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
    names = sorted(concrete.structured_outputs)  # in the order of the flat outputs
    pruned = imported.prune(
        *([tensor.name for tensor in side] for side in (constant.inputs, constant.outputs))
    )
    return tf.function(
        lambda *inputs: dict(zip(names, pruned(*inputs), strict=True)), input_signature=specs, autograph=False
    )


def convert(function: Callable[..., dict[str, Any]], precision: str = FLOAT32) -> bytes:
    """Convert a function of `frozen` to a model of LiteRT, with its own operations only.

    Args:
        function: the function.
        precision: "float32", "float16" or "int8", that of the weights.

    Raises:
        ValueError: if LiteRT lacks an operation.
    """
    module = tf.Module()
    module.function = function
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], module)
    if precision != FLOAT32:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    root = logging.getLogger()
    handlers = [*root.handlers]
    try:
        content: bytes = converter.convert()
    except Exception as error:  # the converter's class is not public
        operations = ", ".join(
            sorted({" of ".join(filter(None, each)) for each in _MISSING.findall(str(error))})
        )
        raise ValueError(
            "`pipeline` must have a model whose operations LiteRT has. Received: "
            + (operations or f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        ) from error
    finally:
        root.handlers[:] = handlers  # the converter adds one, which prints the lines of other loggers
    return content


def add_axes_one_by_one(graph_def: graph_pb2.GraphDef) -> None:
    """Replace slices that add axes, such as x[:, None, None], by slices that do not and `ExpandDims`.

    The functions of a graph, such as bodies of loops, get other names, since TensorFlow knows functions by their names.
    """
    functions = {
        function.signature.name: f"{function.signature.name}_litert"
        for function in graph_def.library.function
    }
    _add_axes(graph_def.node, "")
    for function in graph_def.library.function:
        function.signature.name = functions[function.signature.name]
        _add_axes(function.node_def, ":output:0")
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for attribute in (attribute for node in nodes for attribute in node.attr.values()):
            if attribute.func.name in functions:
                attribute.func.name = functions[attribute.func.name]


def _add_axes(nodes: Any, output: str) -> None:
    """Replace such slices among the nodes of a graph or function, which refers to an output of a node by `output`."""
    constants = {
        node.name: tf.make_ndarray(node.attr["value"].tensor) for node in nodes if node.op == "Const"
    }

    def constant(name: str, value: Any) -> str:
        node = nodes.add(op="Const", name=name)
        node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        return name + output

    for node in [node for node in nodes if node.op == "StridedSlice" and node.attr["new_axis_mask"].i]:
        bounds = [constants.get(name.split(":")[0]) for name in node.input[1:]]
        if any(bound is None for bound in bounds):
            continue  # the converter says whether it takes it
        new, shrink, ellipsis = (_bits(node, mask) for mask in ("new_axis", "shrink_axis", "ellipsis"))
        entries = range(len(bounds[0]))
        split = min(ellipsis, default=len(entries))
        # Axes before an ellipsis are counted from the first of the output, those after it from the last.
        axes = [len({*entries[:entry]} - shrink) for entry in entries[:split] if entry in new]
        axes += [-1 - len({*entries[entry + 1 :]} - shrink) for entry in entries[:split:-1] if entry in new]
        kept = [entry for entry in entries if entry not in new]
        name, dtype = node.name, node.attr["T"].type
        sliced = nodes.add()
        sliced.CopyFrom(node)
        sliced.name = f"{name}/sliced"
        for place, bound in enumerate(bounds, 1):
            sliced.input[place] = constant(f"{name}/bound_{place}", bound[kept])
        for mask in ("begin", "end", "ellipsis", "new_axis", "shrink_axis"):
            bits = _bits(node, mask)
            sliced.attr[f"{mask}_mask"].i = sum(
                1 << place for place, entry in enumerate(kept) if entry in bits
            )
        node.Clear()
        source = sliced.name
        for place, axis in enumerate(axes):
            is_last = place == len(axes) - 1
            expanded = node if is_last else nodes.add()
            expanded.op, expanded.name = "ExpandDims", name if is_last else f"{name}/expanded_{place}"
            expanded.input.extend([source + output, constant(f"{name}/axis_{place}", np.int32(axis))])
            expanded.attr["T"].type, expanded.attr["Tdim"].type = dtype, tf.int32.as_datatype_enum
            source = expanded.name


def _bits(node: Any, mask: str) -> set[int]:
    """Return the numbers of the bits of a mask of a slice."""
    bits = node.attr[f"{mask}_mask"].i
    return {entry for entry in range(bits.bit_length()) if bits >> entry & 1}
