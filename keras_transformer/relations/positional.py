"""Relations of order and distance between positions."""

import dataclasses
import functools
import operator

import keras
import numpy as np

from keras_transformer.relations import symmetries
from keras_transformer.relations.relation import (
    FULL,
    Bandwidth,
    Relation,
    block_classes,
    block_ends,
    check_integer,
    num_blocks,
)
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Full(Relation):
    """Every query attends to every key: the complete graph.

    References:
        Vaswani et al., "Attention Is All You Need" (2017), the encoder of section 3.1.
    """

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return (query_positions == query_positions) & (key_positions == key_positions)

    def symmetries(self) -> frozenset[str]:
        return symmetries.kept_under(symmetries.SEPARATE_PERMUTATIONS)

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        return np.full(num_blocks(block_size, num_queries, num_keys), FULL, np.uint8)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Causal(Relation):
    """A query attends to its own position and to all positions before it: the total order j ≤ i.

    References:
        Vaswani et al. (2017), the decoder of section 3.1.
    """

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return key_positions <= query_positions

    def symmetries(self) -> frozenset[str]:
        return symmetries.kept_under(symmetries.INCREASING_RELABELLINGS)

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        (first_query, last_query), (first_key, last_key) = block_ends(block_size, num_queries, num_keys)
        return block_classes(first_key <= last_query, last_key <= first_query)

    def bandwidth(self) -> Bandwidth:
        return None, 0


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class SlidingWindow(Relation):
    r"""A query attends to its own position, to `left` positions before it and to `right` positions after it.

    $$i - left \le j \le i + right$$

    With `right=0`, `left=k` gives each query k + 1 keys: its own position and the k before it, as in the sets
    max(0, i − k) … i of Child et al. Implementations that count the query itself in the size s of the window, such as
    j > i − s, keep s keys: they are `SlidingWindow(s - 1)`.

    Args:
        left: number of keys before the query, None for all.
        right: number of keys after the query, None for all.

    Example:
        >>> SlidingWindow(1).matrix(3).astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [0, 1, 1]])

    References:
        Child et al., "Generating Long Sequences with Sparse Transformers" (2019), section 4.2, the first of the two
        patterns of strided attention; Beltagy et al., "Longformer" (2020), section 3.1, with left = right = w / 2.
    """

    left: int | None
    right: int | None = 0

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 0, optional=True))

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        sides = []
        if self.left is not None:
            sides.append(key_positions >= query_positions - self.left)
        if self.right is not None:
            sides.append(key_positions <= query_positions + self.right)
        return functools.reduce(operator.and_, sides or [Full().related(query_positions, key_positions)])

    def symmetries(self) -> frozenset[str]:
        match self.left, self.right:
            case None, None:  # everything
                return symmetries.kept_under(symmetries.SEPARATE_PERMUTATIONS)
            case 0, 0:  # j = i
                return symmetries.kept_under(symmetries.PERMUTATIONS)
            case (None, 0) | (0, None):  # an order
                return symmetries.kept_under(symmetries.INCREASING_RELABELLINGS)
        return symmetries.kept_under(symmetries.TRANSLATIONS)

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        lowest, highest = _offsets(block_size, num_queries, num_keys)
        some = every = np.ones(lowest.shape, bool)
        if self.left is not None:
            some, every = some & (lowest <= self.left), every & (highest <= self.left)
        if self.right is not None:
            some, every = some & (highest >= -self.right), every & (lowest >= -self.right)
        return block_classes(some, every)

    def bandwidth(self) -> Bandwidth:
        return self.left, self.right


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class PrefixLM(Relation):
    r"""A query attends to the whole prefix, to its own position and to all positions before it.

    $$j < length \;\lor\; j \le i$$

    Attention within the prefix is bidirectional. The automorphisms are the permutations of the prefix.

    Args:
        length: the length of the prefix.

    Example:
        >>> PrefixLM(2).matrix(3).astype(int)
        array([[1, 1, 0],
               [1, 1, 0],
               [1, 1, 1]])

    References:
        Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
        (2020), section 3.2.1 and figure 4.
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_integer("length", self.length, 0))

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return (key_positions < self.length) | (key_positions <= query_positions)

    def symmetries(self) -> frozenset[str]:
        return symmetries.kept_under(symmetries.AUTOMORPHISMS)

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        (first_query, last_query), (first_key, last_key) = block_ends(block_size, num_queries, num_keys)
        end = self.length - 1
        return block_classes(
            first_key <= np.maximum(end, last_query), last_key <= np.maximum(end, first_query)
        )

    def bandwidth(self) -> Bandwidth:
        return None, max(self.length - 1, 0)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Strided(Relation):
    r"""A query attends to every `stride`-th position, counted from its own.

    $$(i - j) \bmod stride = 0, \quad \text{and } j \le i \text{ if causal}$$

    Args:
        stride: distance from one key to the next.
        causal: True to attend only to the query's own position and to positions before it.

    Example:
        >>> Strided(2).matrix(4).astype(int)
        array([[1, 0, 0, 0],
               [0, 1, 0, 0],
               [1, 0, 1, 0],
               [0, 1, 0, 1]])

    References:
        Child et al. (2019), section 4.2: strided attention is `SlidingWindow(stride) | Strided(stride)`.
    """

    stride: int
    causal: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "stride", check_integer("stride", self.stride, 1))
        if not isinstance(self.causal, (bool, np.bool_)):
            raise ValueError(f"`causal` must be True or False. Received: causal={self.causal!r}")
        object.__setattr__(self, "causal", bool(self.causal))

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        # Remainders of T + S positions instead of T·S differences.
        on_stride = query_positions % self.stride == key_positions % self.stride
        return on_stride & (key_positions <= query_positions) if self.causal else on_stride

    def symmetries(self) -> frozenset[str]:
        if self.stride == 1:
            return (Causal() if self.causal else Full()).symmetries()
        return symmetries.kept_under(symmetries.TRANSLATIONS)

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        lowest, highest = _offsets(block_size, num_queries, num_keys)
        first = np.maximum(lowest, 0) if self.causal else lowest
        return _multiples(self.stride, first, highest, lowest, highest)

    def bandwidth(self) -> Bandwidth:
        return None, (0 if self.causal else None)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Dilated(Relation):
    r"""A sliding window with gaps: a query attends to itself and to `window` positions before it, `rate` apart.

    $$j = i - rate \cdot m, \quad 0 \le m \le window$$

    Args:
        window: number of keys before the query.
        rate: distance from one key to the next; `rate=1` is `SlidingWindow(window)`.

    Example:
        >>> Dilated(1, rate=2).matrix(4).astype(int)
        array([[1, 0, 0, 0],
               [0, 1, 0, 0],
               [1, 0, 1, 0],
               [0, 1, 0, 1]])

    References:
        Beltagy et al. (2020), section 3.1, "Dilated Sliding Window"; there on both sides, here on the left only.
    """

    window: int
    rate: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", check_integer("window", self.window, 0))
        object.__setattr__(self, "rate", check_integer("rate", self.rate, 1))
        check_integer("window * rate", self.window * self.rate, 0)

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return (
            (query_positions % self.rate == key_positions % self.rate)
            & (key_positions <= query_positions)
            & (key_positions >= query_positions - self.window * self.rate)
        )

    def symmetries(self) -> frozenset[str]:
        return symmetries.kept_under(symmetries.TRANSLATIONS if self.window else symmetries.PERMUTATIONS)

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        lowest, highest = _offsets(block_size, num_queries, num_keys)
        farthest = self.window * self.rate
        return _multiples(self.rate, np.maximum(lowest, 0), np.minimum(highest, farthest), lowest, highest)

    def bandwidth(self) -> Bandwidth:
        return self.window * self.rate, 0


def _offsets(block_size: int, num_queries: int, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest i − j of each block; a block contains every integer between them."""
    (first_query, last_query), (first_key, last_key) = block_ends(block_size, num_queries, num_keys)
    return first_query - last_key, last_query - first_key


def _multiples(
    step: int, first: np.ndarray, last: np.ndarray, lowest: np.ndarray, highest: np.ndarray
) -> np.ndarray:
    """Return the classes of blocks of offsets `lowest` … `highest`.

    The related offsets are the multiples of `step` from `first` to `last`, which lie within the block.
    """
    count = last // step - (first - 1) // step  # not positive where last < first
    return block_classes(count > 0, count == highest - lowest + 1)
