"""Relations given by nodes and edges."""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.relations import symmetries
from keras_transformer.relations.positional import Full
from keras_transformer.relations.relation import (
    Bandwidth,
    Edges,
    Relation,
    block_classes,
    block_ends,
    check_integer,
    num_blocks,
)
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import is_integer

# A table of all pairs of nodes, one byte each, stays below 1 GiB, and its indices within 32 bits.
_LARGEST_TABLE = 32_000


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Bipartite(Full):
    """Every query attends to every key of a different sequence: the complete bipartite graph.

    The same set of pairs as `Full`; the name says that positions of queries and of keys are not comparable.

    References:
        Vaswani et al. (2017), section 3.2.3, encoder–decoder attention.
    """


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class GlobalTokens(Relation):
    r"""Global positions attend to all positions, and all positions attend to them.

    $$i \in indices \;\lor\; j \in indices$$

    The automorphisms are the permutations that map the global positions onto themselves.

    Args:
        indices: the global positions, in any order.

    Example:
        >>> GlobalTokens([1]).matrix(3).astype(int)
        array([[0, 1, 0],
               [1, 1, 1],
               [0, 1, 0]])

    References:
        Beltagy et al. (2020), section 3.1, "Global Attention"; Zaheer et al., "Big Bird" (2020), section 2.
    """

    indices: tuple[int, ...]

    def __post_init__(self) -> None:
        if isinstance(self.indices, str) or not isinstance(self.indices, Iterable):
            raise ValueError(f"`indices` must be integers. Received: indices={self.indices!r}")
        indices = {check_integer("indices", index, 0) for index in self.indices}
        object.__setattr__(self, "indices", tuple(sorted(indices)))

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self._among(query_positions) | self._among(key_positions)

    def symmetries(self) -> frozenset[str]:
        return symmetries.kept_under(
            symmetries.AUTOMORPHISMS if self.indices else symmetries.SEPARATE_PERMUTATIONS
        )

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        rows, columns = num_blocks(block_size, num_queries, num_keys)
        queries = self._count(block_size, num_queries, rows)[:, None]
        keys = self._count(block_size, num_keys, columns)[None, :]
        (first_query, last_query), (first_key, last_key) = block_ends(block_size, num_queries, num_keys)
        every = (queries == last_query - first_query + 1) | (keys == last_key - first_key + 1)
        return block_classes((queries > 0) | (keys > 0), every)

    def bandwidth(self) -> Bandwidth:
        return (None, None) if self.indices else (0, 0)

    def _among(self, positions: Tensor) -> Tensor:
        matches = [positions == index for index in self.indices]
        return functools.reduce(operator.or_, matches) if matches else positions != positions

    def _count(self, block_size: int, length: int, blocks: int) -> np.ndarray:
        """Return the number of global positions in each block of queries or of keys."""
        within = np.array([index for index in self.indices if index < length], np.int64)
        return np.bincount(within // block_size, minlength=blocks)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True, init=False)
class Adjacency(Relation):
    r"""The edges of a directed graph: the query `target` attends to the key `source`.

    $$(j, i) \in edges$$

    A node attends to itself only if the graph has the self-loop (i, i). A position that is not a node, such as −1
    for padding, is related to no position.

    Args:
        edges: E pairs (source, target) in any order, as a sequence or an integer array (E, 2).
        num_nodes: nodes are 0, 1, …, num_nodes − 1.

    Attributes:
        pairs: the sorted edges without duplicates.
        num_nodes: the number of nodes.

    Example:
        >>> Adjacency([(0, 1), (1, 2)], num_nodes=3).matrix(3).astype(int)
        array([[0, 0, 0],
               [1, 0, 0],
               [0, 1, 0]])

    References:
        Veličković et al., "Graph Attention Networks" (2018), section 2.1, masked attention.
    """

    # Not named `edges` like the argument, because that is a method of every relation.
    pairs: Edges = dataclasses.field(init=False)
    num_nodes: int

    def __init__(self, edges: Iterable[Any], num_nodes: int) -> None:
        num_nodes = check_integer("num_nodes", num_nodes, 1)
        object.__setattr__(self, "num_nodes", num_nodes)
        object.__setattr__(self, "pairs", _sorted_edges(edges, num_nodes))

    def __repr__(self) -> str:
        return f"Adjacency(edges={self.pairs}, num_nodes={self.num_nodes})"

    def related(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        in_numpy = isinstance(query_positions, np.ndarray) and isinstance(key_positions, np.ndarray)
        library = np if in_numpy else ops
        outside = self.num_nodes
        row, column = (
            library.where((positions >= 0) & (positions < outside), positions, outside)
            for positions in (query_positions, key_positions)
        )
        return library.take(self._table, row * (outside + 1) + column)

    def symmetries(self) -> frozenset[str]:
        return symmetries.kept_under(
            symmetries.AUTOMORPHISMS if self.pairs else symmetries.SEPARATE_PERMUTATIONS
        )

    def blocks(self, block_size: int, num_queries: int, num_keys: int) -> np.ndarray:
        rows, columns = num_blocks(block_size, num_queries, num_keys)
        sources, targets = self._edge_array
        within = (sources < num_keys) & (targets < num_queries)
        block = targets[within] // block_size * columns + sources[within] // block_size
        count = np.bincount(block, minlength=rows * columns).reshape(rows, columns)
        (first_query, last_query), (first_key, last_key) = block_ends(block_size, num_queries, num_keys)
        return block_classes(count > 0, count == (last_query - first_query + 1) * (last_key - first_key + 1))

    def bandwidth(self) -> Bandwidth:
        sources, targets = self._edge_array
        left = int(np.max(targets - sources, initial=0))
        return left, int(np.max(sources - targets, initial=0))

    def edges(self) -> Edges:
        return self.pairs

    def get_config(self) -> dict[str, Any]:
        return {"edges": [list(pair) for pair in self.pairs], "num_nodes": self.num_nodes}

    @functools.cached_property
    def _edge_array(self) -> np.ndarray:
        """Sources and targets: (2, E)."""
        return np.array(self.pairs, np.int64).reshape(-1, 2).T

    @functools.cached_property
    def _table(self) -> np.ndarray:
        """Return the adjacency matrix with an empty last row and column, for positions that are not nodes."""
        if self.num_nodes > _LARGEST_TABLE:
            raise ValueError(
                f"`num_nodes` must be at most {_LARGEST_TABLE} to compare positions; larger graphs have only "
                f"`edges` and `blocks`. Received: num_nodes={self.num_nodes}"
            )
        table = np.zeros((self.num_nodes + 1, self.num_nodes + 1), bool)
        sources, targets = self._edge_array
        table[targets, sources] = True
        table.setflags(write=False)
        return table


def _sorted_edges(edges: Any, num_nodes: int) -> Edges:
    """Return the edges as sorted pairs of Python integers, without duplicates."""
    if not isinstance(edges, Iterable):
        raise ValueError(f"`edges` must be pairs (source, target). Received: edges={edges!r}")
    pairs = set()
    for edge in edges:
        nodes = tuple(edge) if isinstance(edge, (tuple, list, np.ndarray)) else ()
        if len(nodes) != 2 or not all(_is_node(node, num_nodes) for node in nodes):
            raise ValueError(
                f"`edges` must be pairs (source, target) of integers from 0 to {num_nodes - 1}. "
                f"Received: edge={edge!r}, num_nodes={num_nodes}"
            )
        pairs.add((int(nodes[0]), int(nodes[1])))
    return tuple(sorted(pairs))


def _is_node(value: Any, num_nodes: int) -> bool:
    return is_integer(value) and 0 <= value < num_nodes
