"""Audio of WAV files as arrays."""

import io
import os
import wave
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines.errors import InvalidInputError

_FORMATS = {1: "u1", 2: "<i2", 4: "<i4"}  # of samples of one, two and four bytes


def read_wav(source: str | os.PathLike[str] | bytes, sample_rate: int) -> np.ndarray:
    """Return the samples of a WAV file, float32 (N,) in [−1, 1].

    Args:
        source: the path of the file, or its content.
        sample_rate: the number of samples in a second that the file must have.

    Raises:
        FileNotFoundError: if there is no such file.
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
    if rate != sample_rate:
        raise _error(f"`audio` must have {sample_rate} samples a second. Received: {rate} in {name}")
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
    if width == 1:
        return ((samples - np.float32(128)) / 128).astype(np.float32)
    scaled: np.ndarray = samples.astype(np.float64) / 2.0 ** (8 * width - 1)
    return scaled.astype(np.float32)


def checked_audio(audio: Any, sample_rate: int) -> np.ndarray:
    """Return the samples of an array, of a WAV file, or of its content, float32 (N,).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: as `read_wav`, or if it is neither, or an array of another shape or dtype.
    """
    if isinstance(audio, str | os.PathLike | bytes):
        return read_wav(audio, sample_rate)
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


def _error(message: str) -> InvalidInputError:
    return InvalidInputError("audio", message)
