"""Sines and cosines of positions, accurate at any sequence length."""

import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_transformer.typing import Tensor

LAYOUTS = ("halves", "interleaved")

_ROTATION = 2**32  # a whole rotation, which int32 arithmetic discards


def waves(positions: Tensor, frequencies: Sequence[float] | np.ndarray) -> tuple[Tensor, Tensor]:
    r"""Return $\sin(p\,\omega_i)$ and $\cos(p\,\omega_i)$ with an error of about 10⁻⁶ for every integer |p| < 2²⁴.

    A float32 product p·ω has an error of p·ω·2⁻²⁴, already 0.006 at position 100,000. Here the frequency, in rotations
    per position, is split into a multiple of 2⁻³² and a small remainder. The product with the multiple is computed in
    int32, whose overflow discards whole rotations.

    Args:
        positions: integers (…).
        frequencies: F angles per position ω, in float64.

    Shapes:
        both outputs: (…, F), float32

    Returns:
        The sines and the cosines.
    """
    angles = _angles(positions, frequencies)
    return ops.sin(angles), ops.cos(angles)


def paired_waves(positions: Tensor, frequencies: Sequence[float] | np.ndarray, layout: str) -> Tensor:
    """Return sines and cosines in the order of `pair_up`, (…, 2F); a cosine is computed as a shifted sine."""
    shifts = np.array([0, _ROTATION // 4], "int32")
    if layout == "halves":
        frequencies, shifts = np.tile(frequencies, 2), np.repeat(shifts, len(frequencies))
    else:
        frequencies, shifts = np.repeat(frequencies, 2), np.tile(shifts, len(frequencies))
    return ops.sin(_angles(positions, frequencies, shifts))


def pair_up(first: Tensor, second: Tensor, layout: str) -> Tensor:
    """Join two tensors (…, F) as (…, 2F): concatenated ("halves") or alternating ("interleaved")."""
    if layout == "halves":
        return ops.concatenate([first, second], axis=-1)
    pairs = ops.stack([first, second], axis=-1)  # (…, F, 2)
    return ops.reshape(pairs, [*ops.shape(first)[:-1], 2 * first.shape[-1]])


def geometric(max_wavelength: float, size: int, endpoint: bool = False) -> np.ndarray:
    """Return the size / 2 frequencies λ^(−2i / size), or with an end point λ^(−2i / (size − 2)), in float64."""
    return max_wavelength ** (-np.arange(0, size, 2, dtype="float64") / (size - 2 if endpoint else size))


def _angles(
    positions: Tensor, frequencies: Sequence[float] | np.ndarray, shifts: np.ndarray | None = None
) -> Tensor:
    """Return the angles (…, F) at positions (…), between −π and π, after `shifts` (F,) in units of 2⁻³² rotations."""
    rotations = np.asarray(frequencies, "float64") / (2 * math.pi)
    steps = np.round(rotations % 1 * _ROTATION)
    remainders = (rotations % 1 - steps / _ROTATION) * (2 * math.pi)
    positions = ops.expand_dims(ops.cast(positions, "int32"), -1)
    phases = positions * ops.convert_to_tensor(steps.astype("int64").astype("int32"))
    if shifts is not None:
        phases = phases + ops.convert_to_tensor(shifts)
    angles = ops.cast(phases, "float32") * (2 * math.pi / _ROTATION)
    return angles + ops.cast(positions, "float32") * ops.convert_to_tensor(remainders, "float32")
