"""Validation of the inputs of generation."""

import operator
import random
from typing import Any

import keras
import numpy as np

from keras_transformer.generation.generative_model import is_encoder_decoder, source_is_ids
from keras_transformer_options.arguments import ArgumentError, check

MAX_NEW_TOKENS = 2**20
"""The largest number of new tokens, more than any model generates, because tensors are allocated for all of them."""
MAX_HYPOTHESES = 2**14
"""The largest number of hypotheses of a row."""


def check_generates(name: str, model: Any) -> None:
    """Raise a TypeError if a model lacks a method or an id that generation needs."""
    if not hasattr(model, "step") or not hasattr(model, "empty_cache"):
        raise TypeError(
            f"`{name}` must have `step` and `empty_cache`, such as `models.Transformer` and `models.GPT`. "
            f"Received: a {type(model).__name__}"
        )
    if is_encoder_decoder(model) and model.pad_id is None:
        raise TypeError(
            f"`{name}` must have a `pad_id` if it is an encoder–decoder. Received: a {type(model).__name__} with "
            "pad_id=None"
        )


def check_compatible(model: Any, other: Any, argument: str) -> None:
    """Raise a ValueError if two models differ in vocabulary or special ids, or only one is decoder-only."""
    for name in ("vocabulary_size", "pad_id", "start_id", "end_id"):
        values = getattr(model, name, None), getattr(other, name, None)
        if values[0] != values[1]:
            raise ValueError(f"`{argument}` must have the same {name}. Received: {values[0]} and {values[1]}")
    if is_encoder_decoder(model) != is_encoder_decoder(other):
        raise ValueError(
            f"`{argument}` must all be encoder–decoders, or all decoder-only. Received: one of each"
        )


def padding_value(model: Any) -> int:
    """Return the id that pads ended sequences: `pad_id`, or `end_id` for a model without one."""
    return model.end_id if model.pad_id is None else model.pad_id


def checked_mask(name: str, mask: Any, ids: np.ndarray) -> np.ndarray:
    """Return a validated mask of the shape of the ids, in which nonzero numbers are True."""
    mask = np.asarray(keras.ops.convert_to_numpy(mask))
    if mask.shape != ids.shape or mask.dtype.kind not in "biu":
        raise ValueError(
            f"`{name}` must be booleans of shape {ids.shape}, as the ids. "
            f"Received: {name}.shape={mask.shape}, dtype={mask.dtype}"
        )
    return mask.astype(bool)


def source_mask(model: Any, source_ids: np.ndarray, padding_mask: Any = None) -> np.ndarray:
    """Return the mask (B, S), False for the model's `pad_id` and where `padding_mask` is False."""
    if not source_is_ids(model):
        check(padding_mask is None, "be None for a model that reads audio", padding_mask=padding_mask)
        return np.ones((len(source_ids), 1), bool)
    real = np.ones_like(source_ids, bool) if model.pad_id is None else source_ids != model.pad_id
    if padding_mask is not None:
        real &= checked_mask("padding_mask", padding_mask, source_ids)
    if is_encoder_decoder(model):
        check_source_padding(real)
    return real


def target_mask(model: Any, target_ids: np.ndarray, padding_mask: Any = None) -> np.ndarray:
    """Return the mask (B, T), False for padding: without `pad_id` and mask, for final end tokens except the first."""
    if padding_mask is not None or model.pad_id is not None:
        real = np.ones_like(target_ids, bool) if model.pad_id is None else target_ids != model.pad_id
        if padding_mask is not None:
            real &= checked_mask("target_padding_mask", padding_mask, target_ids)
        return real
    index = np.arange(target_ids.shape[1])
    last = np.where(target_ids != model.end_id, index, -1).max(axis=1, initial=-1)
    return index <= last[:, None] + 1


def masked(model: Any, source_ids: np.ndarray, real: np.ndarray) -> dict[str, np.ndarray]:
    """Return ids with `pad_id` at padding, or ids and a mask for a model without `pad_id`."""
    if not source_is_ids(model):
        return {"source_ids": source_ids}
    if model.pad_id is None:
        return {"source_ids": source_ids, "padding_mask": real}
    return {"source_ids": np.where(real, source_ids, model.pad_id)}


