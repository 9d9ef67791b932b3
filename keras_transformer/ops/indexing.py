"""Gather operations."""

from typing import Any

from keras import ops

from keras_transformer.typing import Tensor


def pick(values: Tensor, index: Tensor, num_rows: Any = None) -> Tensor:
    """Return values[b, index[b, r]] (B, R, …) of values (B, J, …), by one gather over all rows; `num_rows` is B."""
    inner = [int(size) for size in values.shape[2:]]
    num_rows = ops.shape(index)[0] if num_rows is None else num_rows
    picked = ops.shape(index)[1]
    row = ops.arange(num_rows, dtype="int32")[:, None] * ops.shape(values)[1]
    flat = ops.reshape(row + ops.cast(index, "int32"), [-1])
    return ops.reshape(ops.take(ops.reshape(values, [-1, *inner]), flat, axis=0), [-1, picked, *inner])
