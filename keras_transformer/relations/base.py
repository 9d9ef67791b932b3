"""The abstract relation, and relations composed of others."""

import abc
import dataclasses
from typing import Any

import keras
import numpy as np

from keras_transformer.relations.tiling import FULL, PARTIAL, num_blocks

Tensor = Any
Edges = tuple[tuple[int, int], ...]
Bandwidth = tuple[int | None, int | None]


class Relation(abc.ABC):
    """A set of (query, key) pairs, by position."""

    @abc.abstractmethod
    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Whether each query may attend to each key.

        It runs on NumPy arrays and on tensors of any backend, so it should use Python operators only.

        Args:
            query_positions: integers (…, T, 1).
            key_positions: integers (…, 1, S).

        Returns:
            Booleans (…, T, S).
        """

    @abc.abstractmethod
    def symmetries(self) -> frozenset[str]:
        """The groups of position maps that leave the relation unchanged; see `kept_under`."""

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        """`EMPTY`, `PARTIAL` or `FULL` for each block of the T×S matrix, for positions 0, 1, 2, …

        `EMPTY` and `FULL` are never wrong. What has no closed form is `PARTIAL`; so may be a block of a
        composition in which two partial blocks meet.

        Args:
            block_size: rows and columns of a block; the last ones may be smaller.
            num_queries: T.
            num_keys: S.

        Returns:
            uint8 (⌈T / block_size⌉, ⌈S / block_size⌉).
        """
        return np.full(num_blocks(block_size, num_queries, num_keys), PARTIAL, np.uint8)

    def bandwidth(self) -> Bandwidth:
        r"""How far behind and ahead of its own position a query may look, over positions 0, 1, 2, …

        $$(\max_{i \sim j} (i - j), \; \max_{i \sim j} (j - i))$$

        Returns:
            Two integers that no related pair exceeds, 0 at least, or None where there is no such bound or none
            is known.
        """
        return None, None

    def edges(self) -> Edges | None:
        """The pairs (source, target) of a relation that is given as edges, sorted, else None.

        The query `target` attends to the key `source`.
        """
        return None

    def matrix(self, num_queries: int, num_keys: int | None = None) -> np.ndarray:
        """The relation over positions 0, 1, 2, … as a matrix, for looking and for tests.

        Args:
            num_queries: T.
            num_keys: S, by default T.

        Returns:
            bool (T, S).
        """
        num_keys = num_queries if num_keys is None else num_keys
        related = self.related(np.arange(num_queries)[:, None], np.arange(num_keys)[None, :])
        return np.broadcast_to(related, (num_queries, num_keys)).copy()

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, as Keras serialises them."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {f.name: keras.saving.serialize_keras_object(getattr(self, f.name)) for f in fields}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Relation":
        """The relation whose `get_config` this is."""
        return cls(**{name: keras.saving.deserialize_keras_object(value) for name, value in config.items()})

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
        (behind, ahead), (other_behind, other_ahead) = self.left.bandwidth(), self.right.bandwidth()
        return _nearer(behind, other_behind), _nearer(ahead, other_ahead)

    def edges(self) -> Edges | None:
        """Where one side has edges, those of them that the other side relates too."""
        for given, other in ((self.left.edges(), self.right), (self.right.edges(), self.left)):
            if given is not None:
                sources, targets = np.array(given, np.int64).reshape(-1, 2).T[:, :, None, None]
                kept = np.broadcast_to(other.related(targets, sources), sources.shape).ravel()
                return tuple(edge for edge, keep in zip(given, kept, strict=True) if keep)
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
        (behind, ahead), (other_behind, other_ahead) = self.left.bandwidth(), self.right.bandwidth()
        return _farther(behind, other_behind), _farther(ahead, other_ahead)

    def edges(self) -> Edges | None:
        """Those of both sides, where both have edges."""
        left, right = self.left.edges(), self.right.edges()
        return None if left is None or right is None else tuple(sorted({*left, *right}))


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Not(Relation):
    """The pairs outside a relation: `~relation`."""

    relation: Relation

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return ~self.relation.related(query_positions, key_positions)

    def symmetries(self) -> frozenset[str]:
        return self.relation.symmetries()

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        return (FULL - self.relation.blocks(block_size, num_queries, num_keys)).astype(np.uint8)


def _nearer(a: int | None, b: int | None) -> int | None:
    return min((bound for bound in (a, b) if bound is not None), default=None)


def _farther(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)
