"""The exported graphs of generating pipelines: the generation loop, and single steps for servers with their own loop.

Their key/value cache grows, which does not need XLA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer import generation, ops
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.validation import padding_value
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import Unlimiformer
from keras_transformer.pipelines.pipeline import BATCH, Axes, ExportedFunction, spec_of
from keras_transformer.typing import Tensor
from keras_transformer_serving import external_data
from keras_transformer_serving.graphs import DECODER, ENCODER, MODEL, loop_name
from keras_transformer_serving.row_options import TEMPERATURES

_NEW = "sequence_length"
_PAST = "past_sequence_length"
_TOTAL = f"{_PAST} + {_NEW}"
_PAST_SOURCE = "past_encoder_sequence_length"
_PARTS = ("key", "value")
_OPTIONS = {"max_new_tokens": "limits", "min_new_tokens": "minimums", "temperature": "temperatures"}


def onnx_graphs(pipeline: Any) -> dict[str, ExportedFunction]:
    """Return the ONNX graphs, by file name.

    A model with layers that do not store keys and values, such as Unlimiformer or a recurrent model, has the loop only.
    """
    model = pipeline.model
    steps = {}
    if all(isinstance(block.self_attention, MultiHeadAttention) for block in _blocks(model)):
        if not is_encoder_decoder(model):
            steps = {MODEL: _decoder_only(model)}
        elif hasattr(model, "decoder_blocks"):
            steps = {ENCODER: _encoder(model), DECODER: _decoder(model)}
    return {loop_name(pipeline.export_config()): _loop(pipeline), **steps}


def _blocks(model: Any) -> list[Any]:
    """Return the blocks of the decoder, an empty list for a model without blocks."""
    return getattr(model, "decoder_blocks" if is_encoder_decoder(model) else "blocks", [])


def _loop(pipeline: Any) -> ExportedFunction:
    model = pipeline.model
    # ONNX Runtime does not pack weights of another file for the loop in a loop that drops rows.
    num_bytes = sum(math.prod(each.shape) * tf.as_dtype(each.dtype).size for each in model.variables)
    kv_cache = ops.GrowingCache(drops_rows=num_bytes <= external_data.MAX_BYTES)

    def loop(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        values = dict(zip((spec.name for spec in inputs), tensors, strict=True))
        ids, mask = values["input_ids"], values.get("attention_mask")
        mask = ids != model.pad_id if mask is None else mask != 0
        batch_size = tf.shape(ids)[0]
        options = {
            _OPTIONS[name]: tf.broadcast_to(values[name], [batch_size])
            for name in defaults
            if name in _OPTIONS
        }
        limits = tf.clip_by_value(tf.cast(options["limits"], tf.int32), 1, pipeline.max_new_tokens)
        options |= {"limits": limits, "minimums": tf.minimum(tf.cast(options["minimums"], tf.int32), limits)}
        if "temperatures" in options:
            options["temperatures"] = tf.clip_by_value(options["temperatures"], *TEMPERATURES)
        accepted = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) <= pipeline.max_source_tokens
        accepted &= _are_valid(model, tf.where(mask, ids, 0))
        if is_encoder_decoder(model):  # padding before the tokens would move their positions
            accepted &= tf.reduce_all(mask[:, :1], axis=1)
        if "prefix_ids" in values:
            prefixes = values["prefix_ids"]
            prefixes = tf.broadcast_to(prefixes, [batch_size, tf.shape(prefixes)[1]])
            accepted &= _are_valid(model, prefixes)
            options["prefix_ids"] = tf.cast(tf.where(accepted[:, None], prefixes, model.pad_id), tf.int32)
        if "start_ids" in values:
            starts = tf.broadcast_to(values["start_ids"], [batch_size])
            accepted &= _are_valid(model, starts[:, None])
            options["start_ids"] = tf.cast(tf.where(accepted, starts, model.start_id), tf.int32)
        mask &= accepted[:, None]  # an empty row generates nothing
        ids = tf.cast(tf.where(mask, ids, padding_value(model)), tf.int32)
        options["noise"] = values.get("noise")
        out = generate_ids(pipeline, ids, mask if model.pad_id is None else None, kv_cache, **options)
        return {**out, "ids": tf.cast(out["ids"], tf.int64), "lengths": tf.cast(out["lengths"], tf.int64)}

    # Padding is marked by `pad_id` or, without one, by the mask.
    ids = ["input_ids", *(["attention_mask"] if model.pad_id is None else [])]
    config = pipeline.config
    inputs = [*map(_ids, ids), *map(spec_of, pipeline.noise(config))]
    defaults = {
        option.name: np.array([option.default], np.float32 if option.dtype == "float32" else np.int64)
        for option in pipeline.options(config)
        if option.name in _OPTIONS
    }
    if is_encoder_decoder(model):
        defaults["prefix_ids"] = np.zeros((1, 0), np.int64)
    if getattr(pipeline.tokenizer, "language_is_start", False):
        defaults["start_ids"] = np.array([model.start_id], np.int64)
    inputs += [tf.TensorSpec([None] * value.ndim, value.dtype, name) for name, value in defaults.items()]
    length = "encoder_sequence_length" if is_encoder_decoder(model) else _NEW
    axes = {name: [BATCH] for name in ("noise", "ids", "lengths", "scores")}
    axes |= {name: [f"{BATCH} or 1", "prefix_length"] for name in defaults}
    return ExportedFunction(loop, inputs, {**axes, **{name: [BATCH, length] for name in ids}}, defaults)


def _are_valid(model: Any, ids: Tensor) -> Tensor:
    """Return a mask (B,) of the rows whose ids (B, S) are all in the vocabulary."""
    invalid = (ids < 0) | (ids >= model.vocabulary_size)
    invalid = tf.pad(invalid, [[0, 0], [0, 1]])  # ONNX Runtime cannot reduce an empty axis on a GPU
    return tf.reduce_sum(tf.cast(invalid, tf.int32), axis=1) == 0


def _encoder(model: Any) -> ExportedFunction:
    source = [BATCH, "encoder_sequence_length"]
    return ExportedFunction(
        lambda input_ids, attention_mask: encode(model, input_ids, attention_mask),
        [_ids("input_ids"), _ids("attention_mask")],
        {"input_ids": source, "attention_mask": source, "last_hidden_state": source},
    )


def _decoder(model: Any) -> ExportedFunction:
    blocks, target, source = model.decoder_blocks, [BATCH, _NEW], [BATCH, "encoder_sequence_length"]
    specs, past, present = _cache(
        attention
        for layer, block in enumerate(blocks)  # in Optimum's order
        for attention in (
            (f"{layer}.decoder", block.self_attention, _PAST, _TOTAL),
            (f"{layer}.encoder", block.cross_attention, _PAST_SOURCE, source[1]),
        )
    )
    hidden = tf.TensorSpec(
        [None, None, model.model_dim], blocks[0].cross_attention.compute_dtype, name="encoder_hidden_states"
    )
    return ExportedFunction(
        lambda input_ids, mask, memory, *tensors: decode(
            model, input_ids, mask, memory, dict(zip(past, tensors, strict=True))
        ),
        [_ids("input_ids"), _ids("encoder_attention_mask"), hidden, *specs],
        {
            "input_ids": target,
            "encoder_attention_mask": source,
            "encoder_hidden_states": source,
            **past,
            "logits": target,
            **present,
        },
    )


def _decoder_only(model: Any) -> ExportedFunction:
    new, names = [BATCH, _NEW], ("input_ids", "attention_mask", "position_ids")
    specs, past, present = _cache(
        (str(layer), block.self_attention, _PAST, _TOTAL) for layer, block in enumerate(model.blocks)
    )
    return ExportedFunction(
        lambda input_ids, mask, positions, *tensors: continue_(
            model, input_ids, mask, positions, dict(zip(past, tensors, strict=True))
        ),
        [*map(_ids, names), *specs],
        {**dict.fromkeys(names, new), "attention_mask": [BATCH, _TOTAL], **past, "logits": new, **present},
    )


def _cache(attentions: Iterable[tuple[str, Any, str, str]]) -> tuple[list[tf.TensorSpec], Axes, Axes]:
    """Return the specs and axes of past keys and values, and the axes of past and new keys and values.

    Args:
        attentions: (name of its tensors, layer, axis of past tokens, axis of past and new tokens) of each attention
            layer.
    """
    specs, past, present = [], {}, {}
    for name, layer, length, total in attentions:
        for part, size in zip(_PARTS, (layer.encoded_key_dim, layer.value_dim), strict=True):
            shape = [None, layer.num_kv_heads, None, size]  # the number of heads is static
            specs.append(tf.TensorSpec(shape, layer.compute_dtype, name=f"past_key_values.{name}.{part}"))
            past[f"past_key_values.{name}.{part}"] = [BATCH, None, length]
            present[f"present.{name}.{part}"] = [BATCH, None, total]
    return specs, past, present


def generate_ids(
    pipeline: Any,
    source_ids: Tensor,
    padding_mask: Tensor | None = None,
    kv_cache: ops.KVCache = ops.GrowingCache(),
    **options: Tensor | None,
) -> dict[str, Tensor]:
    """Run the generation loop from int32 ids (B, S) to "ids" (B, M), "lengths" (B,), "scores" (B,).

    The mask, booleans (B, S), False for padding, is only required for a model without a `pad_id`.

    If the sampler returns N > 1 hypotheses, outputs have a second axis of size N. The options are "prefix_ids"
    (B, Q), "start_ids" (B,), "noise" (B, N, M), "limits", "minimums" and "temperatures" (B,) of
    `generation.generate_ids`.
    """
    model = pipeline.model
    batch_size = tf.shape(source_ids)[0]
    # Some ONNX operations do not support empty tensors, so make at least one row and one column.
    sizes = tf.maximum(tf.shape(source_ids), 1)
    source_ids = _extended(source_ids, sizes, padding_value(model))
    if padding_mask is not None:
        padding_mask = _extended(tf.cast(padding_mask, tf.int32), sizes, 0) > 0
    options = {
        name: None if values is None else _extended(values, sizes[:1], 1) for name, values in options.items()
    }
    out = generation.generate_ids(
        exportable(model),
        source_ids,
        pipeline.max_new_tokens,
        kv_cache,
        sampler=pipeline.sampler,
        constraints=pipeline.constraints,
        padding_mask=padding_mask,
        **options,
    )
    out = {name: out[name][:batch_size] for name in ("ids", "lengths", "scores")}
    if pipeline.sampler.num_return > 1:
        return out
    return {name: tf.gather(values, 0, axis=1) for name, values in out.items()}


def _extended(tensor: Tensor, sizes: Tensor, value: int) -> Tensor:
    """Extend the first k axes to the given sizes (k,), which are larger by at most one element."""
    axes, kept = sizes.shape[0], tensor.shape[sizes.shape[0] :]
    padded = tf.pad(tensor, [[0, 1]] * axes + [[0, 0]] * len(kept), constant_values=value)
    extended = tf.strided_slice(padded, [0] * axes, sizes, [1] * axes)
    extended.set_shape([*[None] * axes, *kept])
    return extended


def exportable(model: Any) -> Any:
    """Return a model with the same outputs that does not need XLA."""
    return _WithoutXla(model) if isinstance(model, Unlimiformer) else model


class _WithoutXla:
    """A model that writes its encoded source without XLA."""

    def __init__(self, model: Unlimiformer) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, source_ids: Tensor) -> Any:
        return self._model.encode(source_ids, ops.StaticCache(in_place=False))


def encode(model: Any, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
    """Encode source ids (B, S) to "last_hidden_state" (B, S, D)."""
    padded = tf.where(attention_mask != 0, input_ids, tf.constant(model.pad_id, input_ids.dtype))
    return {"last_hidden_state": model.encoder_states(tf.cast(padded, tf.int32), training=False)[0]}


def decode(
    model: Any, input_ids: Tensor, encoder_attention_mask: Tensor, memory: Tensor, past: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Decode T new tokens after a past of P ≥ 0 to "logits" (B, T, V) and "present.{i}.{decoder,encoder}.{key,value}".

    If the past has no cross-attention keys and values, they are computed from the encoder's hidden state (B, S, D).
    """
    layers = range(len(past) // 4)
    names = [f"past_key_values.{i}.encoder.{part}" for i in layers for part in _PARTS]

    def project() -> list[Tensor]:
        projected = (block.cross_attention.project(memory) for block in model.decoder_blocks)
        return [layer[part] for layer in projected for part in _PARTS]

    cross = tf.cond(tf.shape(past[names[0]])[2] == 0, project, lambda: [past[name] for name in names])
    context = {
        "projected": [dict(zip(_PARTS, cross[2 * i : 2 * i + 2], strict=True)) for i in layers],
        "padding_mask": encoder_attention_mask != 0,
    }
    shape = tf.shape(input_ids)
    length = tf.shape(past["past_key_values.0.decoder.key"])[2]
    past_positions = tf.broadcast_to(tf.range(length), [shape[0], length])
    cache = [
        {
            "key": past[f"past_key_values.{i}.decoder.key"],
            "value": past[f"past_key_values.{i}.decoder.value"],
            "positions": past_positions,
        }
        for i in layers
    ]
    logits, cache = model.step(
        tf.cast(input_ids, tf.int32),
        cache,
        context,
        cache_index=length,
        positions=tf.broadcast_to(length + tf.range(shape[1]), shape),
        kv_cache=ops.GrowingCache(rolling=False),
    )
    present = {}
    for i in layers:
        present |= {f"present.{i}.decoder.{part}": cache[i][part] for part in _PARTS}
        present |= {f"present.{i}.encoder.{part}": context["projected"][i][part] for part in _PARTS}
    return {"logits": logits, **present}


def continue_(
    model: Any, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Run a decoder-only model on T new tokens after a past of P ≥ 0: "logits" (B, T, V), "present.{i}.{key,value}".

    The mask (B, P + T) covers past and new tokens; the positions (B, T) of the new tokens do not count padding.
    """
    layers = range(len(past) // 2)
    real = attention_mask != 0
    counted = tf.cumsum(tf.cast(real, tf.int32), axis=1) - 1
    length = tf.shape(past["past_key_values.0.key"])[2]
    stored = tf.where(real, counted, -1)[:, :length]
    cache = [
        {**{part: past[f"past_key_values.{i}.{part}"] for part in ("key", "value")}, "positions": stored}
        for i in layers
    ]
    logits, cache = model.step(
        tf.cast(input_ids, tf.int32),
        cache,
        cache_index=length,
        positions=tf.cast(position_ids, tf.int32),
        padding_mask=real[:, length:],
        kv_cache=ops.GrowingCache(rolling=False),
    )
    return {
        "logits": logits,
        **{f"present.{i}.{part}": cache[i][part] for i in layers for part in ("key", "value")},
    }


def _ids(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None, None], tf.int64, name=name)
