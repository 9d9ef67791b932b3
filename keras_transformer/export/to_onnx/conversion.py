"""Export of pipelines and functions as ONNX graphs."""

import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export.bundle_writer import check_pipeline, new_part
from keras_transformer.export.parity import comparison
from keras_transformer.export.to_onnx import graph_traversal, rewrites, tf2onnx_handlers
from keras_transformer.pipelines.base import Axes
from keras_transformer_serving.bundle import ONNX

OPSET = 18  # tf2onnx's default, 15, keeps ONNX Runtime from fusing layer normalisation; above 18 it raises


def onnx(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    texts: Sequence[Any] | None = None,
    signature_key: bytes | None = None,
) -> pathlib.Path:
    """Export a pipeline as ONNX graphs, and verify their outputs.

    For a generating pipeline, `generate_greedy.onnx`, `generate_beam.onnx`, `generate_sample.onnx` or
    `generate_contrastive.onnx`, by the pipeline's sampler, is the whole loop with its key/value cache and constraints:
    "input_ids" int64 (B, S) → "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,), each with an axis of N
    after the first if N > 1 hypotheses are returned. If it samples, it also takes "noise" float32 (B, N, M), uniform
    numbers as of `keras_transformer_serving.uniform_noise`. For servers with their own loop there are
    `encoder_model.onnx`, which projects keys and values once, and `decoder_model_merged.onnx`, which takes a past of
    any length, including 0; for a decoder-only model one `model.onnx`; for Unlimiformer only the loop.

    For other pipelines, `model.onnx` maps ids, images or graphs to the model's outputs. Tensors have Optimum's names;
    `export/README.md` lists them.

    Args:
        pipeline: any of `pipelines`.
        folder: the export's folder; the graphs are written to `folder/onnx`.
        texts: texts on which a generating pipeline and its graphs are compared before the export is kept; by default
            made from the vocabulary. Other pipelines are compared on random ids, images or graphs.
        signature_key: a key to sign the manifest with (HMAC-SHA256), that `verify` and
            `keras_transformer_serving.load` can ask for; all parts of an export take the same.

    Returns:
        The folder of the graphs, which is only created when complete and verified.

    Raises:
        BlockingIOError: if another export writes to `folder`.
        FileExistsError: if `folder/onnx` exists already.
        ImportError: if a package of the extra "onnx" is not installed.
        ParityError: if an output differs.
        ValueError: if an argument is invalid, or an operation of the model has no ONNX form.

    Example:
        >>> onnx(translator, "export/es-en")
        PosixPath('export/es-en/onnx')
    """
    folder = pathlib.Path(folder)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"`onnx` needs the TensorFlow backend. Received: {keras.backend.backend()}")
    check_pipeline(pipeline)
    if texts is not None and not pipeline.generates:
        raise ValueError(
            f"`texts` must be None for a {type(pipeline).__name__}, whose graphs take none. Received: texts={texts!r}"
        )
    try:
        import onnx as onnx_library
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"`onnx` needs {error.name}: pip install 'keras-transformer-kit[onnx]'") from error
    graphs = pipeline.onnx_graphs()
    compare = comparison.WithPipeline(pipeline, texts)
    compare.tokenizers()  # before the conversion, which takes longer
    with new_part(pipeline, folder, ONNX, signature_key) as (new, report):
        for name, graph in graphs.items():
            model = convert(name, graph.function, graph.inputs, graph.axes)
            onnx_library.save_model(model, new / f"{name}.onnx")
        report.update(compare(new, ONNX, store=True))
    return folder / ONNX


def convert(
    name: str, function: Callable[..., dict[str, Any]], signature: list[tf.TensorSpec], axes: Axes
) -> Any:
    """Convert a TensorFlow function to an ONNX graph, and check that ONNX supports its operations.

    Args:
        name: the graph's name.
        function: a function from tensors to a dictionary of tensors; captured variables become constants.
        signature: the specs of its inputs, with names.
        axes: for each input and output the names of its leading axes, None for axes of static size.

    Returns:
        An `onnx.ModelProto`.

    Raises:
        ValueError: if ONNX has no equivalent of an operation, or none for its types.

    Example:
        >>> spec = tf.TensorSpec([None, 8], tf.float32, name="x")
        >>> graph = convert("twice", lambda x: {"y": 2 * x}, [spec], {"x": ["batch_size"], "y": ["batch_size"]})
    """
    import onnx as onnx_library
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    traced = tf.function(function, input_signature=signature, autograph=False)
    model, _ = tf2onnx.convert.from_function(
        traced, input_signature=signature, opset=OPSET, custom_op_handlers=tf2onnx_handlers.HANDLERS
    )
    unknown = sorted({node.op_type for node in graph_traversal.nodes(model.graph) if not _is_known(node)})
    if unknown:
        raise ValueError(f"`model` must consist of operations that ONNX has. Received: {', '.join(unknown)}")
    model = rewrites.simplify(model)
    model.graph.name = name
    for value in [*model.graph.input, *model.graph.output]:
        for dimension, axis in zip(value.type.tensor_type.shape.dim, axes[value.name], strict=False):
            if axis is not None:
                dimension.dim_param = axis
    try:
        onnx_library.checker.check_model(model, full_check=True)
    except (onnx_library.checker.ValidationError, onnx_library.shape_inference.InferenceError) as error:
        raise ValueError(
            "`model` must have types that its operations support in ONNX, such as float32 or mixed_float16. "
            f"Received: {error}"
        ) from error
    return model


def _is_known(node: Any) -> bool:
    from onnx import defs

    return defs.has(node.op_type, node.domain)
