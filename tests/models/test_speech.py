"""Speech models: padding, the probability of a text under CTC, and greedy decoding."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.layers import LogMelSpectrogram
from keras_transformer.models import CTC, SpeechEncoder
from tests.laws.cases import normal, numbers, randomise

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "dropout": 0.0}
AUDIO = 0.1 * normal(2, 3200)
LENGTHS = np.array([3200, 1900], "int32")
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def model():
    return randomise(CTC(SpeechEncoder(**SIZES), 5), 0.3)


@pytest.fixture(scope="module")
def padded_logits(model):
    """Logits of rows with noise after their ends, of a length that is not a multiple of any stride."""
    noise, noisy = normal(2, 1234, seed=1), np.where(np.arange(3200) < LENGTHS[:, None], AUDIO, 7.0)
    return numbers(model({"audio": np.concatenate([noisy, noise], axis=1), "lengths": LENGTHS}))


@pytest.mark.backend_neutral
def test_padding_changes_neither_logits_nor_text(model, padded_logits):
    for row, length in enumerate(LENGTHS):
        single = numbers(model({"audio": AUDIO[row : row + 1, :length]}))
        count = model.encoder.output_lengths(length)
        assert single.shape[1] == count
        np.testing.assert_allclose(padded_logits[row, :count], single[0], **CLOSE)
        ids = numbers(model.greedy_ids(padded_logits[row : row + 1]))[0]
        np.testing.assert_array_equal(ids[:count], model.greedy_ids(single)[0])
        assert not ids[count:].any()


def test_padding_does_not_change_the_loss(model, padded_logits):
    loss, labels = keras.losses.CTC(reduction="none"), np.array([[3, 3, 1], [2, 4, 0]])
    for row, length in enumerate(LENGTHS):
        single = padded_logits[row : row + 1, : model.encoder.output_lengths(length)]
        padded = loss(labels[row : row + 1], padded_logits[row : row + 1])
        np.testing.assert_allclose(padded, loss(labels[row : row + 1], single), **CLOSE)


def collapsed(path):
    """Return the text of the ids of all frames."""
    return [token for token, _ in itertools.groupby(path) if token]


@pytest.mark.backend_neutral
def test_the_loss_is_the_probability_of_all_paths_of_a_text(model):
    logits = normal(1, 4, 3)
    probabilities = numbers(keras.ops.softmax(logits))[0]
    for text in ([1], [1, 2], [2, 2]):
        total = sum(
            np.prod(probabilities[range(4), path])
            for path in itertools.product(range(3), repeat=4)
            if collapsed(path) == text
        )
        labels = np.array([text + [0] * (3 - len(text))])
        np.testing.assert_allclose(keras.losses.CTC()(labels, logits), -np.log(total), **CLOSE)


@pytest.mark.backend_neutral
def test_greedy_decoding_drops_repetitions_and_empty_frames(model):
    paths = np.random.default_rng(0).integers(0, 4, (20, 9))
    logits = 5 * np.eye(5, dtype="float32")[paths] + 0.1 * normal(20, 9, 5)
    for path, ids in zip(paths, numbers(model.greedy_ids(logits)), strict=True):
        assert [int(token) for token in ids if token] == collapsed(path.tolist())


@pytest.mark.backend_neutral
def test_frames_of_the_features_equal_the_audio():
    audio = SpeechEncoder(**SIZES, features=LogMelSpectrogram(8))
    frames = SpeechEncoder(**SIZES, num_features=8)
    frames.set_weights(audio.get_weights())
    inputs = {"frames": audio.features(AUDIO, LENGTHS), "lengths": audio.features.output_lengths(LENGTHS)}
    outputs = numbers(audio({"audio": AUDIO, "lengths": LENGTHS}))
    count = audio.output_lengths(LENGTHS[1])
    np.testing.assert_allclose(frames(inputs)[0], outputs[0], **CLOSE)
    np.testing.assert_allclose(frames(inputs)[1, :count], outputs[1, :count], **CLOSE)


@pytest.mark.slow
def test_a_model_learns_two_words():
    keras.utils.set_random_seed(0)
    time, lengths = np.arange(4000) / 16000, np.array([4000, 2800] * 8, "int32")
    tones = np.stack([np.sin(2 * np.pi * frequency * time) for frequency in (400, 2000)])
    words = np.arange(16) // 2 % 2
    noise = np.random.default_rng(0).normal(size=(16, 4000))
    inputs = {"audio": (tones[words] + 0.1 * noise).astype("float32"), "lengths": lengths}
    model = CTC(SpeechEncoder(**SIZES), 4)
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.CTC(), jit_compile=False)
    model.fit(inputs, np.stack([words + 1, np.full(16, 3)], axis=1), batch_size=16, epochs=40, verbose=0)
    found = numbers(model.greedy_ids(model(inputs)))
    assert [[int(token) for token in row if token] for row in found] == [[word + 1, 3] for word in words]
