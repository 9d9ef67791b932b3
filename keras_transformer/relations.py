r"""Which queries may attend to which keys.

A relation is a value: frozen, hashable, serialisable, free of arrays. It answers two questions: an exact
predicate on positions (`related`), and for a tiling of the T×S matrix, which blocks are empty, partial or full
(`blocks`), so that a kernel can skip work without ever changing the answer. `True` means "may attend".

Axes: B batch, T queries, S keys, N heads.
"""

import abc
import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np

Tensor = Any

EMPTY, PARTIAL, FULL = 0, 1, 2

PERMUTATIONS = "permutations"
INCREASING_RELABELLINGS = "increasing relabellings"
TRANSLATIONS = "translations"


class Relation(abc.ABC):
    """A set of (query, key) pairs, by position."""

    @abc.abstractmethod
    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Whether each query may attend to each key.

        Only Python operators are used, so that it runs on NumPy arrays and on tensors of any backend.

        Args:
            query_positions: integers (…, T, 1).
            key_positions: integers (…, 1, S).

        Returns:
            Booleans (…, T, S).
        """

    @abc.abstractmethod
    def symmetries(self) -> frozenset[str]:
        """The groups of position maps that leave the relation unchanged when applied to both sides."""

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        """`EMPTY`, `PARTIAL` or `FULL` for each block of the T×S matrix, for positions 0, 1, 2, …

        Args:
            block_size: rows and columns of a block; the last ones may be smaller.
            num_queries: T.
            num_keys: S.

        Returns:
            uint8 (⌈T / block_size⌉, ⌈S / block_size⌉). What has no closed form is `PARTIAL`.
        """
        return np.full(_num_blocks(block_size, num_queries, num_keys), PARTIAL, np.uint8)

    def edges(self) -> tuple[tuple[int, int], ...] | None:
        """The pairs (source, target) of a relation that is given as edges, else None."""
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
class Full(Relation):
    """Every query attends to every key: the complete graph."""

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return (query_positions == query_positions) & (key_positions == key_positions)

    def symmetries(self) -> frozenset[str]:
        return frozenset({PERMUTATIONS, INCREASING_RELABELLINGS, TRANSLATIONS})

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        return np.full(_num_blocks(block_size, num_queries, num_keys), FULL, np.uint8)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Causal(Relation):
    """A query attends to itself and to what stands before it: the total order j ≤ i."""

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return key_positions <= query_positions

    def symmetries(self) -> frozenset[str]:
        return frozenset({INCREASING_RELABELLINGS, TRANSLATIONS})

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        (first_query, last_query), (first_key, last_key) = _block_ends(block_size, num_queries, num_keys)
        return np.where(
            last_key <= first_query, FULL, np.where(first_key <= last_query, PARTIAL, EMPTY)
        ).astype(np.uint8)


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


_NAMES: dict[str, type[Relation]] = {"full": Full, "causal": Causal}


def get(identifier: "Relation | str | dict[str, Any] | None") -> Relation:
    """The relation that an identifier stands for, as `keras.initializers.get` does.

    Args:
        identifier: a relation; its name ("full", "causal"); its serialised config; or None for `Full()`.

    Returns:
        A relation.

    Raises:
        ValueError: for anything else.
    """
    if identifier is None:
        return Full()
    if isinstance(identifier, Relation):
        return identifier
    if isinstance(identifier, str) and identifier in _NAMES:
        return _NAMES[identifier]()
    if isinstance(identifier, dict):
        with contextlib.suppress(TypeError):  # Keras' answer to a class it does not know
            relation = keras.saving.deserialize_keras_object(identifier)
            if isinstance(relation, Relation):
                return relation
    raise ValueError(
        f"`relation` must be a Relation, its config, None or one of {sorted(_NAMES)}. "
        f"Received: relation={identifier!r}"
    )


def from_additive(mask: Tensor) -> Tensor:
    """The boolean mask (True = may attend) of an additive one (0 = may attend, very negative = may not)."""
    return mask > -1.0


def from_hidden(mask: Tensor) -> Tensor:
    """The boolean mask (True = may attend) of one in which True means hidden."""
    return mask == False  # noqa: E712  (not `~`, which flips the bits of an integer mask)


def _num_blocks(block_size: int, num_queries: int, num_keys: int) -> tuple[int, int]:
    for name, value in (("block_size", block_size), ("num_queries", num_queries), ("num_keys", num_keys)):
        if value < 1:
            raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
    return -(-num_queries // block_size), -(-num_keys // block_size)


def _block_ends(
    block_size: int, num_queries: int, num_keys: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """First and last position of each block of queries (a column) and of keys (a row)."""
    rows, columns = _num_blocks(block_size, num_queries, num_keys)
    first_query = np.arange(rows)[:, None] * block_size
    first_key = np.arange(columns)[None, :] * block_size
    last_query = np.minimum(first_query + block_size, num_queries) - 1
    last_key = np.minimum(first_key + block_size, num_keys) - 1
    return (first_query, last_query), (first_key, last_key)
