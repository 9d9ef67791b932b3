"""Validation of ids and their conversion to a dense tensor."""

from typing import Any

import numpy as np
import tensorflow as tf


def to_dense_ids(ids: Any, vocabulary_size: int, *, padding_value: int, unknown_id: int) -> tf.Tensor:
    """Convert ids to a dense tensor of ids in the vocabulary.

    Args:
        ids: integers of rank 1 to 3: a dense or ragged tensor, an array or lists.
        vocabulary_size: the number of ids.
        padding_value: the id that pads ragged rows.
        unknown_id: the id that replaces ids outside the vocabulary in a graph.

    Returns:
        int32 tensor of the same rank.

    Raises:
        TypeError: if `ids` are not integers.
        ValueError: if `ids` have a different rank or, in eager execution, if an id is outside the vocabulary.
    """
    dense = _to_tensor(ids, padding_value)
    if not dense.dtype.is_integer:
        raise TypeError(f"`ids` must be integers. Received: ids={ids!r}")
    if dense.shape.rank not in (1, 2, 3):
        raise ValueError(
            "`ids` must have a static rank of 1, 2 or 3: (T,), (B, T) or (B, R, T). "
            f"Received: ids of shape {dense.shape}"
        )
    dense = tf.cast(dense, tf.int64)
    known = (dense >= 0) & (dense < vocabulary_size)
    if tf.executing_eagerly() and not tf.reduce_all(known):
        place = tuple(np.argwhere(~known.numpy())[0].tolist())
        raise ValueError(
            f"`ids` must lie in [0, {vocabulary_size}), the vocabulary. "
            f"Received: ids[{', '.join(map(str, place))}]={dense.numpy()[place]}"
        )
    return tf.cast(tf.where(known, dense, unknown_id), tf.int32)


def _to_tensor(ids: Any, padding_value: int) -> tf.Tensor:
    if isinstance(ids, list | tuple | np.ndarray):
        try:
            array = np.asarray(ids)
            # NumPy converts empty lists to floats.
            ids = array.astype(np.int32) if array.size == 0 else array
        except ValueError:
            ids = tf.ragged.constant(ids)
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_tensor(tf.cast(padding_value, ids.dtype) if ids.dtype.is_integer else None)
    return tf.convert_to_tensor(ids)
