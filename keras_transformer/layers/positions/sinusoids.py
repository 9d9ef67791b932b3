"""Sines and cosines of positions, accurate however long the sequence is."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

Tensor = Any

LAYOUTS = ("halves", "interleaved")

# A position below 2¹² times an integer below 2¹² is an integer that float32 holds exactly.
_STEP = 4096


def waves(positions: Tensor, frequencies: Sequence[float] | np.ndarray) -> tuple[Tensor, Tensor]:
    r"""$\sin(p\,\omega_i)$ and $\cos(p\,\omega_i)$, to about 10⁻⁶ for every integer |p| < 2²⁴.

    A plain float32 product p·ω is off by p·ω·2⁻²⁴, already 0.006 at position 100,000. Here the position is
    split into 4096·p₁ + p₀ and the frequency, counted in turns, into a multiple of 2⁻¹² and a small rest: whole
    turns drop out of exact products, and what is left is small.

    Args:
        positions: integers (…).
        frequencies: F angles per position, in float64.

    Shapes:
        both outputs: (…, F), float32

    Returns:
        The sines and the cosines.
    """
    angles = _turned(positions, frequencies) * (2 * math.pi)
    return ops.sin(angles), ops.cos(angles)


def paired_waves(positions: Tensor, frequencies: Sequence[float] | np.ndarray, layout: str) -> Tensor:
    """The sines and cosines of `waves` as `pair_up` puts them, (…, 2F): a cosine is a sine a quarter turn ahead."""
    quarters = np.array([0.0, 0.25], "float32")
    if layout == "halves":
        frequencies, ahead = np.tile(frequencies, 2), np.repeat(quarters, len(frequencies))
    else:
        frequencies, ahead = np.repeat(frequencies, 2), np.tile(quarters, len(frequencies))
    return ops.sin((_turned(positions, frequencies) + ahead) * (2 * math.pi))


def pair_up(first: Tensor, second: Tensor, layout: str) -> Tensor:
    """Two tensors (…, F) as one (…, 2F): one after the other ("halves"), or in turn ("interleaved")."""
    if layout == "halves":
        return ops.concatenate([first, second], axis=-1)
    pairs = ops.stack([first, second], axis=-1)  # (…, F, 2)
    return ops.reshape(pairs, [*ops.shape(first)[:-1], 2 * first.shape[-1]])


def geometric(max_wavelength: float, size: int) -> np.ndarray:
    """The size / 2 frequencies λ^(−2i / size), in float64."""
    return max_wavelength ** (-np.arange(0, size, 2, dtype="float64") / size)


def _turned(positions: Tensor, frequencies: Sequence[float] | np.ndarray) -> Tensor:
    """How far waves have turned at positions (…), but for whole turns: (…, F), between −½ and ½."""
    turns = np.asarray(frequencies, "float64") / (2 * math.pi)
    positions = ops.expand_dims(ops.cast(positions, "float32"), -1)
    high = ops.floor(positions / _STEP)
    low = positions - high * _STEP
    fraction = _fraction_of_turns(low, turns) + _fraction_of_turns(high, (turns * _STEP) % 1.0)
    return fraction - ops.round(fraction)


def _fraction_of_turns(counts: Tensor, turns: np.ndarray) -> Tensor:
    """`counts` × `turns` but for whole turns: between 0 and 2, from integers below 4096 and turns in [0, 1)."""
    coarse = np.floor(turns * _STEP) / _STEP
    exact = counts * ops.convert_to_tensor(coarse, "float32")
    return exact - ops.floor(exact) + counts * ops.convert_to_tensor(turns - coarse, "float32")
