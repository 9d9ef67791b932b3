"""Blocks of the T×S matrix: their number, their ends, and what is in them."""

import numpy as np

from keras_transformer.arguments import check_positive

EMPTY, PARTIAL, FULL = 0, 1, 2


def num_blocks(block_size: int, num_queries: int, num_keys: int) -> tuple[int, int]:
    """Blocks of queries and of keys."""
    check_positive(block_size=block_size, num_queries=num_queries, num_keys=num_keys)
    return -(-num_queries // block_size), -(-num_keys // block_size)


def block_ends(
    block_size: int, num_queries: int, num_keys: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """First and last position of each block of queries (a column) and of keys (a row)."""
    rows, columns = num_blocks(block_size, num_queries, num_keys)
    first_query = np.arange(rows)[:, None] * block_size
    first_key = np.arange(columns)[None, :] * block_size
    last_query = np.minimum(first_query + block_size, num_queries) - 1
    last_key = np.minimum(first_key + block_size, num_keys) - 1
    return (first_query, last_query), (first_key, last_key)


def kinds(some: np.ndarray, every: np.ndarray) -> np.ndarray:
    """The block map, uint8, of blocks that hold some of their pairs and blocks that hold all."""
    return np.where(every, FULL, np.where(some, PARTIAL, EMPTY)).astype(np.uint8)
