"""Log-mel spectrograms and convolutional subsampling: equations, symmetries and padding."""

import numpy as np
import pytest

from keras_transformer.layers import ConvolutionalSubsampling, LogMelSpectrogram
from keras_transformer.layers.spectrogram import mel_filters
from tests.laws.cases import normal, numbers, randomise

AUDIO = normal(2, 4000) * 0.1
LENGTHS = np.array([4000, 1234], "int32")
pytestmark = pytest.mark.backend_neutral
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def fourier_frames(audio, window_length=400, hop_length=160):
    """Return the energies of all frequencies of each frame but the last (T, K), by NumPy's Fourier transform."""
    audio = np.pad(audio.astype("float64"), window_length // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_length) / window_length)
    frames = np.lib.stride_tricks.sliding_window_view(audio, window_length)[::hop_length][:-1]
    return np.abs(np.fft.rfft(frames * window)) ** 2


def test_frames_equal_the_fourier_transform():
    filters = mel_filters(80, 16000, 400, 0.0, 8000.0)
    found = numbers(LogMelSpectrogram(normalization=None)(AUDIO))
    for row, audio in zip(found, AUDIO, strict=True):
        np.testing.assert_allclose(row, np.log10(fourier_frames(audio) @ filters + 1e-30), **CLOSE)


def test_filters_have_unit_area_and_overlap_at_their_centres():
    frequencies = np.linspace(0, 8000, 8001)
    filters = mel_filters(40, 16000, 16000, 0.0, 8000.0)  # one frequency for each Hertz
    assert filters.shape == (8001, 40)
    np.testing.assert_allclose(filters.sum(axis=0), 1, rtol=0.02)
    centres = frequencies[filters.argmax(axis=0)]
    assert (np.diff(centres) > 0).all()
    linear = centres[centres < 900]
    np.testing.assert_allclose(np.diff(linear), np.diff(linear).mean(), atol=1.01)
    logarithms = np.log(centres[centres > 1100])
    np.testing.assert_allclose(np.diff(logarithms), np.diff(logarithms).mean(), rtol=0.02)


def test_a_louder_audio_adds_twice_the_logarithm_of_its_factor():
    layer = LogMelSpectrogram(normalization=None)
    np.testing.assert_allclose(layer(10 * AUDIO), layer(AUDIO) + 2, **CLOSE)
    for normalization in ("whisper", "utterance"):
        layer = LogMelSpectrogram(normalization=normalization)
        change = numbers(layer(10 * AUDIO)) - numbers(layer(AUDIO))
        np.testing.assert_allclose(change, {"whisper": 0.5, "utterance": 0}[normalization], **CLOSE)


def test_a_delay_of_a_hop_delays_the_frames_by_one():
    layer = LogMelSpectrogram(normalization=None)
    late = np.pad(AUDIO, [(0, 0), (160, 0)])
    np.testing.assert_allclose(layer(late)[:, 3:], layer(AUDIO)[:, 2:], **CLOSE)


def test_a_tone_is_loudest_in_the_band_of_its_frequency():
    layer = LogMelSpectrogram(num_mels=20, normalization=None)
    centres = mel_filters(20, 16000, 400, 0.0, 8000.0).argmax(axis=0) * 40  # Hertz
    tones = np.sin(2 * np.pi * centres[:, None] * np.arange(2000) / 16000).astype("float32")
    assert (numbers(layer(tones))[:, 5].argmax(axis=-1) == np.arange(20)).all()


@pytest.mark.parametrize("normalization", [None, "whisper", "utterance"])
def test_padding_does_not_change_frames(normalization):
    layer = LogMelSpectrogram(normalization=normalization)
    noise = np.where(np.arange(4000) < LENGTHS[:, None], AUDIO, 5 * normal(2, 4000, seed=3))
    frames = numbers(layer(noise, LENGTHS))
    assert frames.shape == layer.compute_output_shape(AUDIO.shape) == (2, 25, 80)
    for row, length in enumerate(LENGTHS):
        count = layer.output_lengths(length)
        np.testing.assert_allclose(frames[row, :count], layer(AUDIO[row : row + 1, :length])[0], **CLOSE)
        assert not frames[row, count:].any()


def test_silence_and_empty_rows_are_finite():
    for normalization in (None, "whisper", "utterance"):
        layer = LogMelSpectrogram(normalization=normalization)
        assert np.isfinite(layer(0 * AUDIO)).all()
        assert np.isfinite(layer(AUDIO, np.array([0, 1], "int32"))).all()


def test_convolutions_equal_their_definition():
    layer = ConvolutionalSubsampling(3, kernel_size=3, strides=(2,), activation="linear")
    inputs = normal(2, 7, 4)
    layer(inputs)
    convolution = randomise(layer).convolutions[0]
    kernel, bias = numbers(convolution.kernel).reshape(3, 4, 3), numbers(convolution.bias)
    padded = np.pad(inputs, [(0, 0), (1, 1), (0, 0)])
    expected = [bias + sum(padded[:, 2 * t + k] @ kernel[k] for k in range(3)) for t in range(4)]
    np.testing.assert_allclose(layer(inputs), np.stack(expected, axis=1), **CLOSE)


@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (3,)])
def test_padding_does_not_change_subsampled_frames(strides):
    layer = ConvolutionalSubsampling(6, strides=strides)
    inputs = normal(3, 13, 4)
    layer(inputs)
    randomise(layer)
    lengths = np.array([12, 7, 0], "int32")  # an even and an odd one, so that strides end differently
    outputs = numbers(layer(inputs, lengths))
    counts = layer.output_lengths(lengths)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        if length:
            single = numbers(layer(inputs[row : row + 1, :length]))
            assert single.shape[1] == count
            np.testing.assert_allclose(outputs[row, :count], single[0], **CLOSE)
        assert not outputs[row, count:].any()
    assert counts[2] == 0
