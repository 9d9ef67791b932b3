import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.layers import AdditiveScore, BilinearScore, GATScore, MultiHeadAttention, score_layers
from keras_transformer.ops import scores

# JAX compiles every new shape: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
SIZES = (4, 2, 3)  # N, K, H
LAYERS = {
    "additive": (AdditiveScore, {}),
    "gatv2": (AdditiveScore, {"activation": "leaky_relu"}),
    "bilinear": (BilinearScore, {}),
    "gat": (GATScore, {"negative_slope": 0.3}),
}
VALUES = {
    "additive": scores.Additive,
    "gatv2": functools.partial(scores.Additive, activation="leaky_relu"),
    "bilinear": scores.Bilinear,
    "gat": functools.partial(scores.GAT, negative_slope=0.3),
}
ON_JAX_TOO = ["additive", pytest.param("gatv2", marks=neutral), "bilinear", "gat"]


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def built(kind, sizes=SIZES, **options):
    layer, defaults = LAYERS[kind]
    layer = layer(**{**defaults, **options})
    layer.build(sizes)
    layer.set_weights([normal(*weight.shape) for weight in layer.weights])
    return layer


def leaky(x, slope=0.2):
    return np.where(x > 0, x, slope * x)


def log_kernel(kind, weights, query, key):
    """Compute log κ of one query and one key of one head, from the papers' equations."""
    if kind == "gat":
        return leaky(weights[0] @ query + weights[1] @ key, 0.3)
    if kind == "bilinear":
        return query @ weights[0] @ key
    return weights[0] @ (np.tanh if kind == "additive" else leaky)(query + key)


@neutral
@pytest.mark.parametrize("kind", LAYERS)
def test_weights_equal_the_equation(kind):
    layer = built(kind)
    query, key = normal(2, 3, 4, 3), normal(2, 5, 2, 3)
    found = kt_ops.attention_weights(query, key, score=layer)
    by_head = [np.repeat(w, 2, axis=0) if len(w) == 2 else w for w in layer.get_weights()]
    logits = np.array(
        [
            [
                [[log_kernel(kind, [w[n] for w in by_head], q[n], k[n // 2]) for k in keys] for q in queries]
                for n in range(4)
            ]
            for queries, keys in zip(query, key, strict=True)
        ]
    )
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_bilinear_scores_are_initialized_as_scaled_dot_product():
    layer = BilinearScore()
    layer.build((4, 2, 3))
    query, key = normal(2, 3, 4, 3), normal(2, 5, 2, 3)
    found = kt_ops.attention_weights(query, key, score=layer)
    np.testing.assert_allclose(found, kt_ops.attention_weights(query, key), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["additive", "gat"])
def test_vectors_have_glorot_initialization_per_head(kind):
    layer, _ = LAYERS[kind]
    layer = layer()
    layer.build((200, 200, 5))
    for vectors in layer.get_weights():
        assert np.abs(vectors).max() <= 1  # √(6 / (5 + 1))
        assert np.std(vectors) == pytest.approx(1 / np.sqrt(3), rel=0.1)


class TestBuilding:
    @pytest.mark.parametrize("kind", LAYERS)
    def test_rebuilding_with_the_same_sizes_keeps_weights(self, kind):
        layer = built(kind)
        before = layer.get_weights()
        layer.build(list(SIZES))
        for found, expected in zip(layer.get_weights(), before, strict=True):
            np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("kind", LAYERS)
    def test_rebuilding_with_other_sizes_raises_an_error(self, kind):
        layer = built(kind, name="shared")
        with pytest.raises(ValueError, match=r"`score` must be .*'shared'.*\(4, 2, 3\).*sizes=\(4, 2, 5\)"):
            layer.build((4, 2, 5))


@pytest.mark.parametrize("kind", ON_JAX_TOO)
def test_weight_gradients_are_equal_in_every_kernel(gradients, kind):
    layer = built(kind)
    query, key, value, upstream = (
        normal(1, 3, 4, 3),
        normal(1, 4, 2, 3),
        normal(1, 4, 2, 2),
        normal(1, 3, 4, 2),
    )

    def found(kernel):
        def loss(*weights):
            names = [weight.name for weight in layer.weights]
            score = VALUES[kind](**dict(zip(names, weights, strict=True)))
            return ops.sum(kt_ops.attention(query, key, value, score=score, kernel=kernel) * upstream)

        return gradients(loss, *layer.get_weights())

    for dense, chunked in zip(found("dense"), found("chunked"), strict=True):
        assert dense.any()
        np.testing.assert_allclose(chunked, dense, rtol=1e-4, atol=1e-5)


def test_two_layers_may_share_one_score():
    layers = [MultiHeadAttention(2, 4, score=shared) for shared in [GATScore()] * 2]
    for layer in layers:
        layer.build((None, None, 8))
    assert layers[0].score.weights == layers[1].score.weights


class TestIdentifiers:
    def test_get_accepts_every_score_name(self):
        for name in scores._NAMES:
            assert score_layers.get(name) == scores.get(name)
        assert score_layers.get(None) == scores.ScaledDotProduct()

    @pytest.mark.parametrize("name", LAYERS)
    def test_get_creates_a_new_layer_for_each_name(self, name):
        layer = score_layers.get(name)
        assert type(layer) is LAYERS[name][0]
        assert score_layers.get(name) is not layer
        assert getattr(layer, "activation", "leaky_relu") == ("tanh" if name == "additive" else "leaky_relu")

    @pytest.mark.parametrize(
        "score",
        [GATScore(), scores.RBF(2.0), scores.Additive(np.ones((2, 3)))],
        ids=lambda s: type(s).__name__,
    )
    def test_get_returns_a_score_unchanged(self, score):
        assert score_layers.get(score) is score

    @pytest.mark.parametrize("score", [scores.RBF(2.0), scores.ScaledDotProduct(soft_cap=3.0)], ids=str)
    def test_serialized_scores_are_equal_after_loading(self, score):
        assert score_layers.get(keras.saving.serialize_keras_object(score)) == score

    @pytest.mark.parametrize("kind", LAYERS)
    @pytest.mark.parametrize("is_built", [False, True])
    def test_serialized_layers_keep_their_config_and_are_unbuilt(self, kind, is_built):
        layer, options = LAYERS[kind]
        layer = built(kind) if is_built else layer(**options)
        config = keras.saving.serialize_keras_object(layer)
        again = score_layers.get(config)
        assert again.get_config() == layer.get_config()
        assert keras.saving.serialize_keras_object(again) == config
        assert again.sizes is None
