"""Initializers and regularizers as arguments of layers."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    AdditiveScore,
    BilinearScore,
    FeedForward,
    GATScore,
    GraphAttention,
    MultiHeadAttention,
    TokenEmbedding,
)

SHAPE = (None, None, 64)


def normal(stddev):
    return keras.initializers.RandomNormal(stddev=stddev)


def layer_of(kind, **options):
    """Return a built layer."""
    sizes = {
        MultiHeadAttention: {"num_heads": 4, "key_dim": 16},
        FeedForward: {"hidden_dim": 128, "activation": "swiglu"},
    }
    layer = kind(**sizes[kind], **options)
    layer.build(SHAPE)
    return layer


def kernels(layer):
    return {w.path: np.asarray(w) for w in layer.trainable_weights if w.name == "kernel"}


LAYERS = [MultiHeadAttention, FeedForward]


@pytest.mark.parametrize("kind", LAYERS)
def test_each_projection_has_the_standard_deviation_of_its_initializer(kind):
    own = {"output": 0.3} if kind is FeedForward else {"output": 0.3, "query": 0.2}
    options = {f"{name}_initializer": normal(std) for name, std in own.items()}
    layer = layer_of(kind, kernel_initializer=normal(0.1), **options)
    for path, kernel in kernels(layer).items():
        assert kernel.std() == pytest.approx(own.get(path.split("/")[-2], 0.1), rel=0.1), path
    by_default = layer_of(kind, kernel_initializer=normal(0.1))
    assert all(kernel.std() == pytest.approx(0.1, rel=0.1) for kernel in kernels(by_default).values())


@pytest.mark.parametrize("kind", LAYERS)
def test_the_default_initializer_is_glorot_uniform(kind):
    for path, kernel in kernels(layer_of(kind)).items():
        limit = np.sqrt(6 / sum(kernel.shape))
        assert 0.98 * limit < np.abs(kernel).max() <= limit, path


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_of_one_initializer_differ_and_are_reproducible(kind):
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        drawn.append(
            [each.ravel()[:8] for each in kernels(layer_of(kind, kernel_initializer=normal(1))).values()]
        )
    np.testing.assert_array_equal(*drawn)
    for i, first in enumerate(drawn[0]):
        assert not any(np.array_equal(first, other) for other in drawn[0][:i])


def test_embeddings_have_the_standard_deviation_of_their_initializer():
    for options, std in (({}, 1 / 8), ({"embeddings_initializer": normal(3.0)}, 3.0)):
        layer = TokenEmbedding(500, 64, **options)
        layer.build((None, None))
        assert np.asarray(layer.embedding.embeddings).std() == pytest.approx(std, rel=0.02)
        assert TokenEmbedding.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize("score", [GATScore, AdditiveScore, BilinearScore])
def test_graph_attention_and_its_score_regularize_their_weights(score):
    layer = GraphAttention(
        2, 4, score=score(kernel_regularizer=keras.regularizers.L2(0.5)), kernel_regularizer="l1"
    )
    layer.build((None, None, 6))
    expected = sum(
        0.01 * np.abs(weight).sum() if weight.name == "kernel" else 0.5 * np.square(weight).sum()
        for weight in layer.trainable_weights
        if weight.name != "bias"
    )
    assert float(sum(layer.losses)) == pytest.approx(expected, rel=1e-5)
    assert GraphAttention.from_config(layer.get_config()).get_config() == layer.get_config()
