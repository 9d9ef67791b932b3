"""Export of pipelines and functions as ONNX graphs."""

import functools
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer import memory
from keras_transformer.export.bundle_writer import (
    check_pipeline,
    new_parts,
    with_shortlist,
    without_tensorflow_warnings,
)
from keras_transformer.export.parity import comparison
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.to_onnx import (
    graph_traversal,
    loops,
    optimum,
    rewrites,
    text_graphs,
    tf2onnx_handlers,
    tf2onnx_speed,
    weights,
)
from keras_transformer.export.to_onnx.precisions import CONVERTERS
from keras_transformer.export.to_onnx.quantization import Examples, to_int8
from keras_transformer.pipelines.base import Arrays, Axes, Graph
from keras_transformer.pipelines.forward import FORWARD
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_serving import files
from keras_transformer_serving.bundle import ONNX
from keras_transformer_serving.graph_files import CONVERTED, FLOAT32, OPTIMUM
from keras_transformer_serving.graphs import MODEL, loop_name

_LOGGER = logging.getLogger(__name__)
OPSET = 18  # tf2onnx's default, 15, keeps ONNX Runtime from fusing layer normalisation; above 18 it raises


@on_tensorflow
def onnx(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    precisions: Sequence[str] | None = (FLOAT32,),
    texts: Sequence[Any] | None = None,
    text_graph: bool = False,
    vocabulary_shortlist: Sequence[int] | None = None,
    signature_key: bytes | None = None,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Export a pipeline as ONNX graphs, and verify their outputs.

    For a generating pipeline, `generate_greedy.onnx`, `generate_beam.onnx`, `generate_sample.onnx` or
    `generate_contrastive.onnx`, by the pipeline's sampler, is the generation loop with its key/value cache and
    constraints: "input_ids" int64 (B, S) → "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,), each with a
    second axis of size N if N > 1 hypotheses are returned. If it samples, it also takes "noise" float32 (B, N, M),
    uniform numbers as from `keras_transformer_serving.uniform_noise`. Inputs with defaults: "max_new_tokens" and
    "min_new_tokens" int64 (B,) or (1,), if it samples "temperature" float32 (B,) or (1,), and for an encoder–decoder
    "prefix_ids" int64 (B, Q) or (1, Q). For servers with their own loop there are `encoder_model.onnx` and
    `decoder_model_merged.onnx`, which takes a past of any length, including 0, and projects the encoder's output once;
    for a decoder-only model one `model.onnx`; for Unlimiformer only the loop.

    For other pipelines, `model.onnx` maps ids, images or graphs to the model's outputs. Tensors have Optimum's names;
    `export/README.md` lists them.

    All graphs except the loop are in the folder `optimum`, with a `config.json` and a `generation_config.json` of
    `transformers`, if Optimum's `ORTModel…` classes can run them.

    Args:
        pipeline: a pipeline of `pipelines`.
        folder: the export's folder; the graphs are written to `folder/onnx`.
        precisions: "float32" and optionally "float16", for GPUs, and "int8" (weights and activations of matrix
            multiplications), for CPUs. The graph that `keras_transformer_serving.load` runs, the generation loop or
            `model.onnx`, is also written in these precisions, to `folder/onnx/float16` and `folder/onnx/int8`. Their
            outputs must be close to the pipeline's (`keras_transformer_serving.precisions.THRESHOLDS`). With None, the
            export has those of them that are; the manifest says why others are left out.
        texts: texts to compare a generating pipeline and its graphs on; by default made from the vocabulary. Other
            pipelines are compared on random ids, images or graphs.
        text_graph: whether to write `text_to_text.onnx`, too, from "text" to "generated_text" and "error", strings
            (B,): the loop between the tokenizer and the detokenizer as operators of onnxruntime-extensions. For a
            `TextToText` with a SentencePiece tokenizer whose ids the operators give on the tokenizer's examples.
        vocabulary_shortlist: the ids of the tokens that the export generates, such as those of texts in the target
            language, with the model's `end_id`; its graphs compute the logits of no others. By default all. The report
            in `parity.json` has the number of outputs that are the same with the whole vocabulary.
        signature_key: a key to sign the manifest with (HMAC-SHA256), which `verify` and
            `keras_transformer_serving.load` can require; all parts of an export have the same key.
        say: a function that prints why a precision is left out.

    Returns:
        The folder of the graphs, which is created only when it is complete and verified.

    Raises:
        BlockingIOError: if another export writes to `folder`.
        FileExistsError: if `folder/onnx` exists already.
        ImportError: if a package of the extra "onnx" is not installed.
        ParityError: if an output differs; in float16 and int8, if outputs differ too much.
        ValueError: if an argument is invalid, or ONNX does not support an operation of the model.

    Example:
        >>> onnx(translator, "export/es-en", precisions=("float32", "int8"))
        PosixPath('export/es-en/onnx')
    """
    folder = files.as_folder(folder)
    pipeline = with_shortlist(pipeline, vocabulary_shortlist)
    check(pipeline, precisions)
    if text_graph:
        text_graphs.check(pipeline)
    if texts is not None and not pipeline.generates:
        raise ValueError(
            f"`texts` must be None for a {type(pipeline).__name__}, whose graphs do not take texts. "
            f"Received: texts={texts!r}"
        )
    compare = comparison.WithPipeline(pipeline, texts)
    with new_parts(pipeline, folder, [ONNX], signature_key) as written:
        write(pipeline, precisions, *written[ONNX], compare, say, text_graph)
    return folder / ONNX


def check(pipeline: Any, precisions: Sequence[str] | None) -> None:
    """Check that a pipeline can be exported as ONNX graphs in the given precisions.

    Raises:
        ImportError: if a package is not installed.
        ValueError: if an argument is invalid.
    """
    check_pipeline(pipeline)
    names = [FLOAT32, *CONVERTED]
    wanted = [FLOAT32] if precisions is None else precisions
    valid = isinstance(wanted, list | tuple) and set(wanted) <= set(names) and FLOAT32 in wanted
    if not valid or len(set(wanted)) != len(wanted):
        raise ArgumentError(
            f"{{precisions}} must be None or a list of {FLOAT32!r} and optionally {' and '.join(map(repr, CONVERTED))}",
            precisions=precisions,
        )
    dtype = pipeline.model.compute_dtype
    if dtype == "bfloat16":
        raise ValueError(
            "`pipeline` must have a model that computes in float32 or float16, since the converter to ONNX does not "
            "support bfloat16. Copy the weights to a float32 model. Received: a model that computes in bfloat16"
        )
    if len(wanted) > 1 and dtype != FLOAT32:
        raise ArgumentError(
            f"{{precisions}} must be ({FLOAT32!r},) for a model that does not compute in float32. "
            f"Received: {{precisions=}}, a model that computes in {dtype}",
            precisions=precisions,
        )
    check_packages()


def check_packages() -> None:
    """Raise an ImportError unless the packages for ONNX are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"`onnx` needs {error.name}: pip install 'keras-transformer-kit[onnx]'") from error


