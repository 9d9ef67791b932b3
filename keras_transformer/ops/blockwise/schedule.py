"""The block schedules of the blockwise kernels, computed with NumPy while the graph is built."""

import dataclasses
import functools
import math
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.relations import FULL, PARTIAL

MIN_SOFTMAX_SIZE = 2  # Keras warns of a softmax over one element
NARROW_WINDOW = 256  # keys; wider bands have larger blocks
MAX_BAND_BLOCKS = 64  # TensorFlow copies a loop's outputs at every write outside XLA


class BlockSizes(NamedTuple):
    """The sizes of the blocks of the blockwise kernels.

    Attributes:
        smallest: the smallest block size of the chunked kernel.
        largest: the largest block size of the chunked kernel.
        pairs: the largest number of query-key pairs of a block, over the batch and all heads.
        narrow_band: the block size of the banded kernel for windows of at most `NARROW_WINDOW` keys.
        wide_band: the block size of the banded kernel for wider windows.
        band_pairs: as `pairs`, for the banded kernel. Its blocks are all partial, and larger ones need fewer writes.
    """

    smallest: int
    largest: int
    pairs: int
    narrow_band: int
    wide_band: int
    band_pairs: int


# By device type. The sizes for CPUs are the fastest measured: enough pairs to occupy every core, few enough for the
# cache. The sizes for GPUs are estimates, not measured: matrices of at least 128 rows for the tensor cores, and 16
# million pairs (64 MB of weights), whose matrix multiplications take longer than launching their kernels.
BLOCK_SIZES = {
    "cpu": BlockSizes(64, 512, 2**20, 64, 128, 2**21),
    "gpu": BlockSizes(128, 1024, 2**24, 128, 256, 2**24),
}


@functools.cache
def device_type() -> str:
    """Return the type of the devices that Keras computes on, a key of `BLOCK_SIZES`; other accelerators are "gpu"."""
    return "cpu" if keras.distribution.list_devices()[0].startswith("cpu") else "gpu"


class ScanOrder(NamedTuple):
    """The order in which a scan of L steps accumulates M blocks; each step accumulates the blocks of one start.

    Step i accumulates the partial blocks `blocks[begin[i]:full[i]]` and the full blocks `blocks[full[i]:end[i]]`.
    """

    starts: np.ndarray  # (L,), the first query block (or key block) of each scan step
    blocks: np.ndarray  # (M,), indices of blocks in the schedule
    begin: np.ndarray  # (L,)
    full: np.ndarray  # (L,)
    end: np.ndarray  # (L,)


def scan_order(starts: np.ndarray, num_partial: int) -> ScanOrder:
    """Return the scan order of blocks sorted by their starts (M,); the first `num_partial` blocks are partial."""
    is_full = np.arange(len(starts)) >= num_partial
    blocks = np.lexsort((is_full, starts)).astype("int32")
    steps, begin, counts = np.unique(starts[blocks], return_index=True, return_counts=True)
    begin, end = begin.astype("int32"), (begin + counts).astype("int32")
    return ScanOrder(steps, blocks, begin, end - np.add.reduceat(is_full[blocks], begin, dtype="int32"), end)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockSchedule:
    """The M blocks of the T×S matrix that a blockwise kernel computes.

    A query block is `block_size` consecutive queries, a key block as many consecutive keys. A block of the schedule
    pairs `num_parallel` consecutive query blocks with `window` consecutive key blocks each; the key blocks of a query
    block begin one key block after those of the query block before. The relation holds for every pair of a full
    block, is tested for each pair of a partial block, and holds for no pair of an empty block, which is not scheduled.

    Args:
        block_size: number of queries of a query block, and of keys of a key block.
        num_query_blocks: Q, the number of query blocks.
        num_key_blocks: P, the number of key blocks, including padding.
        num_leading_key_blocks: number of key blocks of padding before the first key.
        num_parallel: C, the number of query blocks of a block.
        window: number of key blocks of each query block.
        query_starts: the index of each block's first query block, (M,).
        key_starts: the index of each block's first key block, (M,).
        num_partial: the number of partial blocks, which come first; all others are full.
    """

    block_size: int
    num_query_blocks: int
    num_key_blocks: int
    num_leading_key_blocks: int
    num_parallel: int
    window: int
    query_starts: np.ndarray
    key_starts: np.ndarray
    num_partial: int

    @property
    def num_blocks(self) -> int:
        """M, the number of blocks."""
        return len(self.query_starts)

    @property
    def num_pairs(self) -> int:
        """The number of query-key pairs that are computed."""
        return self.num_blocks * self.num_parallel * self.window * self.block_size**2

    @functools.cached_property
    def query_order(self) -> ScanOrder:
        """The order of the forward pass, whose scan steps share their queries."""
        return scan_order(self.query_starts, self.num_partial)

    @functools.cached_property
    def key_order(self) -> ScanOrder:
        """The order of the backward pass, whose scan steps share their keys."""
        return scan_order(self.key_starts, self.num_partial)


