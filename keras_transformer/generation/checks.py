"""What a model can generate for, and errors that say what is wrong with the rest."""

from typing import Any

import keras
import numpy as np


def checked_ids(name: str, ids: Any, vocabulary_size: int) -> np.ndarray:
    """A matrix of ids in the vocabulary."""
    try:
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
    return prefix_ids


def checked_integers(name: str, values: Any, batch_size: int) -> np.ndarray:
    """One integer for each row."""
    values = np.asarray(values)
    if values.shape != (batch_size,) or not (values.size == 0 or np.issubdtype(values.dtype, np.integer)):
        raise ValueError(
            f"`{name}` must be integers of shape (batch,). "
            f"Received: {name}.shape={values.shape}, dtype={values.dtype}, {batch_size} sources"
        )
    return values


def check_finite(failed_step: np.ndarray) -> None:
    """Raise where any row has a step, rather than −1, at which its logits were not finite."""
    for row, step in enumerate(failed_step):
        if step >= 0:
            raise ValueError(
                "`model` must give finite logits. "
                f"Received: NaN or infinite logits for row {row} at step {step}"
            )


def check_lengths(model: Any, given: dict[str, np.ndarray], longest: int, reads_last: bool = False) -> None:
    """No prompt is empty, and the model has positions for it and the `longest` tokens that are generated.

    The last of them needs no position where it is not read again.
    """
    alone = not hasattr(model, "encode")
    ids = given["source_ids"] if alone else given.get("prefix_ids", given["source_ids"][:, :0])
    lengths = (ids != model.pad_id).sum(axis=1)
    if alone and len(lengths) and not lengths.all():
        raise ValueError(
            f"`source_ids` must have a token in each row. Received: an empty prompt in row {lengths.argmin()}"
        )
    limit = getattr(model, "max_length", None)
    room = None if limit is None else limit - longest - int(reads_last) + int(alone)
    if room is not None and lengths.max(initial=0) > room:
        name = "source_ids" if alone else "prefix_ids"
        raise ValueError(
            f"`{name}` must have at most {room} tokens a row, for the model has {limit} positions and "
            f"max_new_tokens is {longest}. "
            f"Received: {lengths.max(initial=0)} tokens in row {lengths.argmax() if len(lengths) else 0}"
        )