def write(
    pipeline: Any,
    precisions: Sequence[str] | None,
    new: pathlib.Path,
    report: dict[str, Any],
    compare: comparison.WithPipeline,
    say: Callable[[str], None],
    text_graph: bool = False,
) -> None:
    """Write ONNX graphs and the report of their comparison.

    Args:
        pipeline: the pipeline.
        precisions: as for `onnx`.
        new: the folder to write into.
        report: the entry of `parity.json`, which is updated.
        compare: the comparison with the pipeline.
        say: as for `onnx`.
        text_graph: as for `onnx`.

    Raises:
        ParityError: if an output differs too much.
        ValueError: if the graph of texts gives other ids or texts.
    """
    compare.tokenizers()  # before the conversion, which takes longer
    loop = loop_name(pipeline.export_config()) if pipeline.generates else None
    configs = optimum.configurations(pipeline)
    left_out: dict[str, str] | None = {} if precisions is None else None
    dtype = pipeline.model.compute_dtype
    if left_out is not None and dtype != FLOAT32:
        left_out |= dict.fromkeys(CONVERTED, f"the model computes in {dtype}")
    for name, graph in pipeline.onnx_graphs().items():
        folder = new / OPTIMUM if configs and name != loop else new
        converted = (precisions or CONVERTED) if name == (loop or MODEL) else ()
        folders = {
            precision: new / precision
            for precision in converted
            if precision != FLOAT32 and precision not in (left_out or ())
        }
        is_typical = pipeline.examples_are_typical
        examples = pipeline.example_inputs(compare.texts).get(FORWARD, []) if is_typical else []
        _write_graph(name, graph, pipeline.model.weights, folder, folders, examples, left_out)
    for name, config in (configs or {}).items():
        files.write_json(new / OPTIMUM / name, config)
    _LOGGER.info("Compare the graphs with the model")
    report.update(compare(new, ONNX, True, left_out))
    if left_out:
        report["left_out"] = left_out
        for precision, reason in left_out.items():
            say(f"{ONNX}/{precision} is left out: {reason}")
    if text_graph:
        report["text_graph"] = text_graphs.write(pipeline, new, report["examples"])


def _write_graph(
    name: str,
    graph: Graph,
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
            left_out[precision] = comparison.reason(error)
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
    with tf2onnx_speed.one_operation_per_multiplication():
        traced_model = traced.get_concrete_function()
    try:
        with without_tensorflow_warnings():
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
