"""Audio of WAV files as arrays."""

import fractions
import io
import os
import wave
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines.errors import InvalidInputError

_FORMATS = {1: "u1", 2: "<i2", 4: "<i4"}  # of samples of one, two and four bytes
# Sample rates that are resampled, and the largest denominator of their ratio: headers may be wrong.
_LOWEST_RATE, _HIGHEST_RATE, _LARGEST_DENOMINATOR = 1_000, 384_000, 10_000
# The filter: zero crossings on each side, and β of the Kaiser window. It keeps 90 % of frequencies to within 2·10⁻⁵.
_ZERO_CROSSINGS, _KAISER = 32, 10.0


def read_wav(source: str | os.PathLike[str] | bytes, sample_rate: int, resample: bool = False) -> np.ndarray:
    """Return the samples of a WAV file, float32 (N,) in [−1, 1].

    Args:
        source: the path of the file, or its content.
        sample_rate: the number of samples in a second.
        resample: whether to resample files of other sample rates, which are refused otherwise.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if the file is to be resampled, and SciPy is not installed.
        ValueError: if it is not a WAV file of integers, has several channels or another sample rate, or is empty.
    """
    name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        with wave.open(io.BytesIO(source) if isinstance(source, bytes) else os.fspath(source), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            content = file.readframes(file.getnframes())
    except (EOFError, wave.Error) as error:
        raise _error(
            f"`audio` must be a WAV file of integer samples. Received: {name}, {str(error) or 'an incomplete file'}"
        ) from None
    if channels != 1:
        raise _error(f"`audio` must have one channel. Received: {channels} channels in {name}")
    if rate != sample_rate and not resample:
        raise _error(
            f"`audio` must have {sample_rate} samples a second, or resample=True. Received: {rate} in {name}"
        )
    content = content[: len(content) // width * width]
    if not content:
        raise _error(f"`audio` must have samples. Received: none in {name}")
    if width == 3:  # the three bytes of a sample become the upper ones of four
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        samples = padded.view("<i4")[:, 0]
        width = 4
    else:
        samples = np.frombuffer(content, _FORMATS[width])
    offset = 128 if width == 1 else 0  # samples of one byte have no sign
    scaled = (samples.astype(np.float64) - offset) / 2.0 ** (8 * width - 1)
    return (scaled if rate == sample_rate else _resampled(scaled, rate, sample_rate)).astype(np.float32)


def checked_audio(audio: Any, sample_rate: int, resample: bool = False) -> np.ndarray:
    """Return the samples of an array, of a WAV file, or of its content, float32 (N,).

    Args:
        audio: the array, the path of the file, or its content.
        sample_rate: the number of samples in a second.
        resample: see `read_wav`; an array has no sample rate.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: as `read_wav`.
        ValueError: as `read_wav`, or if it is neither, or an array of another shape or dtype.
    """
    if isinstance(audio, str | os.PathLike | bytes):
        return read_wav(audio, sample_rate, resample)
    try:
        samples = np.asarray(audio)
    except ValueError:  # ragged lists
        samples = np.empty((0, 0))
    if samples.dtype.kind == "O" or samples.dtype.kind in "US":
        raise _error(
            f"`audio` must be floats (N,) or the path of a WAV file. Received: a {type(audio).__name__}"
        )
    if samples.ndim != 1:
        raise _error(
            f"`audio` must be floats (N,), of one channel. Received: an array of shape {samples.shape}"
        )
    if samples.size and samples.dtype.kind != "f":
        raise _error(f"`audio` must be floats, usually from -1 to 1. Received: {samples.dtype} samples")
    return samples.astype(np.float32)


def _resampled(samples: np.ndarray, rate: int, sample_rate: int) -> np.ndarray:
    """Return samples (N,) at another rate, without the frequencies above half of the lower one."""
    try:
        from scipy import signal
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Audio of {rate} instead of {sample_rate} samples a second needs SciPy, "
            "the extra [audio]: pip install scipy"
        ) from error
    if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
        raise _error(
            f"`audio` must have {_LOWEST_RATE} to {_HIGHEST_RATE} samples a second to be resampled. Received: {rate}"
        )
    ratio = fractions.Fraction(sample_rate, rate).limit_denominator(_LARGEST_DENOMINATOR)
    factor = max(ratio.numerator, ratio.denominator)
    low_pass = signal.firwin(2 * _ZERO_CROSSINGS * factor + 1, 1 / factor, window=("kaiser", _KAISER))
    resampled: np.ndarray = signal.resample_poly(samples, ratio.numerator, ratio.denominator, window=low_pass)
    return resampled


def _error(message: str) -> InvalidInputError:
    return InvalidInputError("audio", message)