def chunked(inputs: AttentionInputs) -> BlockSchedule:
    """Return the schedule of one query block and one key block per block, without the relation's empty blocks."""
    num_queries, num_keys = inputs.num_queries, inputs.num_keys
    matrices = (inputs.batch_size or 1) * inputs.num_heads * inputs.score.pair_size
    sizes = BLOCK_SIZES[device_type()]
    largest = min(sizes.largest, max(sizes.smallest, math.isqrt(sizes.pairs // matrices)))
    shorter = max(min(num_queries, num_keys), min(sizes.smallest, max(num_queries, num_keys)))
    size = max(MIN_SOFTMAX_SIZE, -(-shorter // -(-shorter // largest)))
    shape = -(-num_queries // size), -(-num_keys // size)
    block_classes = np.full(shape, PARTIAL)
    if inputs.at_indices:
        block_classes = inputs.relation.blocks(size, num_queries, num_keys)
    partial, full = np.argwhere(block_classes == PARTIAL), np.argwhere(block_classes == FULL)
    query_starts, key_starts = np.concatenate([partial, full]).astype("int32").T
    return BlockSchedule(size, *shape, 0, 1, 1, query_starts, key_starts, len(partial))


def banded(inputs: AttentionInputs) -> BlockSchedule:
    """Return the schedule of all query blocks, each with the key blocks within the relation's bandwidth."""
    max_length = max(inputs.num_queries, inputs.num_keys)
    left, right = (min(bandwidth or 0, max_length) for bandwidth in inputs.relation.bandwidth())
    sizes = BLOCK_SIZES[device_type()]
    largest = sizes.narrow_band if left + right <= NARROW_WINDOW else sizes.wide_band
    size = max(MIN_SOFTMAX_SIZE, min(largest, max_length))
    left_blocks, right_blocks = -(-left // size), -(-right // size)
    window = left_blocks + 1 + right_blocks
    num_blocks = -(-inputs.num_queries // size)
    pairs = (inputs.batch_size or 1) * inputs.num_heads * window * size**2  # of one query block
    max_parallel = max(
        sizes.band_pairs // (pairs * inputs.score.pair_size), -(-num_blocks // MAX_BAND_BLOCKS), 1
    )
    # The same number of query blocks in every block, with the least padding.
    num_parallel = -(-num_blocks // -(-num_blocks // max_parallel))
    starts = np.arange(0, num_blocks, num_parallel, dtype="int32")
    num_query_blocks = len(starts) * num_parallel
    num_key_blocks = left_blocks + max(num_query_blocks + right_blocks, -(-inputs.num_keys // size))
    return BlockSchedule(
        size,
        num_query_blocks,
        num_key_blocks,
        left_blocks,
        num_parallel,
        window,
        starts,
        starts,
        len(starts),
    )
