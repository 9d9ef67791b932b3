"""Scalings of rotary positions for sequences longer than those of training."""

import abc
import contextlib
import dataclasses
import math
from typing import Any

import keras
import numpy as np

from keras_transformer.configuration import ConfiguredValue, retrieve
from keras_transformer.layers.positions.sinusoids import geometric
from keras_transformer_options.arguments import check_at_least, check_positive


@dataclasses.dataclass(frozen=True)
class RotaryScaling(ConfiguredValue, abc.ABC):
    """Base class of scalings of the frequencies of `RotaryPositions` and, as in YaRN, of the rotated vectors.

    Args:
        factor: s, the ratio of the longest sequence length to the length in training; at least 1.
    """

    factor: float

    def __post_init__(self) -> None:
        check_at_least(1, factor=self.factor)

    @abc.abstractmethod
    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return the size / 2 frequencies ω′ that replace ω_i = λ^(−2i / size), in float64."""

    def magnitude(self) -> float:
        """Return the factor by which rotated vectors are multiplied, by default 1."""
        return 1.0

    @property
    def max_length(self) -> int | None:
        """The length of the longest sequence to which the frequencies apply, None for any."""
        return None


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    r"""Position interpolation: positions are divided by the factor.

    $$\omega'_i = \omega_i / s$$

    References:
        Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation" (2023),
        equation 4.
    """

    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return all frequencies divided by s."""
        return geometric(max_wavelength, size) / self.factor


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class NTKScaling(RotaryScaling):
    r"""NTK-aware interpolation: a larger base λ keeps the highest frequency and divides the lowest by the factor.

    $$\lambda' = \lambda\, s^{R/(R-2)}, \qquad \omega'_i = \lambda'^{-2i/R} = \omega_i\, s^{-2i/(R-2)}$$

    References:
        bloc97, "NTK-Aware Scaled RoPE" (2023), as in Peng et al., "YaRN" (2023), section 3.1.
    """

    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return frequencies divided by 1 (the highest) to s (the lowest)."""
        exponents = np.arange(0, size, 2) / max(size - 2, 1)  # a single frequency is the highest
        return geometric(max_wavelength, size) * self.factor**-exponents


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class YaRNScaling(RotaryScaling):
    r"""YaRN: interpolate only low frequencies, and lower the temperature of the attention.

    $$\omega'_i = (1 - \gamma_i)\, \omega_i / s + \gamma_i\, \omega_i, \qquad
    q', k' = \sqrt{1/t}\; (q, k), \quad \sqrt{1/t} = 0.1 \ln s + 1$$

    $\gamma_i$ is 1 for frequencies with at least β_fast rotations within the original length, and 0 for those with at
    most β_slow. Between them it falls linearly in i, between integers
    $i(\beta) = R \ln(L / 2\pi\beta) / (2 \ln\lambda)$, as in the authors' code and hence in published models; in the
    paper it falls linearly in the number of rotations.

    Args:
        factor: s.
        original_length: L, the sequence length in training.
        beta_fast: number of rotations from which on a frequency is unchanged.
        beta_slow: number of rotations up to which a frequency is divided by s.
        attention_factor: √(1/t), by default 0.1 ln s + 1; 1 for an unchanged temperature.

    References:
        Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (2023), sections
        3.2 (NTK-by-parts) and 3.4 (the temperature).
    """

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(original_length=self.original_length)
        if not 0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                "`beta_slow` must be positive and at most `beta_fast`. "
                f"Received: beta_slow={self.beta_slow}, beta_fast={self.beta_fast}"
            )
        if self.attention_factor is not None:
            check_positive(attention_factor=self.attention_factor)

    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return high frequencies unchanged and low frequencies divided by s, with a ramp between them."""

        def index_of(rotations: float) -> float:
            """Return the i whose frequency makes `rotations` rotations within the original length."""
            return (
                size
                * math.log(self.original_length / (rotations * 2 * math.pi))
                / (2 * math.log(max_wavelength))
            )

        first = max(math.floor(index_of(self.beta_fast)), 0)
        last = max(min(math.ceil(index_of(self.beta_slow)), size - 1), first)
        width = last - first if last > first else 0.001  # a step rather than a ramp
        interpolated = np.clip((np.arange(size // 2) - first) / width, 0, 1)  # 1 − γ
        frequencies = geometric(max_wavelength, size)
        return frequencies / self.factor * interpolated + frequencies * (1 - interpolated)

    def magnitude(self) -> float:
        """Return √(1/t)."""
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    r"""Llama 3.1: interpolate low frequencies, keep high ones, with a ramp in the number of rotations between them.

    $$\omega'_i = (1 - \gamma_i)\, \omega_i / s + \gamma_i\, \omega_i, \qquad
    \gamma_i = \mathrm{clip}\left(\frac{L \omega_i / 2\pi - \alpha}{\beta - \alpha}, 0, 1\right)$$

    Args:
        factor: s.
        original_length: L, the sequence length in training.
        low_frequency_factor: α, the number of rotations within L up to which a frequency is divided by s.
        high_frequency_factor: β, the number of rotations from which on a frequency is unchanged.

    References:
        Grattafiori et al., "The Llama 3 Herd of Models" (2024), and the code published with Llama 3.1; the ramp is that
        of Peng et al., "YaRN" (2023), section 3.2.
    """

    original_length: int
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(original_length=self.original_length)
        if not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                "`low_frequency_factor` must be positive and less than `high_frequency_factor`. "
                f"Received: low_frequency_factor={self.low_frequency_factor}, "
                f"high_frequency_factor={self.high_frequency_factor}"
            )

    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return high frequencies unchanged and low frequencies divided by s, with a ramp between them."""
        frequencies = geometric(max_wavelength, size)
        rotations = self.original_length * frequencies / (2 * math.pi)
        width = self.high_frequency_factor - self.low_frequency_factor
        kept = np.clip((rotations - self.low_frequency_factor) / width, 0, 1)
        return frequencies / self.factor * (1 - kept) + frequencies * kept


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class DynamicNTKScaling(RotaryScaling):
    """Dynamic NTK-aware interpolation, within the sequence length in training, where frequencies are unchanged.

    Longer sequences, whose frequencies would depend on their length and hence change while a text is generated, raise
    an error.

    Args:
        factor: s.
        original_length: the sequence length in training.

    References:
        emozilla, "Dynamically Scaled RoPE" (2023), as in Peng et al., "YaRN" (2023), section 3.3.
    """

    original_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(original_length=self.original_length)

    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return the frequencies unchanged."""
        return geometric(max_wavelength, size)

    @property
    def max_length(self) -> int:
        """The sequence length in training."""
        return self.original_length


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class LongRoPEScaling(RotaryScaling):
    r"""LongRoPE: each frequency is divided by a factor found by a search.

    $$\omega'_i = \omega_i / s_i, \qquad q', k' = \sqrt{1 + \ln s / \ln L}\; (q, k)$$

    Published models divide the frequencies of sequences of at most L positions by short factors, and those of longer
    ones, from their first token on, by long factors. As keys in a cache cannot be rotated again when a text grows
    longer than L, the choice is fixed here: with short factors, longer sequences raise an error; with long ones, the
    outputs for shorter sequences are not those of the published model.

    Args:
        factor: s.
        original_length: L, the sequence length in training.
        short_factors: s_i, one for each frequency, of sequences of at most L positions.
        long_factors: s_i of longer sequences, of at most s L positions.
        attention_factor: the factor of rotated vectors, by default √(1 + ln s / ln L).
        use_long_factors: whether frequencies are divided by the long factors.

    References:
        Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens" (2024), sections 3.1 and 3.3.
    """

    original_length: int
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    attention_factor: float | None = None
    use_long_factors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(2, original_length=self.original_length)
        for name in ("short_factors", "long_factors"):
            factors = tuple(getattr(self, name))
            for factor in factors:
                check_positive(**{name: factor})
            object.__setattr__(self, name, factors)
        if self.attention_factor is not None:
            check_positive(attention_factor=self.attention_factor)

    def frequencies(self, max_wavelength: float, size: int) -> np.ndarray:
        """Return the frequencies divided by the short or the long factors."""
        name = "long_factors" if self.use_long_factors else "short_factors"
        factors = getattr(self, name)
        if len(factors) != size // 2:
            raise ValueError(
                f"`{name}` must have one factor for each of {size // 2} frequencies. "
                f"Received: {len(factors)} factors"
            )
        return geometric(max_wavelength, size) / np.asarray(factors, "float64")

    def magnitude(self) -> float:
        """Return the factor of rotated vectors."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    @property
    def max_length(self) -> int:
        """The maximum length of a sequence with these factors."""
        return round(self.factor * self.original_length) if self.use_long_factors else self.original_length


def get(identifier: RotaryScaling | dict[str, Any] | None) -> RotaryScaling | None:
    """Retrieve a scaling, as `keras.initializers.get` retrieves an initializer.

    Args:
        identifier: a scaling; its serialised config; a dict of its constructor's arguments and a "name", "linear",
            "ntk", "yarn", "llama3", "dynamic" or "longrope"; or None for no scaling.
    """
    if identifier is None:
        return None
    if isinstance(identifier, dict) and identifier.get("name") in _NAMES:
        arguments = {name: value for name, value in identifier.items() if name != "name"}
        with contextlib.suppress(TypeError):  # a missing or unknown argument
            return _NAMES[identifier["name"]](**arguments)
    expectation = (
        f"be a RotaryScaling, its config, None or a dict with a name among {sorted(_NAMES)} and its arguments"
    )
    return retrieve(RotaryScaling, {}, expectation, scaling=identifier)


_NAMES: dict[str, type[RotaryScaling]] = {
    "linear": LinearScaling,
    "ntk": NTKScaling,
    "yarn": YaRNScaling,
    "llama3": Llama3Scaling,
    "dynamic": DynamicNTKScaling,
    "longrope": LongRoPEScaling,
}
