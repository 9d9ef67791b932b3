"""Sines and cosines of positions, accurate at any sequence length."""

import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_transformer.typing import Tensor

LAYOUTS = ("halves", "interleaved")

# A position below 2¹² times an integer below 2¹² is exact in float32.
_STEP = 4096


def waves(positions: Tensor, frequencies: Sequence[float] | np.ndarray) -> tuple[Tensor, Tensor]:
    r"""Return $\sin(p\,\omega_i)$ and $\cos(p\,\omega_i)$ with an error of about 10⁻⁶ for every integer |p| < 2²⁴.

    A float32 product p·ω has an error of p·ω·2⁻²⁴, already 0.006 at position 100,000. Here the position is split into
    4096·p₁ + p₀ and the frequency, in rotations per position, into a multiple of 2⁻¹² and a small remainder: products
    with the multiple are exact, so whole rotations cancel.

    Args:
        positions: integers (…).
        frequencies: F angles per position ω, in float64.

    Shapes:
        both outputs: (…, F), float32

    Returns:
        The sines and the cosines.
    """
    angles = _phase(positions, frequencies) * (2 * math.pi)
    return ops.sin(angles), ops.cos(angles)


def paired_waves(positions: Tensor, frequencies: Sequence[float] | np.ndarray, layout: str) -> Tensor:
    """Return sines and cosines in the order of `pair_up`, (…, 2F); a cosine is computed as a shifted sine."""
    quarters = np.array([0.0, 0.25], "float32")
    if layout == "halves":
        frequencies, shift = np.tile(frequencies, 2), np.repeat(quarters, len(frequencies))
    else:
        frequencies, shift = np.repeat(frequencies, 2), np.tile(quarters, len(frequencies))
    return ops.sin((_phase(positions, frequencies) + shift) * (2 * math.pi))


def pair_up(first: Tensor, second: Tensor, layout: str) -> Tensor:
    """Join two tensors (…, F) as (…, 2F): concatenated ("halves") or alternating ("interleaved")."""
    if layout == "halves":
        return ops.concatenate([first, second], axis=-1)
    pairs = ops.stack([first, second], axis=-1)  # (…, F, 2)
    return ops.reshape(pairs, [*ops.shape(first)[:-1], 2 * first.shape[-1]])


def geometric(max_wavelength: float, size: int, endpoint: bool = False) -> np.ndarray:
    """Return the size / 2 frequencies λ^(−2i / size), or with an end point λ^(−2i / (size − 2)), in float64."""
    return max_wavelength ** (-np.arange(0, size, 2, dtype="float64") / (size - 2 if endpoint else size))


def _phase(positions: Tensor, frequencies: Sequence[float] | np.ndarray) -> Tensor:
    """Return the phases (…, F) at positions (…) as fractions of a rotation between −½ and ½."""
    rotations = np.asarray(frequencies, "float64") / (2 * math.pi)
    positions = ops.expand_dims(ops.cast(positions, "float32"), -1)
    high = ops.floor(positions / _STEP)
    low = positions - high * _STEP
    fraction = _fractional_rotations(low, rotations) + _fractional_rotations(high, (rotations * _STEP) % 1.0)
    return fraction - ops.round(fraction)


def _fractional_rotations(counts: Tensor, rotations: np.ndarray) -> Tensor:
    """Return `counts` × `rotations` modulo 1, plus 0 or 1; `counts` are integers below 4096, `rotations` in [0, 1)."""
    coarse = np.floor(rotations * _STEP) / _STEP
    exact = counts * ops.convert_to_tensor(coarse, "float32")
    return exact - ops.floor(exact) + counts * ops.convert_to_tensor(rotations - coarse, "float32")
