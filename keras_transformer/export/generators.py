"""Exported functions of generating pipelines: the whole loop, and single steps for external loops."""

import functools
from typing import Any

import tensorflow as tf

from keras_transformer.export import serving_signatures
from keras_transformer.export.bundle_writer import settings_of
from keras_transformer.export.serving_signatures import Axes, Graph
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer_serving.graphs import DECODER, ENCODER, MODEL, loop_name

_BATCH = "batch_size"
_NEW = "sequence_length"
_PAST = "past_sequence_length"
_TOTAL = f"{_PAST} + {_NEW}"
_PARTS = ("key", "value")


def signatures(pipeline: Any) -> dict[str, Graph]:
    """Return the signatures of a SavedModel."""
    text = tf.TensorSpec([None], tf.string, name="text")
    return {
        "serving_default": Graph(functools.partial(serving_signatures.text_to_text, pipeline), [text]),
        "generate_ids": Graph(
            functools.partial(serving_signatures.text_to_ids, pipeline),
            [text, *serving_signatures.noise_spec(pipeline)],
        ),
    }


def graphs(pipeline: Any) -> dict[str, Graph]:
    """Return the ONNX graphs, by file name.

    A model whose encoder gives no keys and values, such as Unlimiformer, only has the loop.
    """
    model = pipeline.model
    if not is_encoder_decoder(model):
        steps = {MODEL: _decoder_only(model)}
    elif hasattr(model, "decoder_blocks"):
        steps = {ENCODER: _encoder(model), DECODER: _decoder(model)}
    else:
        steps = {}
    return {loop_name(settings_of(pipeline)): _loop(pipeline), **steps}


def _loop(pipeline: Any) -> Graph:
    def loop(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        given = dict(zip((spec.name for spec in inputs), tensors, strict=True))
        mask = given.get("attention_mask")
        out = serving_signatures.generate_ids(
            pipeline,
            tf.cast(given["input_ids"], tf.int32),
            None if mask is None else mask != 0,
            given.get("noise"),
        )
        return {**out, "ids": tf.cast(out["ids"], tf.int64), "lengths": tf.cast(out["lengths"], tf.int64)}

    # Padding is marked by `pad_id` or, without one, by the mask.
    ids = ["input_ids", *(["attention_mask"] if pipeline.model.pad_id is None else [])]
    inputs = [*map(_ids, ids), *serving_signatures.noise_spec(pipeline)]
    length = "encoder_sequence_length" if is_encoder_decoder(pipeline.model) else _NEW
    axes = {name: [_BATCH] for name in ("noise", "ids", "lengths", "scores")}
    return Graph(loop, inputs, {**axes, **{name: [_BATCH, length] for name in ids}})


def _encoder(model: Any) -> Graph:
    source = [_BATCH, "encoder_sequence_length"]
    present = _cache("present", len(model.decoder_blocks), source[1], ".encoder")
    return Graph(
        lambda input_ids, attention_mask: serving_signatures.encode(model, input_ids, attention_mask),
        [_ids("input_ids"), _ids("attention_mask")],
        {"input_ids": source, "attention_mask": source, **present},
    )


def _decoder(model: Any) -> Graph:
    blocks, target = model.decoder_blocks, [_BATCH, _NEW]
    own = _cache("past_key_values", len(blocks), _PAST, ".decoder")
    cross = _cache("past_key_values", len(blocks), "encoder_sequence_length", ".encoder")
    names = [*own, *cross]
    return Graph(
        lambda input_ids, mask, *past: serving_signatures.decode(
            model, input_ids, mask, dict(zip(names, past, strict=True))
        ),
        [
            _ids("input_ids"),
            _ids("encoder_attention_mask"),
            *_cache_specs(blocks[0].self_attention, own),
            *_cache_specs(blocks[0].cross_attention, cross),
        ],
        {
            "input_ids": target,
            "encoder_attention_mask": [_BATCH, "encoder_sequence_length"],
            **own,
            **cross,
            "logits": target,
            **_cache("present", len(blocks), _TOTAL, ".decoder"),
        },
    )


def _decoder_only(model: Any) -> Graph:
    new, past = [_BATCH, _NEW], _cache("past_key_values", len(model.blocks), _PAST)
    return Graph(
        lambda input_ids, mask, positions, *tensors: serving_signatures.continue_(
            model, input_ids, mask, positions, dict(zip(past, tensors, strict=True))
        ),
        [
            *map(_ids, ("input_ids", "attention_mask", "position_ids")),
            *_cache_specs(model.blocks[0].self_attention, past),
        ],
        {
            "input_ids": new,
            "attention_mask": [_BATCH, _TOTAL],
            "position_ids": new,
            **past,
            "logits": new,
            **_cache("present", len(model.blocks), _TOTAL),
        },
    )


def _ids(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, None], tf.int64, name=name)


def _cache(prefix: str, layers: int, length: str, side: str = "") -> Axes:
    """Return the axes of each layer's keys and values; the number of heads is static."""
    return {
        f"{prefix}.{layer}{side}.{part}": [_BATCH, None, length] for layer in range(layers) for part in _PARTS
    }


def _cache_specs(attention: Any, names: Axes) -> list[tf.TensorSpec]:
    sizes = {"key": attention.key_dim, "value": attention.value_dim}
    return [
        tf.TensorSpec(
            [None, attention.num_kv_heads, None, sizes[name.rsplit(".", 1)[1]]],
            attention.compute_dtype,
            name=name,
        )
        for name in names
    ]
