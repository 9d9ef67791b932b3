"""Top-k selection."""

import math
from typing import Any

from keras import ops

from keras_transformer.ops.indexing import pick
from keras_transformer.typing import Tensor

LOWEST = -3e38


def top_k(values: Tensor, count: int, num_rows: Any = None) -> tuple[Tensor, Tensor]:
    """Return the `count` highest values of the last axis and their indices, sorted; ties choose the lower index.

    The results are the same as of `keras.ops.top_k`, which XLA compiles to a sort of the full axis inside loops. This
    function sorts only about √(count · L) values, twice: it splits the axis into groups, and the highest values are in
    the `count` groups with the highest maxima.

    Args:
        values: (B, …, L), all sizes but B static. Values below −3 · 10³⁸ may have the index of another value.
        count: the number of values to return, at most L.
        num_rows: the number of lists of L values, by default read from the shape of `values`.

    Returns:
        (B, …, count) with the dtype of `values`, and int32 (B, …, count).
    """
    length = values.shape[-1]
    size = _group_size(length, count)
    if size < 4:  # short lists are sorted directly
        highest, index = ops.top_k(values, count)
        return highest, ops.cast(index, "int32")
    num_groups = -(-length // size)
    flat = ops.reshape(values, [-1, length])
    if length % size:
        flat = ops.pad(flat, [[0, 0], [0, num_groups * size - length]], constant_values=LOWEST)
    groups = ops.reshape(flat, [-1, num_groups, size])
    _, selected = ops.top_k(ops.max(groups, axis=-1), count)
    # In ascending order, so that ties keep the order of indices.
    selected = ops.cast(-ops.top_k(-ops.cast(selected, "float32"), count)[0], "int32")
    highest, index = ops.top_k(ops.reshape(pick(groups, selected, num_rows), [-1, count * size]), count)
    index = ops.cast(index, "int32")
    group = index // size  # of the selected ones
    index = index + (pick(selected, group, num_rows) - group) * size
    if length % size:
        index = ops.minimum(index, length - 1)  # padding is higher than −∞
    shape = [-1, *values.shape[1:-1], count]
    return ops.reshape(highest, shape), ops.reshape(index, shape)


def _group_size(length: int, count: int) -> int:
    """Return a group size of about √(length / count), if possible a divisor of the length to avoid padding."""
    best = math.isqrt(length // count)
    divisors = [size for size in range(best // 2 + 1, 2 * best) if length % size == 0]
    return min(divisors, key=lambda size: abs(size - best)) if divisors else best
