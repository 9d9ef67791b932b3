"""Pooling and later layers of sentence encoders, compared with NumPy."""

import keras
import numpy as np
import pytest

from keras_transformer.models import BERT, SentenceEncoder
from keras_transformer.models.sentence_encoder import POOLINGS, pool
from tests.random_weights import randomise

IDS = np.array([[2, 5, 6, 7, 3], [2, 9, 3, 0, 0], [2, 3, 0, 0, 0], [0, 0, 0, 0, 0]])
LENGTHS = (5, 3, 2)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def encoder(**options):
    model = BERT(
        12, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16, max_length=8, dropout=0.0, **options
    )
    return randomise(model)


def reference(hidden, pooling, encoder):
    """Return the pooled vector (D,) of the hidden states (T, D) of a row without padding."""
    places = np.arange(1, len(hidden) + 1)
    return {
        "mean": lambda: hidden.mean(0),
        "mean_sqrt_length": lambda: hidden.sum(0) / np.sqrt(len(hidden)),
        "weighted_mean": lambda: places @ hidden / places.sum(),
        "max": lambda: hidden.max(0),
        "first": lambda: hidden[0],
        "last": lambda: hidden[-1],
        "pooler": lambda: keras.ops.convert_to_numpy(encoder.pool(hidden[None])[0]),
    }[pooling]()


@pytest.fixture(scope="module")
def bert():
    return encoder()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_of_padded_rows_equals_numpy(bert, pooling):
    inputs = {"token_ids": keras.ops.convert_to_tensor(IDS)}
    found = keras.ops.convert_to_numpy(pool(bert, bert(inputs), inputs, pooling))
    assert np.isfinite(found).all()
    if pooling not in ("first", "pooler"):
        np.testing.assert_array_equal(found[-1], 0)  # a row without tokens
    for row, length in enumerate(LENGTHS):
        hidden = keras.ops.convert_to_numpy(bert(IDS[row : row + 1, :length]))[0]
        np.testing.assert_allclose(found[row], reference(hidden, pooling, bert), **CLOSE)


def test_several_poolings_are_concatenated_in_their_order(bert):
    inputs = {"token_ids": keras.ops.convert_to_tensor(IDS)}
    names = ("max", "first", "last")
    found = pool(bert, bert(inputs), inputs, names)
    each = [pool(bert, bert(inputs), inputs, name) for name in names]
    np.testing.assert_array_equal(found, np.concatenate(each, axis=1))
    assert SentenceEncoder(bert, names).embedding_dim == 24


def test_the_head_transforms_pooled_vectors_and_is_saved(tmp_path):
    head = [keras.layers.UnitNormalization(), keras.layers.Dense(4, "tanh", bias_initializer="normal")]
    model = SentenceEncoder(encoder(), ("mean", "max"), head)
    assert model.compute_output_shape((None, 2, 5)) == (None, 2, 4)
    found = keras.ops.convert_to_numpy(model(IDS[None, :2]))
    inputs = {"token_ids": keras.ops.convert_to_tensor(IDS[:2])}
    pooled = keras.ops.convert_to_numpy(pool(model.encoder, model.encoder(inputs), inputs, model.pooling))
    unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    kernel, bias = (keras.ops.convert_to_numpy(weight) for weight in head[1].weights)
    np.testing.assert_allclose(found[0], np.tanh(unit @ kernel + bias), **CLOSE)
    assert any(weight is head[1].kernel for weight in model.trainable_weights)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(IDS[None, :2]), found, **CLOSE)
    assert (loaded.pooling, loaded.embedding_dim) == (("mean", "max"), 4)
