"""The noise that sampling draws with, in NumPy: what `generation.sampling.uniform` makes, bit for bit."""

import numpy as np


def uniform(seed: int, rows: np.ndarray, hypotheses: int, steps: int, vocabulary_size: int) -> np.ndarray:
    """Uniform numbers in (0, 1) that depend on (seed, row, hypothesis, step, id) alone.

    Args:
        seed: an integer in [0, 2³²).
        rows: integers (B,), the number of each row.
        hypotheses: R.
        steps: M.
        vocabulary_size: V.

    Returns:
        float32 (B, R, M, V).
    """
    golden = np.uint32(0x9E3779B1)
    state = _mix(np.array([seed], np.uint32) + golden)
    for axis, values in enumerate([rows, *map(np.arange, (hypotheses, steps, vocabulary_size))]):
        numbers = np.asarray(values).astype(np.uint32).reshape([1] * axis + [-1] + [1] * (3 - axis))
        state = _mix(state + numbers * golden)
    return ((state >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def _mix(state: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finaliser."""
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))
