"""What a model can generate for, and errors that say what is wrong with the rest."""

from typing import Any

import keras
import numpy as np

from keras_transformer.arguments import is_integer

MAX_NEW_TOKENS = 2**30
"""As many as int32 counts, with room to fill up to a power of two."""


def check_generates(name: str, model: Any) -> None:
    """Raise where a model lacks a method or an id that generation needs."""
    if not hasattr(model, "step") or not hasattr(model, "empty_cache"):
        raise TypeError(
            f"`{name}` must generate, with `step` and `empty_cache`, as `models.Transformer` and `models.GPT` do. "
            f"Received: a {type(model).__name__}"
        )
    if hasattr(model, "encode") and model.pad_id is None:
        raise TypeError(
            f"`{name}` must have a `pad_id`, as every encoder–decoder. Received: a {type(model).__name__} with "
            "pad_id=None"
        )


def padding_value(model: Any) -> int:
    """The id after the end of a sequence: `pad_id`, or `end_id` for a model without one."""
    return model.end_id if model.pad_id is None else model.pad_id


def checked_mask(name: str, mask: Any, ids: np.ndarray) -> np.ndarray:
    """Booleans of the shape of ids; numbers other than 0 count as True."""
    mask = np.asarray(keras.ops.convert_to_numpy(mask))
    if mask.shape != ids.shape or mask.dtype.kind not in "biu":
        raise ValueError(
            f"`{name}` must be booleans of shape {ids.shape}, that of the ids. "
            f"Received: {name}.shape={mask.shape}, dtype={mask.dtype}"
        )
    return mask.astype(bool)


def source_mask(model: Any, source_ids: np.ndarray, padding_mask: Any = None) -> np.ndarray:
    """Booleans (B, S), False for padding: by the `pad_id` of the model and by the given mask."""
    real = np.ones_like(source_ids, bool) if model.pad_id is None else source_ids != model.pad_id
    return real if padding_mask is None else real & checked_mask("padding_mask", padding_mask, source_ids)


def target_mask(model: Any, target_ids: np.ndarray, padding_mask: Any = None) -> np.ndarray:
    """Booleans (B, T), False for padding; without a `pad_id` and a mask, end tokens after the last end are padding."""
    if padding_mask is not None or model.pad_id is not None:
        real = np.ones_like(target_ids, bool) if model.pad_id is None else target_ids != model.pad_id
        if padding_mask is not None:
            real &= checked_mask("target_padding_mask", padding_mask, target_ids)
        return real
    index = np.arange(target_ids.shape[1])
    last = np.where(target_ids != model.end_id, index, -1).max(axis=1, initial=-1)
    return index <= last[:, None] + 1


def check_seed(seed: Any) -> None:
    """Raise where a seed has not 32 bits."""
    if not is_integer(seed) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be an integer in [0, 2**32). Received: seed={seed!r}")


def check_max_new_tokens(max_new_tokens: int) -> None:
    """Raise where there are more tokens than can be counted."""
    if max_new_tokens > MAX_NEW_TOKENS:
        raise ValueError(
            f"`max_new_tokens` must be at most {MAX_NEW_TOKENS}. Received: max_new_tokens={max_new_tokens}"
        )


def checked_ids(name: str, ids: Any, vocabulary_size: int) -> np.ndarray:
    """A matrix of ids in the vocabulary."""
    try:
        if hasattr(ids, "row_splits"):
            raise ValueError("a ragged tensor")
        ids = np.asarray(keras.ops.convert_to_numpy(ids))
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be rows of one length, filled up with padding. Received: {str(ids)[:80]}"
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
    """What the targets of an encoder–decoder begin with."""
    if not hasattr(model, "encode"):
        raise ValueError(
            "`prefix_ids` must be None for a model without `encode`, whose prompts are its `source_ids`. "
            "Received: both"
        )
    prefix_ids = checked_ids("prefix_ids", prefix_ids, model.vocabulary_size)
    if len(prefix_ids) != batch_size:
        raise ValueError(
            "`prefix_ids` must have as many rows as `source_ids`. "
            f"Received: prefix_ids.shape={prefix_ids.shape}, {batch_size} sources"
        )
    check_padding("prefix_ids", prefix_ids != model.pad_id, left_padding=True)
    return prefix_ids


