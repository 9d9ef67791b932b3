"""The base class of relations, their compositions, and helpers for block classes and arguments."""

import abc
import dataclasses
from typing import Any

import keras
import numpy as np

from keras_transformer.configuration import ConfiguredValue
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer, is_integer

Edges = tuple[tuple[int, int], ...]
Bandwidth = tuple[int | None, int | None]

EMPTY = 0
"""The class of a block without a related pair, which kernels skip."""
PARTIAL = 1
"""The class of a block whose pairs may be related or not."""
FULL = 2
"""The class of a block whose pairs are all related, so that kernels need no mask."""

# Positions in tensors have 32 bits, and so have their sums with these integers.
_LARGEST = 2**30


class Relation(ConfiguredValue, abc.ABC):
    """Base class of relations: sets of (query, key) pairs, given by their positions, that may attend."""

    @abc.abstractmethod
    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return True for each (query, key) pair in the relation.

        The positions may be NumPy arrays or tensors of any backend, so implement this with Python operators only.

        Args:
            query_positions: integers (…, T, 1).
            key_positions: integers (…, 1, S).

        Returns:
            Booleans (…, T, S).
        """

    @abc.abstractmethod
    def symmetries(self) -> frozenset[str]:
        """Return the names of the groups of position maps that leave the relation unchanged; see `kept_under`."""

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        """Return the class of each block of the T×S matrix over positions 0, 1, 2, …: `EMPTY`, `PARTIAL` or `FULL`.

        No pair of an `EMPTY` block is related, and every pair of a `FULL` block is. `PARTIAL` claims nothing: a
        relation may return it for any block, and a composition does where both of its operands do.

        Args:
            block_size: number of rows and of columns of a block; the last blocks may be smaller.
            num_queries: T.
            num_keys: S.

        Returns:
            uint8 (⌈T / block_size⌉, ⌈S / block_size⌉).
        """
        return np.full(num_blocks(block_size, num_queries, num_keys), PARTIAL, np.uint8)

    def bandwidth(self) -> Bandwidth:
        r"""Return the largest distances to related keys on the left and on the right, over positions 0, 1, 2, …

        $$(\max_{i \sim j} (i - j), \; \max_{i \sim j} (j - i))$$

        Returns:
            Two non-negative integers, upper bounds of these maxima; None for a side without a known bound.
        """
        return None, None

    def edges(self) -> Edges | None:
        """Return the edges of a relation as sorted pairs (source, target), or None if it is not given by edges.

        An edge lets the query `target` attend to the key `source`.
        """
        return None

    def matrix(self, num_queries: int, num_keys: int | None = None) -> np.ndarray:
        """Return the relation over positions 0, 1, 2, … as a boolean matrix, for inspection.

        Args:
            num_queries: T.
            num_keys: S, by default T.

        Returns:
            bool (T, S).
        """
        num_keys = num_queries if num_keys is None else num_keys
        related = self.related(np.arange(num_queries)[:, None], np.arange(num_keys)[None, :])
        return np.broadcast_to(related, (num_queries, num_keys)).copy()

    def __and__(self, other: "Relation") -> "Relation":
        return And(self, other) if isinstance(other, Relation) else NotImplemented

    def __or__(self, other: "Relation") -> "Relation":
        return Or(self, other) if isinstance(other, Relation) else NotImplemented

    def __invert__(self) -> "Relation":
        return self.relation if isinstance(self, Not) else Not(self)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class And(Relation):
    """The pairs in both relations: `left & right`."""

    left: Relation
    right: Relation

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self.left.related(query_positions, key_positions) & self.right.related(
            query_positions, key_positions
        )

    def symmetries(self) -> frozenset[str]:
        return self.left.symmetries() & self.right.symmetries()

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        sizes = (block_size, num_queries, num_keys)
        both: np.ndarray = np.minimum(self.left.blocks(*sizes), self.right.blocks(*sizes))
        return both

    def bandwidth(self) -> Bandwidth:
        left, right = zip(self.left.bandwidth(), self.right.bandwidth(), strict=True)
        return _nearer(*left), _nearer(*right)

    def edges(self) -> Edges | None:
        """Return the edges of one operand that the other contains, or None if neither is given by edges."""
        for edges, other in ((self.left.edges(), self.right), (self.right.edges(), self.left)):
            if edges is not None:
                sources, targets = np.array(edges, np.int64).reshape(-1, 2).T[:, :, None, None]
                kept = np.broadcast_to(other.related(targets, sources), sources.shape).ravel()
                return tuple(edge for edge, keep in zip(edges, kept, strict=True) if keep)
        return None


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Or(Relation):
    """The pairs in either relation: `left | right`."""

    left: Relation
    right: Relation

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self.left.related(query_positions, key_positions) | self.right.related(
            query_positions, key_positions
        )

    def symmetries(self) -> frozenset[str]:
        return self.left.symmetries() & self.right.symmetries()

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        sizes = (block_size, num_queries, num_keys)
        both: np.ndarray = np.maximum(self.left.blocks(*sizes), self.right.blocks(*sizes))
        return both

    def bandwidth(self) -> Bandwidth:
        left, right = zip(self.left.bandwidth(), self.right.bandwidth(), strict=True)
        return _farther(*left), _farther(*right)

    def edges(self) -> Edges | None:
        """Return the edges of either operand, or None unless both are given by edges."""
        left, right = self.left.edges(), self.right.edges()
        return None if left is None or right is None else tuple(sorted({*left, *right}))


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Not(Relation):
    """The pairs not in a relation: `~relation`."""

    relation: Relation

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return ~self.relation.related(query_positions, key_positions)

    def symmetries(self) -> frozenset[str]:
        return self.relation.symmetries()

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        return (FULL - self.relation.blocks(block_size, num_queries, num_keys)).astype(np.uint8)


def num_blocks(block_size: int, num_queries: int, num_keys: int) -> tuple[int, int]:
    """Return the numbers of query blocks and of key blocks."""
    check_positive_integer(block_size=block_size, num_queries=num_queries, num_keys=num_keys)
    return -(-num_queries // block_size), -(-num_keys // block_size)


def block_ends(
    block_size: int, num_queries: int, num_keys: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the first and last positions of the Q query blocks, (Q, 1), and of the P key blocks, (1, P)."""
    rows, columns = num_blocks(block_size, num_queries, num_keys)
    first_query = np.arange(rows)[:, None] * block_size
    first_key = np.arange(columns)[None, :] * block_size
    last_query = np.minimum(first_query + block_size, num_queries) - 1
    last_key = np.minimum(first_key + block_size, num_keys) - 1
    return (first_query, last_query), (first_key, last_key)


def block_classes(some: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Return the class (uint8) of each block: `some` tells if any pair in it is related, `every` if all are."""
    return np.where(every, FULL, np.where(some, PARTIAL, EMPTY)).astype(np.uint8)


def check_integer(name: str, value: Any, lowest: int, optional: bool = False) -> Any:
    """Return a value as a Python integer of at least `lowest`, or None if that is `optional`."""
    if optional and value is None:
        return None
    if not is_integer(value) or not lowest <= value <= _LARGEST:
        alternative = ", or None" if optional else ""
        raise ValueError(
            f"`{name}` must be an integer from {lowest} to {_LARGEST}{alternative}. Received: {name}={value!r}"
        )
    return int(value)


def _nearer(a: int | None, b: int | None) -> int | None:
    return min((bound for bound in (a, b) if bound is not None), default=None)


def _farther(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)
