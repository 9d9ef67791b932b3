"""The TensorFlow functions that are exported: what runs in Python, with a cache update that needs no XLA."""

from typing import Any

import tensorflow as tf

from keras_transformer import generation, ops
from keras_transformer.generation.validation import padding_value
from keras_transformer.models import Unlimiformer

Tensor = Any


def generate_ids(
    pipeline: Any, source_ids: Tensor, padding_mask: Tensor | None = None, noise: Tensor | None = None
) -> dict[str, Tensor]:
    """The whole generation loop: int32 ids (B, S) → "ids" (B, M), "lengths" (B,), "scores" (B,).

    The mask, booleans (B, S), False for padding, is needed for a model without a `pad_id` alone.

    Where the sampler returns N > 1 hypotheses, they are an axis after the first. Sampling draws with `noise`,
    (B, N, M, V), or what its seed makes for rows 0, 1, 2, …
    """
    model = pipeline.model
    if not hasattr(model, "encode"):
        # What comes before the last token of a prompt is read at once, and must be something.
        column = [[0, 0], [0, 1]]
        source_ids = tf.pad(source_ids, column, constant_values=padding_value(model))
        padding_mask = None if padding_mask is None else tf.pad(padding_mask, column)
    out = generation.generate_ids(
        _WithoutXla(model) if isinstance(model, Unlimiformer) else model,
        source_ids,
        pipeline.max_new_tokens,
        ops.grow_update,
        sampler=pipeline.sampler,
        constraints=pipeline.constraints,
        padding_mask=padding_mask,
        noise=noise,
    )
    several = pipeline.sampler.num_return > 1
    return {name: out[name] if several else out[name][:, 0] for name in ("ids", "lengths", "scores")}


class _WithoutXla:
    """A model that writes what it encodes as it writes into a cache."""

    def __init__(self, model: Unlimiformer) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, source_ids: Tensor) -> Any:
        return self._model.encode(source_ids, ops.select_update)


def noise_spec(pipeline: Any) -> list[tf.TensorSpec]:
    """The noise that the exported loop takes where it samples, else nothing."""
    if not isinstance(pipeline.sampler, generation.Sample):
        return []
    shape = [pipeline.sampler.num_return, pipeline.max_new_tokens, pipeline.model.vocabulary_size]
    return [tf.TensorSpec([None, *shape], tf.float32, name="noise")]


def text_to_ids(pipeline: Any, texts: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
    """Strings (B,) → "ids" (B, M), "lengths" (B,), "scores" (B,); see `generate_ids`."""
    return generate_ids(pipeline, **pipeline.preprocess(texts), noise=noise)


def text_to_text(pipeline: Any, texts: Tensor) -> dict[str, Tensor]:
    """Strings (B,) → "text", strings (B,), or (B, N) where the sampler returns N > 1 hypotheses."""
    ids = text_to_ids(pipeline, texts)["ids"]
    decoded = pipeline.decode(tf.reshape(ids, [-1, ids.shape[-1]]))
    return {"text": tf.reshape(decoded, tf.shape(ids)[:-1])}


def encode(model: Any, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
    """Source ids (B, S) → every layer's projected memory, "present.{i}.encoder.{key,value}" (B, N, S, H)."""
    padded = tf.where(attention_mask != 0, input_ids, tf.constant(model.pad_id, input_ids.dtype))
    projected = model.encode(tf.cast(padded, tf.int32))["projected"]
    return {
        f"present.{i}.encoder.{part}": layer[part]
        for i, layer in enumerate(projected)
        for part in ("key", "value")
    }


def decode(
    model: Any, input_ids: Tensor, encoder_attention_mask: Tensor, past: dict[str, Tensor]
) -> dict[str, Tensor]:
    """T new tokens and a past of P ≥ 0 → "logits" (B, T, V) and "present.{i}.decoder.{key,value}"."""
    layers = range(len(past) // 4)
    context = {
        "projected": [
            {part: past[f"past_key_values.{i}.encoder.{part}"] for part in ("key", "value")} for i in layers
        ],
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
        update=ops.append_update,
    )
    present = {f"present.{i}.decoder.{part}": cache[i][part] for i in layers for part in ("key", "value")}
    return {"logits": logits, **present}


def continue_(
    model: Any, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: dict[str, Tensor]
) -> dict[str, Tensor]:
    """A decoder alone: T new tokens and a past of P ≥ 0 → "logits" (B, T, V) and "present.{i}.{key,value}".

    The mask (B, P + T) is of past and new tokens; positions (B, T), of the new ones, count what is no padding.
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
        update=ops.append_update,
    )
    return {
        "logits": logits,
        **{f"present.{i}.{part}": cache[i][part] for i in layers for part in ("key", "value")},
    }
