"""Biases of attention logits that depend only on positions, computed block by block.

Axes: B batch, T queries, S keys, N heads.
"""

import abc
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


class PositionBias(abc.ABC):
    """A bias of attention logits that depends only on positions.

    A kernel calls `block` for one block of the T × S matrix at a time, and again when it recomputes the block in the
    backward pass. The parameters are passed as tensors, and `backward` returns their gradients, because a custom
    gradient cannot read Keras variables. A bias without parameters needs `block` only.
    """

    num_heads: int

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The trainable tensors or variables, by default none."""
        return ()

    @abc.abstractmethod
    def block(self, parameters: tuple[Tensor, ...], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias of a block of queries and keys.

        Args:
            parameters: the tensors of the property `parameters`.
            query_positions: integers (T, 1) or (B, T, 1) of any value; those of masked queries may be −1.
            key_positions: integers (1, S) or (B, 1, S), likewise.

        Returns:
            float32 (N, T, S), or (B, N, T, S) if the positions of queries or keys have a batch axis.
        """

    def backward(
        self,
        parameters: tuple[Tensor, ...],
        query_positions: Tensor,
        key_positions: Tensor,
        upstream: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the gradients of one block with respect to the parameters.

        Args:
            parameters: the tensors of the property `parameters`.
            query_positions: as in `block`.
            key_positions: as in `block`.
            upstream: the gradient of the loss with respect to the output of `block`.

        Returns:
            A tensor in the shape of each parameter, which the kernel sums over the blocks.
        """
        if parameters:
            raise NotImplementedError(
                f"A {type(self).__name__} has parameters, so it must implement `backward`."
            )
        return ()


@dataclasses.dataclass(eq=False)
class LinearBias(PositionBias):
    r"""ALiBi: a penalty proportional to the distance, with a different slope for each head.

    $$b_n(i, j) = -m_n\, |i - j|$$

    Args:
        num_heads: N.

    References:
        Press et al., "Train Short, Test Long: Attention with Linear Biases" (2022), section 3.
    """

    num_heads: int

    def __post_init__(self) -> None:
        check_positive_integer(num_heads=self.num_heads)

    def block(self, parameters: tuple[Tensor, ...], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return −m_n · |i − j|."""
        distances = ops.cast(ops.absolute(key_positions - query_positions), "float32")
        return ops.expand_dims(distances, -3) * ops.convert_to_tensor(
            [[[-slope]] for slope in slopes(self.num_heads)], "float32"
        )


@dataclasses.dataclass(eq=False)
class BucketBias(PositionBias):
    r"""T5's relative bias: a trainable scalar for each head and each bucket of distances.

    $$b_n(i, j) = E_{\beta(j - i),\, n}$$

    The bucket β (see `buckets`) holds a single distance if that is small, and otherwise a range of distances that
    grows geometrically up to `max_distance`; all greater distances share the last bucket.

    Args:
        table: E, float32 (num_buckets, N).
        max_distance: the distance from which on all distances share the last bucket.
        bidirectional: True for separate buckets of keys after the query; if False, they share the bucket of
            distance 0, as causal attention never reads them.

    Raises:
        ValueError: if the table has too few buckets, or `max_distance` does not exceed the number of distances with a
            separate bucket each.

    References:
        Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020),
        section 2.1.
    """

    table: Tensor
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        if len(self.table.shape) != 2:
            raise ValueError(f"`table` must be (num_buckets, N). Received: table.shape={self.table.shape}")
        check_buckets(self.table.shape[0], self.max_distance, self.bidirectional)
        self.num_heads = int(self.table.shape[1])

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The table."""
        return (self.table,)

    def block(self, parameters: tuple[Tensor, ...], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the table's entry for the bucket of every j − i."""
        (table,) = parameters
        by_bucket = ops.transpose(ops.cast(table, "float32"))
        by_offset = ops.take(by_bucket, self._buckets_by_offset(), axis=1)  # (N, 2M + 1)
        bias = ops.take(by_offset, self._offsets(query_positions, key_positions), axis=1)
        return bias if len(bias.shape) == 3 else ops.moveaxis(bias, 0, 1)  # (N, T, S) or (B, N, T, S)

    def backward(
        self,
        parameters: tuple[Tensor, ...],
        query_positions: Tensor,
        key_positions: Tensor,
        upstream: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the sum of `upstream` over the pairs of each bucket."""
        (table,) = parameters
        offsets = self._offsets(query_positions, key_positions)
        buckets = ops.take(self._buckets_by_offset(), offsets, axis=0)
        pairs = ops.moveaxis(ops.cast(upstream, "float32"), -3, -1)  # (T, S, N) or (B, T, S, N)
        sums = ops.segment_sum(
            ops.reshape(pairs, [-1, table.shape[1]]), ops.reshape(buckets, [-1]), table.shape[0]
        )
        return (ops.cast(sums, table.dtype),)

    def _offsets(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the index of each j − i in `_buckets_by_offset`."""
        relative = ops.cast(key_positions, "int32") - ops.cast(query_positions, "int32")
        return ops.clip(relative, -self.max_distance, self.max_distance) + self.max_distance

    def _buckets_by_offset(self) -> Tensor:
        return ops.convert_to_tensor(
            _buckets(self.table.shape[0], self.max_distance, self.bidirectional), "int32"
        )


def slopes(num_heads: int) -> tuple[float, ...]:
    r"""Return ALiBi's slopes, the steepest first if `num_heads` is a power of two.

    $m_n = 2^{-8n/N}$ for n = 1 … N if N is a power of two. Otherwise, as in the authors' code, the slopes of the
    largest power of two below N, followed by every other slope of twice that power.

    Args:
        num_heads: N.

    Returns:
        The slopes of the N heads.
    """
    power = 2 ** int(math.log2(num_heads))
    first = [2.0 ** (-8 * n / power) for n in range(1, power + 1)]
    between = [2.0 ** (-4 * n / power) for n in range(1, 2 * power + 1, 2)]
    return tuple(first + between[: num_heads - power])


def buckets(
    relative_positions: Any, num_buckets: int, max_distance: int, bidirectional: bool = True
) -> np.ndarray[Any, Any]:
    """Return T5's bucket of each relative position.

    Args:
        relative_positions: key position minus query position, j − i, integers of any shape.
        num_buckets: the number of buckets of both directions together.
        max_distance: the distance from which on all distances share the last bucket.
        bidirectional: True for separate buckets of positive relative positions, the upper half; if False, they are
            in bucket 0.

    Returns:
        NumPy integers of the same shape, in [0, num_buckets).
    """
    check_buckets(num_buckets, max_distance, bidirectional)
    relative = np.asarray(relative_positions)
    known = np.asarray(_buckets(num_buckets, max_distance, bidirectional))
    result: np.ndarray[Any, Any] = known[np.clip(relative, -max_distance, max_distance) + max_distance]
    return result


def check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    """Raise a ValueError unless there are both exact and logarithmic buckets."""
    minimum = 4 if bidirectional else 2
    if num_buckets < minimum or (bidirectional and num_buckets % 2):
        raise ValueError(
            f"`num_buckets` must be at least {minimum}{' and even' if bidirectional else ''} if "
            f"bidirectional={bidirectional}. Received: num_buckets={num_buckets}"
        )
    exact = num_buckets // (4 if bidirectional else 2)
    if max_distance <= exact:
        raise ValueError(
            f"`max_distance` must be greater than {exact}, the number of distances with a separate bucket each. "
            f"Received: max_distance={max_distance}, num_buckets={num_buckets}"
        )


@functools.lru_cache
def _buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> tuple[int, ...]:
    """Return the buckets of the relative positions −max_distance … max_distance, for any that are farther too.

    The logarithms are computed by NumPy in float32 on every backend: a difference in the last digit would move a
    distance at the edge of a bucket into the next bucket.
    """
    relative = np.arange(-max_distance, max_distance + 1)
    per_direction = num_buckets // 2 if bidirectional else num_buckets
    exact = per_direction // 2
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    growth = np.log(np.maximum(distance, 1).astype("float32") / np.float32(exact)) / np.float32(
        math.log(max_distance / exact)
    )
    far = exact + (growth * np.float32(per_direction - exact)).astype("int64")
    bucket = np.where(distance < exact, distance, np.minimum(far, per_direction - 1))
    return tuple((bucket + (relative > 0) * per_direction * bidirectional).tolist())