def check_padding(name: str, real: np.ndarray, left_padding: bool = False) -> None:
    """Raise where padding, False in (B, T), stands between tokens, or before them unless it may."""
    begins = np.diff(real.astype(np.int8), axis=1, prepend=np.int8(not left_padding)) > 0
    wrong = begins.sum(axis=1) > int(left_padding)
    if wrong.any():
        where = "in front of the tokens or behind them" if left_padding else "behind the tokens alone"
        found = "between tokens" if left_padding else "before a token"
        raise ValueError(
            f"`{name}` must have padding {where}. Received: padding {found} in row {wrong.argmax()}"
        )


def check_tokens(real: np.ndarray, wanted: np.ndarray | bool = True) -> None:
    """Raise where a row of (B, S) that is `wanted` has nothing but padding."""
    empty = ~real.any(axis=1) & wanted
    if empty.any():
        raise ValueError(
            f"`source_ids` must have a token in each row. Received: nothing but padding in row {empty.argmax()}"
        )


def checked_integers(
    name: str, values: Any, batch_size: int, least: int = 0, most: int = 2**31 - 1
) -> np.ndarray:
    """One integer in [least, most] for each row."""
    values = np.asarray(values)
    if values.shape != (batch_size,) or not (values.size == 0 or np.issubdtype(values.dtype, np.integer)):
        raise ValueError(
            f"`{name}` must be integers of shape (batch,). "
            f"Received: {name}.shape={values.shape}, dtype={values.dtype}, {batch_size} sources"
        )
    if values.size and not least <= values.min() <= values.max() <= most:
        raise ValueError(
            f"`{name}` must be in [{least}, {most}]. Received: {name} from {values.min()} to {values.max()}"
        )
    return values


def checked_noise(noise: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [0, 1], float32."""
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


def check_finite(failed_step: np.ndarray, quantity: str = "logits") -> None:
    """Raise where any row has a step, rather than −1, at which its logits were not finite."""
    for row, step in enumerate(failed_step):
        if step >= 0:
            raise ValueError(
                f"`model` must give finite {quantity}. "
                f"Received: NaN or infinite {quantity} for row {row} at step {step}"
            )


def check_found(scores: np.ndarray) -> None:
    """Raise where the best of a row's hypotheses (B, N) is none: nothing met the constraints."""
    for row, score in enumerate(scores[:, 0]):
        if score == -np.inf:
            raise ValueError(
                "`constraints` must leave a sequence that can be generated, and a beam wide enough to find it. "
                f"Received: none was found for row {row}"
            )


def check_lengths(
    model: Any,
    sources: np.ndarray,
    prefixes: np.ndarray,
    max_new_tokens: int,
    reads_last: bool = False,
    draft: Any = None,
) -> None:
    """Raise for an empty prompt, and where model or draft have no positions for it and the new tokens.

    Args:
        model: the model.
        sources: booleans (B, S), False for padding.
        prefixes: the same of target prefixes, (B, Q).
        max_new_tokens: how many tokens are generated at most.
        reads_last: whether the last of them is read again, and so needs a position.
        draft: the draft model, or None.
    """
    decoder_only = not hasattr(model, "encode")
    if decoder_only:
        check_tokens(sources)
    limits = {
        getattr(model, "bounded_by", "the model"): getattr(model, "max_length", None),
        "the draft": getattr(draft, "max_length", None),
    }
    holder, limit = min(
        ((holder, limit) for holder, limit in limits.items() if limit is not None),
        key=lambda one: one[1],
        default=("", None),
    )
    if limit is None:
        return
    most = limit - int(reads_last)
    if max_new_tokens > most:
        raise ValueError(
            f"`max_new_tokens` must be at most {most}, for {holder} has {limit} positions. "
            f"Received: max_new_tokens={max_new_tokens}"
        )
    lengths = (sources if decoder_only else prefixes).sum(axis=1)
    room = most - max_new_tokens + int(decoder_only)
    if lengths.max(initial=0) > room:
        name = "source_ids" if decoder_only else "prefix_ids"
        raise ValueError(
            f"`{name}` must have at most {room} tokens a row, for {holder} has {limit} positions and "
            f"max_new_tokens is {max_new_tokens}. Received: {lengths.max()} tokens in row {lengths.argmax()}"
        )