def checked_pair(
    model: Any, source_ids: Any, target_ids: Any, padding_mask: Any = None, target_padding_mask: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return validated ids and masks (False for padding) of sources and targets.

    There must be as many targets as sources. Targets must have non-empty sources and be padded on the right.
    """
    source_ids = checked_ids("source_ids", source_ids, model.vocabulary_size)
    target_ids = checked_ids("target_ids", target_ids, model.vocabulary_size)
    if len(target_ids) != len(source_ids):
        raise ValueError(
            "`target_ids` must have as many rows as `source_ids`. "
            f"Received: target_ids.shape={target_ids.shape}, {len(source_ids)} sources"
        )
    sources = source_mask(model, source_ids, padding_mask)
    targets = target_mask(model, target_ids, target_padding_mask)
    check_tokens(sources, True if not is_encoder_decoder(model) else targets.any(axis=1))
    check_padding("target_ids", targets)
    return source_ids, sources, target_ids, targets


def seed_or_new(seed: int | None) -> int:
    """Return the seed, or for None a new one from Python's `random`, as Keras draws its default seeds."""
    return random.getrandbits(32) if seed is None else seed


def checked_source(model: Any, source_ids: Any) -> np.ndarray:
    """Return validated sources: ids, or audio (B, N) or frames (B, T, F) for a model that reads audio."""
    if source_is_ids(model):
        return checked_ids("source_ids", source_ids, model.vocabulary_size)
    source = np.asarray(keras.ops.convert_to_numpy(source_ids))
    if source.ndim not in (2, 3) or source.dtype.kind != "f" or not np.isfinite(source).all():
        finite = source.dtype.kind == "f" and bool(np.isfinite(source).all())
        raise ValueError(
            "`source_ids` must be audio (batch, samples) or frames (batch, length, size), finite floats, for a "
            f"{type(model).__name__}. Received: shape {source.shape}, dtype={source.dtype}, finite={finite}"
        )
    return source.astype(np.float32)


def checked_ids(name: str, ids: Any, vocabulary_size: int) -> np.ndarray:
    """Return a validated matrix of ids in the vocabulary."""
    try:
        if hasattr(ids, "row_splits"):
            raise ValueError("a ragged tensor")
        ids = np.asarray(keras.ops.convert_to_numpy(ids))
    except ValueError as error:
        raise ValueError(
            f"`{name}` must have rows of equal length, padded. Received: {str(ids)[:80]}"
        ) from error
    if ids.ndim != 2 or not (ids.size == 0 or np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(
            f"`{name}` must be integers of shape (batch, length). "
            f"Received: {name}.shape={ids.shape}, dtype={ids.dtype}"
        )
    if ids.size and not 0 <= ids.min() <= ids.max() < vocabulary_size:
        raise ValueError(
            f"`{name}` must be in [0, {vocabulary_size}). Received: ids from {ids.min()} to {ids.max()}"
        )
    return ids


def checked_prefix(model: Any, prefix_ids: Any, batch_size: int) -> np.ndarray:
    """Return validated target prefixes of an encoder–decoder."""
    if not is_encoder_decoder(model):
        raise ValueError(
            "`prefix_ids` must be None for a decoder-only model, whose prompts are its `source_ids`. Received: both"
        )
    prefix_ids = checked_ids("prefix_ids", prefix_ids, model.vocabulary_size)
    if len(prefix_ids) != batch_size:
        raise ValueError(
            "`prefix_ids` must have as many rows as `source_ids`. "
            f"Received: prefix_ids.shape={prefix_ids.shape}, {batch_size} sources"
        )
    check_padding("prefix_ids", prefix_ids != model.pad_id, left_padding=True)
    return prefix_ids


def checked_start(model: Any, start_ids: Any, batch_size: int) -> np.ndarray:
    """Return validated start tokens of an encoder–decoder."""
    if not is_encoder_decoder(model):
        raise ValueError(
            "`start_ids` must be None for a decoder-only model, whose prompts are its `source_ids`. Received: both"
        )
    return checked_integers("start_ids", start_ids, batch_size, 0, model.vocabulary_size - 1)


def check_padding(name: str, real: np.ndarray, left_padding: bool = False) -> None:
    """Raise a ValueError if padding, False in (B, T), is between tokens, or before them without `left_padding`."""
    begins = np.diff(real.astype(np.int8), axis=1, prepend=np.int8(not left_padding)) > 0
    wrong = begins.sum(axis=1) > int(left_padding)
    if wrong.any():
        where = "before or after the tokens" if left_padding else "after the tokens only"
        received = "between tokens" if left_padding else "before a token"
        raise ValueError(
            f"`{name}` must have padding {where}. Received: padding {received} in row {wrong.argmax()}"
        )


def check_source_padding(real: np.ndarray) -> None:
    """Raise a ValueError if a row of (B, S) has padding, False, before its tokens, which moves their positions."""
    wrong = real.any(axis=1) & ~real[:, :1].all(axis=1)
    if wrong.any():
        raise ValueError(
            "`source_ids` of an encoder–decoder must have padding after the tokens. "
            f"Received: padding before the tokens of row {wrong.argmax()}"
        )


def check_tokens(real: np.ndarray, required: Any = True) -> None:
    """Raise a ValueError if a row of (B, S) for which `required` is True has only padding."""
    empty = ~real.any(axis=1) & required
    if empty.any():
        raise ValueError(
            f"`source_ids` must have a token in each row. Received: only padding in row {empty.argmax()}"
        )


def checked_integers(
    name: str, values: Any, batch_size: int, minimum: int = 0, maximum: int = 2**31 - 1
) -> np.ndarray:
    """Return validated integers (B,) in [minimum, maximum]."""
    values = np.asarray(values)
    if values.shape != (batch_size,) or not (values.size == 0 or np.issubdtype(values.dtype, np.integer)):
        raise ValueError(
            f"`{name}` must be integers of shape (batch,). "
            f"Received: {name}.shape={values.shape}, dtype={values.dtype}, {batch_size} sources"
        )
    if values.size and not minimum <= values.min() <= values.max() <= maximum:
        raise ValueError(
            f"`{name}` must be in [{minimum}, {maximum}]. Received: {name} from {values.min()} to {values.max()}"
        )
    return values


def checked_noise(noise: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return validated float32 numbers in [0, 1]."""
    expected = f"`noise` must be numbers in [0, 1] of shape {shape}"
    try:
        noise = np.asarray(keras.ops.convert_to_numpy(noise), np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{expected}. Received: {str(noise)[:80]}") from error
    if noise.shape != shape:
        raise ValueError(f"{expected}. Received: noise.shape={noise.shape}")
    if noise.size and not 0 <= noise.min() <= noise.max() <= 1:
        raise ValueError(f"{expected}. Received: noise from {noise.min()} to {noise.max()}")
    return noise


def checked_temperatures(temperatures: Any, batch_size: int) -> np.ndarray:
    """Return validated float32 temperatures (B,)."""
    values = np.asarray(temperatures)
    low, high = 1e-20, 1e20
    if (
        values.shape != (batch_size,)
        or values.dtype.kind not in "iuf"
        or not ((values >= low) & (values <= high)).all()
    ):
        raise ValueError(
            f"`temperatures` must be numbers in [{low}, {high}] of shape (batch,). "
            f"Received: temperatures={values!r}, {batch_size} sources"
        )
    return values.astype(np.float32)


def check_finite(failed_step: np.ndarray, quantity: str = "logits") -> None:
    """Raise a ValueError if the logits of a row were not finite, at the step `failed_step` (B,), −1 for none."""
    for row, step in enumerate(failed_step):
        if step >= 0:
            raise ValueError(
                f"`model` must return finite {quantity}. "
                f"Received: NaN or infinite {quantity} for row {row} at step {step}"
            )


def check_sequences(scores: np.ndarray) -> None:
    """Raise a ValueError if the scores (B, N) show that no hypothesis of a row satisfies the constraints."""
    for row, score in enumerate(scores[:, 0]):
        if score == -np.inf:
            raise ValueError(
                "`constraints` must allow a sequence, and the beam must be wide enough to find it. "
                f"Received: no sequence for row {row}"
            )


def check_lengths(
    model: Any,
    sources: np.ndarray,
    prefixes: np.ndarray,
    max_new_tokens: int,
    reads_last: bool = False,
    drafts: tuple[Any, ...] = (),
) -> None:
    """Raise a ValueError if a prompt is empty, or prompt and new tokens exceed a model's or draft's maximum length.

    Args:
        model: the model.
        sources: booleans (B, S), False for padding of the sources.
        prefixes: booleans (B, Q), False for padding of the target prefixes.
        max_new_tokens: the maximum number of new tokens.
        reads_last: whether the model also reads the last new token, which then needs a position.
        drafts: the draft models of the sampler.
    """
    decoder_only = not is_encoder_decoder(model)
    if decoder_only:
        check_tokens(sources)
    limits = [
        (getattr(model, "bounded_by", "the model"), getattr(model, "max_length", None)),
        *(("the draft", getattr(draft, "max_length", None)) for draft in drafts),
    ]
    holder, limit = min(
        ((holder, limit) for holder, limit in limits if limit is not None),
        key=operator.itemgetter(1),
        default=("", None),
    )
    if limit is None:
        return
    maximum = limit - int(reads_last)
    if max_new_tokens > maximum:
        raise ArgumentError(
            f"{{max_new_tokens}} must be at most {maximum}, because {holder} has {limit} positions",
            max_new_tokens=max_new_tokens,
        )
    lengths = (sources if decoder_only else prefixes).sum(axis=1)
    max_tokens = maximum - max_new_tokens + int(decoder_only)
    if lengths.max(initial=0) > max_tokens:
        name = "source_ids" if decoder_only else "prefix_ids"
        raise ValueError(
            f"`{name}` must have at most {max_tokens} tokens in each row, because {holder} has {limit} positions and "
            f"max_new_tokens is {max_new_tokens}. Received: {lengths.max()} tokens in row {lengths.argmax()}"
        )
