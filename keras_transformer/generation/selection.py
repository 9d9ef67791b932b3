"""The best of many candidates."""

import math
from typing import Any

from keras import ops

Tensor = Any

LOWEST = -3e38


def top_k(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of the last axis and where they stand, the highest first, the lower index where values tie.

    As `keras.ops.top_k`, which inside a loop XLA compiles to a sort of the whole axis. Here about √(count · L) values
    are sorted, twice: the axis is cut into groups, and the best are all in the `count` groups of the highest
    maxima.

    Args:
        values: (…, L), L known and no value below −10³⁸.
        count: at most L.

    Returns:
        (…, count) of the type of `values`, and int32 (…, count).
    """
    *leading, length = ops.shape(values)
    size = math.isqrt(length // count)  # of a group
    if size < 2:
        found, index = ops.top_k(values, count)
        return found, ops.cast(index, "int32")
    num_groups = -(-length // size)
    flat = ops.reshape(values, [-1, length])
    flat = ops.pad(flat, [[0, 0], [0, num_groups * size - length]], constant_values=LOWEST)
    groups = ops.reshape(flat, [-1, num_groups, size])
    _, chosen = ops.top_k(ops.max(groups, axis=-1), count)
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)  # so that places have the order of indices
    found, place = ops.top_k(ops.reshape(pick(groups, chosen), [-1, count * size]), count)
    place = ops.cast(place, "int32")
    index = pick(chosen, place // size) * size + place % size
    return ops.reshape(found, [*leading, count]), ops.reshape(index, [*leading, count])


def pick(values: Tensor, index: Tensor) -> Tensor:
    """values[b, index[b, r]] for (B, J, …) and (B, R), by one gather over all rows."""
    inner = [int(size) for size in values.shape[2:]]
    count = values.shape[1]
    row = ops.arange(ops.shape(index)[0], dtype="int32")[:, None] * count
    flat = ops.reshape(row + ops.cast(index, "int32"), [-1])
    return ops.reshape(
        ops.take(ops.reshape(values, [-1, *inner]), flat, axis=0), [-1, index.shape[1], *inner]
    )
