"""What a model can generate for, and errors that say what is wrong with the rest."""

from typing import Any

import keras
import numpy as np

MOST_TOKENS = 2**30
"""As many as int32 counts, with room to fill up to a power of two."""


def is_integer(value: Any) -> bool:
    """Whether it is an integer of Python or NumPy; booleans are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is an integer or a float of Python or NumPy; booleans are none."""
    return is_integer(value) or isinstance(value, float | np.floating)


def check_generates(name: str, model: Any) -> None:
    """Raise where a model has not what generation asks for."""
    if not hasattr(model, "step") or not hasattr(model, "empty_cache"):
        raise TypeError(
            f"`{name}` must generate, with `step` and `empty_cache`, as `models.Transformer` and `models.GPT` do. "
            f"Received: a {type(model).__name__}"
        )


def check_seed(seed: Any) -> None:
    """Raise where a seed has not 32 bits."""
    if not is_integer(seed) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be an integer in [0, 2**32). Received: seed={seed!r}")


def check_most(max_new_tokens: int) -> None:
    """Raise where there are more tokens than can be counted."""
    if max_new_tokens > MOST_TOKENS:
        raise ValueError(
            f"`max_new_tokens` must be at most {MOST_TOKENS}. Received: max_new_tokens={max_new_tokens}"
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
    check_padding("prefix_ids", prefix_ids, model.pad_id, in_front=True)
    return prefix_ids


def check_padding(name: str, ids: np.ndarray, pad_id: int, in_front: bool = False) -> None:
    """Raise where padding stands between tokens, or anywhere but behind them unless it may stand in front."""
    real = (ids != pad_id).astype(np.int8)
    begins = np.diff(real, axis=1, prepend=np.int8(not in_front)) > 0
    wrong = begins.sum(axis=1) > int(in_front)
    if wrong.any():
        where = "in front of the tokens or behind them" if in_front else "behind the tokens alone"
        found = "between tokens" if in_front else "before a token"
        raise ValueError(
            f"`{name}` must have padding {where}. Received: padding {found} in row {wrong.argmax()}"
        )


def check_tokens(source_ids: np.ndarray, pad_id: int, wanted: np.ndarray | bool = True) -> None:
    """Raise where a row that is `wanted` has nothing but padding."""
    empty = (source_ids == pad_id).all(axis=1) & wanted
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


def check_finite(failed_step: np.ndarray, what: str = "logits") -> None:
    """Raise where any row has a step, rather than −1, at which its logits were not finite."""
    for row, step in enumerate(failed_step):
        if step >= 0:
            raise ValueError(
                f"`model` must give finite {what}. "
                f"Received: NaN or infinite {what} for row {row} at step {step}"
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
    model: Any, given: dict[str, np.ndarray], longest: int, reads_last: bool = False, draft: Any = None
) -> None:
    """No prompt is empty, and model and draft have positions for it and the `longest` tokens that are generated.

    The last of them needs no position where it is not read again.
    """
    alone = not hasattr(model, "encode")
    if alone:
        check_tokens(given["source_ids"], model.pad_id)
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
    if longest > most:
        raise ValueError(
            f"`max_new_tokens` must be at most {most}, for {holder} has {limit} positions. "
            f"Received: max_new_tokens={longest}"
        )
    ids = given["source_ids"] if alone else given.get("prefix_ids", given["source_ids"][:, :0])
    lengths = (ids != model.pad_id).sum(axis=1)
    room = most - longest + int(alone)
    if lengths.max(initial=0) > room:
        name = "source_ids" if alone else "prefix_ids"
        raise ValueError(
            f"`{name}` must have at most {room} tokens a row, for {holder} has {limit} positions and "
            f"max_new_tokens is {longest}. Received: {lengths.max()} tokens in row {lengths.argmax()}"
        )
