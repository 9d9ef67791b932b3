"""A pipeline as ONNX graphs."""

import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export import kinds
from keras_transformer.export.bundle_writer import new_part
from keras_transformer.export.graph import Axes
from keras_transformer.export.parity import comparison
from keras_transformer.export.to_onnx import graph_traversal, rewrites, tf2onnx_handlers

ONNX = "onnx"
OPSET = 18  # tf2onnx's default, 15, keeps ONNX Runtime from fusing layer normalisation; above 18 it raises


def onnx(
    pipeline: Any, folder: str | os.PathLike[str], *, texts: Sequence[Any] | None = None
) -> pathlib.Path:
    """Export a pipeline as ONNX graphs, and prove that they answer the same.

    Of one that generates, `generate_greedy.onnx`, `generate_beam.onnx`, `generate_sample.onnx` or
    `generate_contrastive.onnx`, by the pipeline's sampler, holds the whole loop with its key/value cache and
    constraints: "input_ids" int64 (B, S) → "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,), each with
    an axis of N after the first where N > 1 hypotheses are returned. Where it samples it takes "noise" float32
    (B, N, M, V) too, uniform numbers as of `keras_transformer_serving.uniform_noise`. For servers with a loop of their
    own there are `encoder_model.onnx`, which projects keys and values once, and `decoder_model_merged.onnx`, which
    takes a past of any length, 0 included; of a decoder alone one `model.onnx`; of Unlimiformer nothing.

    Of the others, `model.onnx` goes from ids, images or graphs to the model's outputs. Tensors are named as Optimum
    names them; `export/README.md` lists them.

    Args:
        pipeline: any of `pipelines`.
        folder: of the export; the graphs go to `folder/onnx`.
        texts: compared between the pipeline and the graphs before anything takes its place, for a pipeline that
            generates; by default a few made from the vocabulary. The others are compared on random ids, images or
            graphs.

    Returns:
        The folder of the graphs. It appears only when it is complete and verified.

    Raises:
        FileExistsError: where `folder/onnx` exists already.
        ParityError: where an output differs.
        ValueError: where an argument is wrong, or an operation of the model has no ONNX form.

    Example:
        >>> onnx(translator, "export/es-en")
        PosixPath('export/es-en/onnx')
    """
    folder = pathlib.Path(folder)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"`onnx` needs the TensorFlow backend. Received: {keras.backend.backend()}")
    kinds.check(pipeline)
    if texts is not None and not kinds.generates(pipeline):
        raise ValueError(
            f"`texts` must be None for a {type(pipeline).__name__}, whose graphs read none. Received: texts={texts!r}"
        )
    try:
        import onnx as onnx_library
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"`onnx` needs {error.name}: pip install 'keras-transformer-kit[onnx]'") from error
    with new_part(pipeline, folder, ONNX) as (new, report):
        for name, graph in kinds.of(pipeline).graphs(pipeline).items():
            model = convert(name, graph.function, graph.inputs, graph.axes)
            onnx_library.save_model(model, new / f"{name}.onnx")
        report.update(comparison.WithPipeline(pipeline, texts)(new, ONNX, store=True))
    return folder / ONNX


def convert(
    name: str, function: Callable[..., dict[str, Any]], signature: list[tf.TensorSpec], axes: Axes
) -> Any:
    """A function of tensors as an ONNX graph, checked to consist of operations that ONNX has.

    Args:
        name: the graph's.
        function: from tensors to a dictionary of them; what it reads of a model becomes constants.
        signature: what it takes, by name.
        axes: of each input and output the names of its first axes; None where the size is known.

    Returns:
        An `onnx.ModelProto`.

    Raises:
        ValueError: where an operation has no ONNX form, or none for its types.

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
            "`model` must be of types that its operations take in ONNX; those of mixed_bfloat16 do not. "
            f"Received: {error}"
        ) from error
    return model


def _is_known(node: Any) -> bool:
    from onnx import defs

    return defs.has(node.op_type, node.domain)
