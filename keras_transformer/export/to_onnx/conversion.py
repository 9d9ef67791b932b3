"""Export of pipelines and functions as ONNX graphs."""

import functools
import logging
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer import memory
from keras_transformer.export.bundle_writer import (
    without_tensorflow_warnings,
)
from keras_transformer.export.to_onnx import (
    graph_traversal,
    loops,
    rewrites,
    tf2onnx_handlers,
    tf2onnx_speed,
    weights,
)
from keras_transformer.export.to_onnx.precisions import CONVERTERS
from keras_transformer.export.to_onnx.quantization import Examples, to_int8
from keras_transformer.models.input_specs import inputs_checked
from keras_transformer.pipelines.pipeline import Arrays, Axes, ExportedFunction
from keras_transformer_serving import precisions

_LOGGER = logging.getLogger(__name__)
OPSET = 18  # tf2onnx's default, 15, keeps ONNX Runtime from fusing layer normalisation; above 18 it raises


def check_packages() -> None:
    """Raise an ImportError unless the packages for ONNX are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"`onnx` needs {error.name}, of the extra [onnx]: pip install tf2onnx 'onnx<1.23' onnxruntime"
        ) from error


def write_graph(
    name: str,
    graph: ExportedFunction,
    variables: Sequence[Any],
    folder: pathlib.Path,
    precision_folders: dict[str, pathlib.Path],
    examples: Examples,
    left_out: dict[str, str] | None,
) -> None:
    """Convert and save a graph, and its conversions to other precisions in their folders.

    If `left_out` is given, it receives why a conversion failed, by precision.
    """
    converters = {**CONVERTERS, "int8": functools.partial(to_int8, examples=examples)}
    detached: dict[str, weights.Reader] = {}
    _LOGGER.info("Convert %s", name)
    model = convert(name, graph.function, graph.inputs, graph.axes, variables, detached)
    for precision, path in precision_folders.items():
        _LOGGER.info("Convert %s to %s", name, precision)
        readers = dict(detached)
        try:
            save(converters[precision](model, readers), graph.defaults, path / f"{name}.onnx", readers)
        except OSError:  # such as a full disk
            raise
        except Exception as error:  # of any class: ONNX Runtime's, Protocol Buffers'
            if left_out is None:
                raise
            left_out[precision] = precisions.reason(error)
            shutil.rmtree(path, ignore_errors=True)
    save(model, graph.defaults, folder / f"{name}.onnx", detached)
    memory.trim()  # of the graphs that TensorFlow and tf2onnx made


def save(
    model: Any, defaults: Arrays, path: pathlib.Path, readers: Mapping[str, weights.Reader] | None = None
) -> None:
    """Save a model, with the default values of inputs as initializers of the same names.

    Weights that exceed the size of one file are moved from the model to a second file.

    Args:
        model: an `onnx.ModelProto`.
        defaults: the default values of inputs.
        path: the file.
        readers: the functions that read the values of weights that have none in the model, by name.
    """
    import onnx

    graph, readers = model.graph, readers or {}
    graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in defaults.items())
    path.parent.mkdir(exist_ok=True)
    if not weights.are_external(graph):
        loops.place_constants(graph)
    weights.save(model, readers, path)


def convert(
    name: str,
    function: Callable[..., dict[str, Any]],
    signature: list[tf.TensorSpec],
    axes: Axes,
    variables: Sequence[Any] = (),
    detached: dict[str, weights.Reader] | None = None,
) -> Any:
    """Convert a TensorFlow function to an ONNX graph, and check that ONNX supports its operations.

    Args:
        name: the graph's name.
        function: a function from tensors to a dictionary of tensors; captured variables become constants.
        signature: the specs of its inputs, with names.
        axes: the names of the leading axes of each input and output, None for axes of static size; outputs have by
            default the axes of the first input.
        variables: the weights of the model that the function calls. Matrices become initializers, named by the
            variables' paths, whose values the conversion does not read.
        detached: receives a function that reads each matrix, by name, if given; the model then has no values of them.

    Returns:
        An `onnx.ModelProto`.

    Raises:
        ValueError: if ONNX does not support an operation or its types.

    Example:
        >>> spec = tf.TensorSpec([None, 8], tf.float32, name="x")
        >>> graph = convert("twice", lambda x: {"y": 2 * x}, [spec], {"x": ["batch_size"], "y": ["batch_size"]})
    """
    import onnx as onnx_library

    matrices = weights.Matrices(variables)
    signature = [*signature, *matrices.specs]
    traced = tf.function(matrices.arguments_of(function), input_signature=signature, autograph=False)
    with (
        inputs_checked(),
        tf2onnx_speed.one_operation_per_multiplication(),
        tf2onnx_speed.one_operation_per_value(),
    ):
        traced_model = traced.get_concrete_function()
    try:
        with inputs_checked(), without_tensorflow_warnings():
            model = _from_function(traced, signature)
    except Exception as error:  # of any class: TensorFlow's, Protocol Buffers', its own
        raise ValueError(
            f"`model` must consist of operations that ONNX supports. Received: {error}"
        ) from error
    _insert_captured(model.graph, traced_model)
    matrices.set_shapes(model.graph)
    unknown = {node.op_type: node.name for node in graph_traversal.nodes(model.graph) if not _is_known(node)}
    if unknown:
        names = ", ".join(f"{operation} in {layer}" for operation, layer in sorted(unknown.items()))
        raise ValueError(f"`model` must consist of operations that ONNX supports. Received: {names}")
    model = rewrites.simplify(model, [spec.name for spec in matrices.specs])
    model.graph.name = name
    first = axes.get(signature[0].name, [])
    named = {**{output.name: first for output in model.graph.output}, **axes}
    for value in [*model.graph.input, *model.graph.output]:
        for dimension, axis in zip(value.type.tensor_type.shape.dim, named.get(value.name, []), strict=False):
            if axis is not None and not dimension.HasField("dim_value"):
                dimension.dim_param = axis
    try:
        onnx_library.checker.check_model(model, full_check=True)
    except (onnx_library.checker.ValidationError, onnx_library.shape_inference.InferenceError) as error:
        raise ValueError(
            "`model` must consist of operations whose types ONNX supports, such as float32. "
            f"Received: {error}"
        ) from error
    matrices.insert(model.graph, detached)
    return model


def _from_function(traced: Any, signature: Sequence[tf.TensorSpec]) -> Any:
    """Return the ONNX model of a traced function."""
    import tf2onnx

    def converted() -> Any:
        return tf2onnx.convert.from_function(
            traced, input_signature=signature, opset=OPSET, custom_op_handlers=tf2onnx_handlers.HANDLERS
        )[0]

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # `convert` reports unconverted operations
    with tf2onnx_speed.fast_graphs():
        try:
            with tf2onnx_speed.without_copies():
                return converted()
        except Exception:  # an optimisation may have failed, which is skipped if there is a copy
            return converted()


def _insert_captured(graph: Any, traced: Any) -> None:
    """Replace the graph inputs of captured tensors, such as layers' attributes, by constants."""
    import onnx

    captured = {placeholder.name: value for value, placeholder in traced.graph.captures}
    for value in [value for value in graph.input if value.name in captured]:
        graph.input.remove(value)
        graph.initializer.append(onnx.numpy_helper.from_array(captured[value.name].numpy(), value.name))


def _is_known(node: Any) -> bool:
    from onnx import defs

    return defs.has(node.op_type, node.domain)
