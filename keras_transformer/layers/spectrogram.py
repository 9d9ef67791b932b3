"""Log-mel spectrograms of audio, computed in the graph."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers.masks import check_lengths, zero_padding
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import (
    check,
    check_not_negative,
    check_one_of,
    check_positive_integer,
)

NORMALIZATIONS = (None, "whisper", "utterance")

_FLOOR = 1e-10  # of energies, before the logarithm
_WHISPER_RANGE = 8.0  # in powers of ten, below the loudest value
_EPSILON = 1e-5


@keras.saving.register_keras_serializable(package="keras_transformer")
class LogMelSpectrogram(ConfiguredLayer):
    r"""Convert audio to frames of the logarithm of its energy in bands of the mel scale.

    $$x_{tm} = \log_{10} \max\Bigl(\sum_k M_{mk} \Bigl|\sum_n w_n\, a_{th + n - W/2}\, e^{-2\pi i k n / W}\Bigr|^2,
    10^{-10}\Bigr)$$

    Frame t is centred at sample $th$ of the audio a, which is reflected at its ends. The window w is Hann's; M are the
    triangular filters of Slaney's mel scale, each of unit area. The Fourier transform is a matrix multiplication, so
    that the layer also runs under XLA and in ONNX graphs. The layer has no weights. Under any dtype policy it computes
    in float64 on TensorFlow, which quiet bands beside loud ones need, and in float32 on JAX.

    Args:
        num_mels: M, the number of mel bands.
        sample_rate: the number of samples in a second.
        window_length: W, the number of samples of a window, even.
        hop_length: h, the number of samples between frames.
        min_frequency: the lower end of the first band, in Hertz.
        max_frequency: the upper end of the last band, by default half the sample rate.
        normalization: "whisper" (values are clipped 8 below the largest one of the audio, then scaled to
            $(x + 4) / 4$), "utterance" (each band has mean 0 and variance 1 in the audio) or None.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: audio (B, N), usually in [−1, 1], N > W / 2.
        lengths: integers (B,), the numbers of samples of audio padded at the end, by default all. Padding does not
            change the frames of the audio, which is reflected at its own end; frames of padding are 0.

    Shapes:
        inputs: (B, N)
        output: (B, ⌊N / h⌋, M)

    Raises:
        ValueError: if `window_length` is odd, frequencies are not ascending or above half the sample rate,
            `normalization` is unknown, the audio is not longer than half a window, or `lengths` are not integers (B,).

    Example:
        >>> LogMelSpectrogram()(keras.ops.zeros((2, 16000))).shape
        TensorShape([2, 100, 80])

    References:
        Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (Whisper, 2022), section 2.2.
        Slaney, "Auditory Toolbox" (1998). The frames are those of `librosa.feature.melspectrogram` without its last
        one, which is centred at the end of the audio.
    """

    def __init__(
        self,
        num_mels: int = 80,
        sample_rate: int = 16000,
        window_length: int = 400,
        hop_length: int = 160,
        min_frequency: float = 0.0,
        max_frequency: float | None = None,
        normalization: str | None = "whisper",
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # audio needs more precision than float16
        check_positive_integer(
            num_mels=num_mels, sample_rate=sample_rate, window_length=window_length, hop_length=hop_length
        )
        check(window_length % 2 == 0, "be even", window_length=window_length)
        check_not_negative(min_frequency=min_frequency)
        highest = sample_rate / 2 if max_frequency is None else max_frequency
        check(
            min_frequency < highest <= sample_rate / 2,
            "be between {min_frequency} and half of {sample_rate}",
            max_frequency=highest,
            min_frequency=min_frequency,
            sample_rate=sample_rate,
        )
        check_one_of(NORMALIZATIONS, normalization=normalization)
        self.num_mels = num_mels
        self.sample_rate = sample_rate
        self.window_length, self.hop_length = window_length, hop_length
        self.min_frequency, self.max_frequency = float(min_frequency), float(highest)
        self.normalization = normalization
        self._basis = _fourier_basis(window_length)
        self._filters = mel_filters(
            num_mels, sample_rate, window_length, self.min_frequency, self.max_frequency
        )

    def build(self, inputs_shape: Any, lengths_shape: Any = None) -> None:
        """Accept audio of any length; there are no weights."""

    def call(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the log-mel frames (B, T, M)."""
        self._check(inputs.shape)
        check_lengths(lengths, inputs)
        audio = ops.cast(inputs, _precision())
        count = ops.shape(audio)[1] // self.hop_length
        audio = _reflect_ends(audio, lengths, self.window_length // 2)
        spectra = ops.matmul(self._windows(audio, count), ops.cast(self._basis, audio.dtype))
        real, imaginary = ops.split(spectra, 2, axis=-1)  # (B, T, K)
        energies = ops.matmul(
            ops.square(real) + ops.square(imaginary), ops.cast(self._filters, audio.dtype)
        )  # (B, T, M)
        frames = ops.log10(ops.cast(ops.maximum(energies, _FLOOR), "float32"))
        counts = None if lengths is None else self.output_lengths(lengths)
        return ops.cast(zero_padding(self._normalize(frames, counts), counts), self.compute_dtype)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Return the numbers of frames (B,) of audio of these numbers of samples."""
        return lengths // self.hop_length

    def compute_output_shape(self, inputs_shape: Any, lengths_shape: Any = None) -> tuple[int | None, ...]:
        """Return the output shape (B, T, M)."""
        batch_size, samples = inputs_shape
        return batch_size, None if samples is None else samples // self.hop_length, self.num_mels

    def _windows(self, audio: Tensor, count: Tensor) -> Tensor:
        """Return the first `count` windows (B, T, W) of audio."""
        size = math.gcd(self.window_length, self.hop_length)
        step, parts = self.hop_length // size, self.window_length // size
        chunks = ops.reshape(
            audio[:, : (count * step + parts - step) * size], [-1, count * step + parts - step, size]
        )
        return ops.concatenate([chunks[:, part::step][:, :count] for part in range(parts)], axis=-1)

    def _normalize(self, frames: Tensor, counts: Tensor | None) -> Tensor:
        """Normalize the frames of each row, without those of padding."""
        if self.normalization == "whisper":
            valid = zero_padding(frames, counts, lowest := math.log10(_FLOOR))
            largest = ops.max(valid, axis=(1, 2), keepdims=True, initial=lowest)
            frames = ops.maximum(frames, largest - _WHISPER_RANGE)
            return (frames + 4.0) / 4.0
        if self.normalization == "utterance":
            weights = zero_padding(ops.ones_like(frames[..., :1]), counts)
            total = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1.0)
            centred = frames - ops.sum(weights * frames, axis=1, keepdims=True) / total
            variance = ops.sum(weights * ops.square(centred), axis=1, keepdims=True) / total
            return centred / ops.sqrt(variance + _EPSILON)
        return frames

    def _check(self, shape: Any) -> None:
        if len(shape) != 2 or (shape[1] is not None and shape[1] <= self.window_length // 2):
            raise ValueError(
                f"`inputs` must be audio (B, N) of more than window_length / 2 = {self.window_length // 2} samples. "
                f"Received: inputs.shape={tuple(shape)}"
            )


def mel_filters(
    num_mels: int, sample_rate: int, window_length: int, min_frequency: float, max_frequency: float
) -> np.ndarray:
    """Return the triangular filters of Slaney's mel scale, each of unit area, (K, M).

    The scale is linear up to 1000 Hz and logarithmic above.

    Args:
        num_mels: M.
        sample_rate: the number of samples in a second.
        window_length: W; there are K = W / 2 + 1 frequencies.
        min_frequency: the lower end of the first filter, in Hertz.
        max_frequency: the upper end of the last filter.
    """
    frequencies = np.arange(window_length // 2 + 1) * sample_rate / window_length
    mels = np.linspace(_to_mels(min_frequency), _to_mels(max_frequency), num_mels + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * _LOG_STEP))
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies[:, None] - lower) / (centre - lower)
    falling = (upper - frequencies[:, None]) / (upper - centre)
    triangles: np.ndarray = np.maximum(0, np.minimum(rising, falling))
    return triangles * 2 / (upper - lower)


_LOG_STEP = np.log(6.4) / 27  # of a mel above 1000 Hz


def _to_mels(frequency: float) -> float:
    return (
        frequency * 3 / 200 if frequency < 1000 else 15 + float(np.log(frequency / 1000)) / float(_LOG_STEP)
    )


def _fourier_basis(window_length: int) -> np.ndarray:
    """Return the cosines and sines of the real Fourier transform times Hann's window, (W, 2 K)."""
    samples = np.arange(window_length)
    window = np.sin(np.pi * samples / window_length) ** 2
    angles = 2 * np.pi / window_length * np.outer(samples, np.arange(window_length // 2 + 1))
    return window[:, None] * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _precision() -> str:
    """Return the dtype of the Fourier transform; JAX has no float64 by default."""
    return "float64" if keras.backend.backend() == "tensorflow" else "float32"


def _reflect_ends(audio: Tensor, lengths: Tensor | None, size: int) -> Tensor:
    """Extend audio (B, N) by `size` samples on both sides, reflected at its ends; zeros stand after its own end."""
    count = ops.shape(audio)[1]
    places = ops.absolute(ops.arange(-size, count + size, dtype="int32"))
    if lengths is None:  # `pad(mode="reflect")` fails for an empty batch
        return ops.take(audio, ops.where(places < count, places, 2 * (count - 1) - places), axis=1)
    places = places[None, :]
    lengths = ops.cast(lengths, "int32")[:, None]
    sources = ops.where(places < lengths, places, 2 * (lengths - 1) - places)
    reflected = ops.take_along_axis(audio, ops.clip(sources, 0, count - 1), axis=1)
    return ops.where(places < lengths + size, reflected, ops.cast(0, audio.dtype))
