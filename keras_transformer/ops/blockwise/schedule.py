"""Which tiles the blockwise kernels visit, decided before anything is computed."""

import dataclasses
import math

import numpy as np

from keras_transformer.ops.attention_inputs import Problem
from keras_transformer.relations import FULL, PARTIAL

BLOCK_SIZE = 512
SMALLEST_BLOCK = 64
NARROW = 256  # the reach of a window up to which its blocks are the smaller ones
NARROW_BLOCK_SIZE, BAND_BLOCK_SIZE = 64, 128
TINIEST_BLOCK = 2  # Keras warns of a softmax over one
# Pairs of a tile, over all rows and heads: enough to keep every core at work, few enough for a cache. A band has all
# its tiles at the edge of its relation, and the fewer the less is written over.
TILE_SIZE, BAND_TILE_SIZE = 2**20, 2**21
MOST_BANDS = 64  # tiles of a band: TensorFlow copies what a loop has written whenever it writes outside XLA


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Which tiles to visit.

    Args:
        size: queries, and keys, of a block.
        num_query_blocks: Q.
        num_key_blocks: P.
        keys_before: blocks of keys that lie before the first key.
        count: C, blocks of queries in a tile; each is beside its own keys.
        width: blocks of keys beside one block of queries.
        rows: the first block of queries of each tile, (M,).
        columns: the first block of keys of each tile, (M,); the next block of queries begins one further.
        num_partial: how many tiles, the first ones, need the relation's predicate.
    """

    size: int
    num_query_blocks: int
    num_key_blocks: int
    keys_before: int
    count: int
    width: int
    rows: np.ndarray
    columns: np.ndarray
    num_partial: int

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that are computed."""
        return len(self.rows) * self.count * self.width * self.size**2


def chunked(problem: Problem) -> Plan:
    """Every pair of blocks that the relation does not leave empty."""
    num_queries, num_keys = problem.num_queries, problem.num_keys
    rows = (problem.num_rows or 1) * problem.num_heads * problem.score.pair_size
    largest = min(BLOCK_SIZE, max(SMALLEST_BLOCK, math.isqrt(TILE_SIZE // rows)))
    shorter = max(min(num_queries, num_keys), min(SMALLEST_BLOCK, max(num_queries, num_keys)))
    size = max(TINIEST_BLOCK, -(-shorter // -(-shorter // largest)))
    shape = -(-num_queries // size), -(-num_keys // size)
    blocks = np.full(shape, PARTIAL)
    if problem.at_indices:
        blocks = problem.relation.blocks(size, num_queries, num_keys)
    partial, full = np.argwhere(blocks == PARTIAL), np.argwhere(blocks == FULL)
    first, second = np.concatenate([partial, full]).astype("int32").T
    return Plan(size, *shape, 0, 1, 1, first, second, len(partial))


def banded(problem: Problem) -> Plan:
    """Every block of queries beside the blocks of keys within the relation's reach."""
    longest = max(problem.num_queries, problem.num_keys)
    left, right = (min(bandwidth or 0, longest) for bandwidth in problem.relation.bandwidth())
    largest = NARROW_BLOCK_SIZE if left + right <= NARROW else BAND_BLOCK_SIZE
    size = max(TINIEST_BLOCK, min(largest, longest))
    before, after = -(-left // size), -(-right // size)
    width = before + 1 + after
    num_blocks = -(-problem.num_queries // size)
    pairs_of_a_block = (problem.num_rows or 1) * problem.num_heads * width * size**2
    most = max(
        BAND_TILE_SIZE // (pairs_of_a_block * problem.score.pair_size), -(-num_blocks // MOST_BANDS), 1
    )
    # Tiles of one size, with as little beyond the end as can be.
    count = -(-num_blocks // -(-num_blocks // most))
    rows = np.arange(0, num_blocks, count, dtype="int32")
    num_query_blocks = len(rows) * count
    num_key_blocks = before + max(num_query_blocks + after, -(-problem.num_keys // size))
    return Plan(size, num_query_blocks, num_key_blocks, before, count, width, rows, rows, len(rows))
