"""The exported TensorFlow functions of generating pipelines, with a cache that needs no XLA."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_transformer import generation, ops
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.validation import padding_value
from keras_transformer.models import Unlimiformer
from keras_transformer.pipelines.folders import Pipeline

Tensor = Any
Axes = dict[str, list[str | None]]
"""The names of the first axes of each tensor; None for axes of static size."""


@dataclasses.dataclass(frozen=True)
class Graph:
    """An exported function: a signature of a SavedModel, or an ONNX graph.

    Attributes:
        function: a function from tensors to a dictionary of tensors.
        inputs: the specs of its inputs.
        axes: the names of the dynamic axes of inputs and outputs, for ONNX.
    """

    function: Callable[..., dict[str, Any]]
    inputs: list[tf.TensorSpec]
    axes: Axes = dataclasses.field(default_factory=dict)


def generates(pipeline: Any) -> bool:
    """Return whether a pipeline generates in a loop rather than running its model once."""
    return hasattr(pipeline, "sampler")


def check_pipeline(pipeline: Any) -> None:
    """Raise if a pipeline cannot be exported."""
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"`pipeline` must be one of keras_transformer.pipelines. Received: {type(pipeline).__name__}"
        )
    if isinstance(getattr(pipeline, "sampler", None), generation.Speculative):
        raise ValueError(
            "`pipeline` must not be speculative: export `pipeline.with_settings('greedy')`, whose ids are equal. "
            f"Received: sampler={pipeline.sampler}"
        )


def generate_ids(
    pipeline: Any, source_ids: Tensor, padding_mask: Tensor | None = None, noise: Tensor | None = None
) -> dict[str, Tensor]:
    """Run the generation loop from int32 ids (B, S) to "ids" (B, M), "lengths" (B,), "scores" (B,).

    The mask, booleans (B, S), False for padding, is only required for a model without a `pad_id`.

    If the sampler returns N > 1 hypotheses, outputs have an axis of N after the first. Sampling uses `noise`
    (B, N, M, V), by default that of its seed for rows 0, 1, 2, …
    """
    model = pipeline.model
    if not is_encoder_decoder(model):
        # All tokens of a prompt except the last are prefilled, and must be at least one.
        column = [[0, 0], [0, 1]]
        source_ids = tf.pad(source_ids, column, constant_values=padding_value(model))
        padding_mask = None if padding_mask is None else tf.pad(padding_mask, column)
    out = generation.generate_ids(
        _WithoutXla(model) if isinstance(model, Unlimiformer) else model,
        source_ids,
        pipeline.max_new_tokens,
        ops.GrowingCache(),
        sampler=pipeline.sampler,
        constraints=pipeline.constraints,
        padding_mask=padding_mask,
        noise=noise,
    )
    several = pipeline.sampler.num_return > 1
    return {name: out[name] if several else out[name][:, 0] for name in ("ids", "lengths", "scores")}


class _WithoutXla:
    """A model that writes its encoded source without XLA."""

    def __init__(self, model: Unlimiformer) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, source_ids: Tensor) -> Any:
        return self._model.encode(source_ids, ops.StaticCache(in_place=False))


def noise_spec(pipeline: Any) -> list[tf.TensorSpec]:
    """Return the spec of the noise input of a sampling loop, or an empty list."""
    if not isinstance(pipeline.sampler, generation.Sample):
        return []
    shape = [pipeline.sampler.num_return, pipeline.max_new_tokens, pipeline.model.vocabulary_size]
    return [tf.TensorSpec([None, *shape], tf.float32, name="noise")]


def text_to_ids(pipeline: Any, texts: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
    """Generate "ids" (B, M), "lengths" (B,) and "scores" (B,) from strings (B,); see `generate_ids`."""
    return generate_ids(pipeline, **pipeline.preprocess(texts), noise=noise)


def text_to_text(pipeline: Any, texts: Tensor) -> dict[str, Tensor]:
    """Generate "text", strings (B,), from strings (B,), or (B, N) if the sampler returns N > 1 hypotheses."""
    ids = text_to_ids(pipeline, texts)["ids"]
    decoded = pipeline.decode(tf.reshape(ids, [-1, ids.shape[-1]]))
    return {"text": tf.reshape(decoded, tf.shape(ids)[:-1])}


def encode(model: Any, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
    """Encode source ids (B, S) to each layer's keys and values, "present.{i}.encoder.{key,value}" (B, N, S, H)."""
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
    """Decode T new tokens after a past of P ≥ 0 to "logits" (B, T, V) and "present.{i}.decoder.{key,value}"."""
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
        kv_cache=ops.GrowingCache(rolling=False),
    )
    present = {f"present.{i}.decoder.{part}": cache[i][part] for i in layers for part in ("key", "value")}
    return {"logits": logits, **present}


def continue_(
    model: Any, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Run a decoder-only model on T new tokens after a past of P ≥ 0: "logits" (B, T, V), "present.{i}.{key,value}".

    The mask (B, P + T) covers past and new tokens; positions (B, T) are those of the new tokens, without padding.
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
