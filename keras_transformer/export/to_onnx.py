"""A pipeline as ONNX graphs: encoder, decoder with cache, and the whole generation loop."""

import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export import functions, parity
from keras_transformer.export.parts import new_part, settings_of
from keras_transformer.serving.graphs import DECODER, ENCODER, loop_name

ONNX = "onnx"
OPSET = 18  # tf2onnx's default, 15, keeps ONNX Runtime from fusing layer normalisation; above 18 it raises


def onnx(
    pipeline: Any, folder: str | os.PathLike[str], *, texts: Sequence[str] | None = None
) -> pathlib.Path:
    """Export a pipeline as ONNX graphs, and prove that they answer the same.

    `generate_greedy.onnx`, `generate_beam.onnx` or `generate_sample.onnx`, by the pipeline's sampler, holds the whole
    loop with its key/value cache and constraints: "input_ids" int64 (B, S) → "ids" int64 (B, M), "lengths" int64 (B,),
    "scores" float32 (B,), each with an axis of N after the first where N > 1 hypotheses are returned. Where it samples
    it takes "noise" float32 (B, N, M, V) too, uniform numbers such as `serving.noise.uniform` makes.
    `encoder_model.onnx` and `decoder_model_merged.onnx` are for servers with a loop of their own: the encoder projects
    keys and values once, the decoder takes a past of any length, 0 included. Tensors are named as Optimum names them.

    Args:
        pipeline: such as `pipelines.TextToText`.
        folder: of the export; the graphs go to `folder/onnx`.
        texts: compared between the pipeline and the graphs before anything takes its place; by default a few
            made from the vocabulary.

    Returns:
        The folder of the graphs. It appears only when it is complete and verified.

    Raises:
        FileExistsError: where `folder/onnx` exists already.
        ParityError: where an output differs.
        ValueError: where an operation of the model has no ONNX form.

    Example:
        >>> onnx(translator, "export/es-en")
        PosixPath('export/es-en/onnx')
    """
    folder = pathlib.Path(folder)
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"`onnx` needs the TensorFlow backend. Received: {keras.backend.backend()}")
    if not hasattr(pipeline.model, "encode"):
        raise ValueError(
            "`pipeline` must have an encoder–decoder; `saved_model` exports a decoder alone. "
            f"Received: a {type(pipeline).__name__} of a {type(pipeline.model).__name__}"
        )
    try:
        import onnx as onnx_library
        import onnxruntime  # noqa: F401
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"`onnx` needs {error.name}: pip install 'keras-transformer-kit[onnx]'") from error
    with new_part(pipeline, folder, ONNX) as (new, report):
        for name, (function, signature, axes) in _graphs(pipeline).items():
            onnx_library.save_model(_convert(name, function, signature, axes), new / f"{name}.onnx")
        exported = parity.OnnxGraphs(new, pipeline.tokenizer.model_bytes, settings_of(pipeline))
        report.update(parity.compare(parity.Reference.of(pipeline, texts), exported))
    return folder / ONNX


def _graphs(pipeline: Any) -> dict[str, tuple[Callable[..., Any], list[tf.TensorSpec], dict[str, list[str]]]]:
    """Each graph's function, inputs, and names of the dynamic axes of inputs and outputs."""
    model = pipeline.model
    ids = tf.TensorSpec([None, None], tf.int64, name="input_ids")
    source = ["batch_size", "encoder_sequence_length"]
    target, past = ["batch_size", "sequence_length"], ["batch_size", "past_sequence_length"]
    layers = range(len(model.decoder_blocks))
    spec = _cache_spec(model.decoder_blocks[0].self_attention)
    cross = {f"past_key_values.{i}.encoder.{part}": source for i in layers for part in ("key", "value")}
    own = {f"past_key_values.{i}.decoder.{part}": past for i in layers for part in ("key", "value")}
    total = ["batch_size", "past_sequence_length + sequence_length"]
    presents = {name.replace("past_key_values", "present"): total for name in own}
    names = [*own, *cross]

    def loop(input_ids: tf.Tensor, noise: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        out = functions.generate_ids(pipeline, tf.cast(input_ids, tf.int32), noise)
        return {**out, "ids": tf.cast(out["ids"], tf.int64), "lengths": tf.cast(out["lengths"], tf.int64)}

    return {
        loop_name(settings_of(pipeline)): (
            loop,
            [ids, *functions.noise_spec(pipeline)],
            {"input_ids": source, **{name: ["batch_size"] for name in ("noise", "ids", "lengths", "scores")}},
        ),
        ENCODER: (
            lambda input_ids, attention_mask: functions.encode(model, input_ids, attention_mask),
            [ids, tf.TensorSpec([None, None], tf.int64, name="attention_mask")],
            {
                "input_ids": source,
                "attention_mask": source,
                **{name.replace("past_key_values", "present"): source for name in cross},
            },
        ),
        DECODER: (
            lambda input_ids, mask, *tensors: functions.decode(
                model, input_ids, mask, dict(zip(names, tensors, strict=True))
            ),
            [
                ids,
                tf.TensorSpec([None, None], tf.int64, name="encoder_attention_mask"),
                *(spec(name) for name in names),
            ],
            {
                "input_ids": target,
                "encoder_attention_mask": source,
                **own,
                **cross,
                "logits": target,
                **presents,
            },
        ),
    }


def _cache_spec(attention: Any) -> Callable[[str], tf.TensorSpec]:
    sizes = {"key": attention.key_dim, "value": attention.value_dim}

    def spec(name: str) -> tf.TensorSpec:
        shape = [None, None, attention.num_kv_heads, sizes[name.rsplit(".", 1)[1]]]
        return tf.TensorSpec(shape, attention.compute_dtype, name=name)

    return spec


def _convert(
    name: str,
    function: Callable[..., Any],
    signature: list[tf.TensorSpec],
    axes: dict[str, list[str]],
) -> Any:
    import onnx as onnx_library
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    traced = tf.function(function, input_signature=signature, autograph=False)
    model, _ = tf2onnx.convert.from_function(
        traced, input_signature=signature, opset=OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
    )
    unknown = sorted({node.op_type for node in _nodes(model.graph) if not _is_known(node)})
    if unknown:
        raise ValueError(f"`model` must consist of operations that ONNX has. Received: {', '.join(unknown)}")
    model.graph.name = name
    for value in [*model.graph.input, *model.graph.output]:
        for dimension, axis in zip(value.type.tensor_type.shape.dim, axes[value.name], strict=False):
            dimension.dim_param = axis
    try:
        onnx_library.checker.check_model(model, full_check=True)
    except (onnx_library.checker.ValidationError, onnx_library.shape_inference.InferenceError) as error:
        raise ValueError(
            "`model` must be of types that its operations take in ONNX; those of mixed_bfloat16 do not. "
            f"Received: {error}"
        ) from error
    return model


def _erfc(graph: Any, node: Any, *_: Any) -> None:
    """Erfc, which TensorFlow's exact GELU consists of and tf2onnx does not know, as 1 − Erf."""
    from onnx import helper as onnx_helper

    node.type, node.domain = "Erf", ""
    dtype = onnx_helper.tensor_dtype_to_np_dtype(graph.get_dtype(node.output[0]))
    one = graph.make_const(f"{node.name}_one", np.array(1, dtype))
    graph.insert_new_node_on_output("Sub", node.output[0], inputs=[one.output[0], node.output[0]])


def _nodes(graph: Any) -> Iterator[Any]:
    """Every node, those of loop bodies and branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _nodes(inner)


def _is_known(node: Any) -> bool:
    from onnx import defs

    return defs.has(node.op_type, node.domain)
