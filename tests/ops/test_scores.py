import dataclasses
import itertools
import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import attention, attention_weights, linear, scores
from keras_transformer.relations import Causal

from .covering import AXES
from .reference import SCORES, weights_of_a_score

neutral = pytest.mark.backend_neutral
on_tensorflow = pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="JAX has float32 only")
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
WEIGHTLESS = {
    "scaled dot product": scores.ScaledDotProduct(),
    "scale and cap": scores.ScaledDotProduct(0.5, soft_cap=2.0),
    "cosine": scores.Cosine(7.0),
    "rbf": scores.RBF(),
    "rbf of a width": scores.RBF(0.5),
    "polynomial": scores.Polynomial(4, 1.5, 0.3),
    "linear": scores.LinearFeatures(),
    "linear by softplus": scores.LinearFeatures("softplus"),
}


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def weights_of(score, query, key, relation=None):
    """Return the weights (T, S) of queries (T, H) and keys (S, H)."""
    found = attention_weights(query[None, :, None], key[None, :, None], relation, score=score)
    return np.asarray(found)[0, 0]


class TestDefinitions:
    """log κ equals its definition up to a constant for each query, which does not change attention."""

    @pytest.mark.parametrize("kv_heads", [4, 2, 1])
    @pytest.mark.parametrize("score", AXES["score"])
    @neutral
    def test_weights_equal_the_normalized_definition(self, score, kv_heads):
        query, key = normal(2, 5, 4, 4), normal(2, 6, kv_heads, 4)
        parameters = [
            normal(*shape, seed=number) for number, shape in enumerate(weights_of_a_score(score, 4, kv_heads))
        ]
        make, definition = SCORES[score]
        found = np.asarray(attention_weights(query, key, score=make(*parameters)))
        for b, n, i in np.ndindex(2, 4, 5):
            own = [parameter[n * len(parameter) // 4] for parameter in parameters]
            kernel = [
                np.exp(definition(query[b, i, n], key[b, j, n * kv_heads // 4], *own)) for j in range(6)
            ]
            np.testing.assert_allclose(found[b, n, i], np.array(kernel) / sum(kernel), **CLOSE)

    def test_defaults_scale_by_the_size_of_a_head(self):
        query, key = normal(3, 16), normal(5, 16, seed=1)
        dot = query @ key.T / 4
        distances = ((query[:, None] - key) ** 2).sum(-1)
        cosines = query @ key.T / np.outer(np.linalg.norm(query, axis=1), np.linalg.norm(key, axis=1))
        for name, expected in {
            "scaled_dot_product": np.exp(dot),
            "exponential": np.exp(dot),
            "rbf": np.exp(-distances / 2 / 4),
            "polynomial": dot**2,
            "cosine": np.exp(10 * cosines),
        }.items():
            expected = expected / expected.sum(-1, keepdims=True)
            np.testing.assert_allclose(
                weights_of(name, query, key), expected, rtol=1e-4, atol=1e-6, err_msg=name
            )

    @pytest.mark.parametrize("score", ["additive", "gatv2", "bilinear", "gat"])
    def test_weights_of_one_head_do_not_affect_other_heads(self, score):
        query, key = normal(1, 5, 4, 4), normal(1, 5, 4, 4, seed=1)
        parameters = [normal(*shape) for shape in weights_of_a_score(score, 4, 4)]
        moved = [parameter.copy() for parameter in parameters]
        for parameter in moved:
            parameter[2] += 1
        before, after = (
            np.asarray(attention_weights(query, key, score=SCORES[score][0](*given)))
            for given in (parameters, moved)
        )
        changed = ~np.isclose(before, after).all(axis=(0, 2, 3))
        assert changed.tolist() == [False, False, True, False]


class TestStepsOfAScore:
    """The methods that kernels use: manual gradients, and scores of single pairs."""

    @pytest.mark.slow_variants
    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=neutral if weights_of_a_score(name, 4, 2) else ())
            for name in AXES["score"]
        ],
    )
    def test_pair_scores_are_entries_and_gradients_equal_autodiff(self, name, gradients):
        parameters = tuple(normal(*shape) for shape in weights_of_a_score(name, 4, 2))
        score = SCORES[name][0](*parameters)
        query, key = score.features(
            ops.convert_to_tensor(normal(1, 5, 4, 4)), ops.convert_to_tensor(normal(1, 6, 2, 4))
        )
        # (B, K, G·T, F), (B, K, S, F)
        size = query.shape[-1]
        query = np.reshape(np.transpose(query, (0, 2, 1, 3)), (1, 2, 10, size))
        key = np.transpose(key, (0, 2, 1, 3))
        of_score = tuple(np.asarray(parameter) for parameter in score.parameters)
        tensors = [ops.convert_to_tensor(array) for array in (query, key, *of_score)]

        def compare(query, key, *parameters):
            return score.compare(query, key, parameters)

        compared = np.asarray(compare(*tensors))
        for k, g in itertools.product(range(2), range(2)):
            for i, j in itertools.product(range(5), range(6)):
                rows = np.repeat(query[0, k, g * 5 + i][None], 4, 0), np.repeat(key[0, k, j][None], 4, 0)
                pair = score.compare_pairs(*map(ops.convert_to_tensor, rows), tuple(tensors[2:]))
                np.testing.assert_allclose(pair[2 * k + g], compared[0, k, g * 5 + i, j], **CLOSE)
            if keras.config.backend() == "jax":
                break  # single pairs compile one by one
        upstream = normal(*compared.shape, seed=3)
        expected = gradients(lambda *given: ops.sum(compare(*given) * upstream), query, key, *of_score)
        d_query, d_key, d_parameters = score.compare_gradient(
            tensors[0], tensors[1], tuple(tensors[2:]), ops.convert_to_tensor(upstream)
        )
        for found, reference in zip((d_query, d_key, *d_parameters), expected, strict=True):
            np.testing.assert_allclose(found, reference, **CLOSE)
        (slope,) = gradients(lambda compared: ops.sum(score.transform(compared) * upstream), compared)
        found = score.transform_gradient(ops.convert_to_tensor(compared), ops.convert_to_tensor(upstream))
        np.testing.assert_allclose(found, slope, **CLOSE)


class TestSoftCap:
    def test_scores_stay_within_the_soft_cap(self):
        query, key = 100 * normal(4, 3), 100 * normal(6, 3, seed=1)
        weights = weights_of(scores.ScaledDotProduct(soft_cap=2.0), query, key)
        assert (np.log(weights.max(-1) / weights.min(-1)) <= 4.0001).all()
        assert (np.log(weights.max(-1) / weights.min(-1)) > 3.9).any()

    def test_a_large_soft_cap_has_no_effect(self):
        query, key = normal(4, 3), normal(6, 3, seed=1)
        capped = weights_of(scores.ScaledDotProduct(soft_cap=1e4), query, key)
        np.testing.assert_allclose(capped, weights_of(None, query, key), rtol=1e-4)


class TestCosine:
    def test_cosine_scores_ignore_vector_lengths(self):
        query, key = normal(4, 5), normal(6, 5, seed=1)
        lengths = np.random.default_rng(2).uniform(0.01, 100, (10, 1)).astype("float32")
        found = weights_of("cosine", query * lengths[:4], key * lengths[4:])
        np.testing.assert_allclose(found, weights_of("cosine", query, key), rtol=1e-4, atol=1e-6)

    @neutral
    def test_zero_vectors_give_finite_and_uniform_weights(self, gradients):
        query, key = np.zeros((1, 2, 1, 4), "float32"), normal(1, 3, 1, 4)
        np.testing.assert_allclose(attention_weights(query, key, score="cosine"), 1 / 3, rtol=1e-6)
        for gradient in gradients(lambda q, k: ops.sum(attention(q, k, k, score="cosine") ** 2), query, key):
            assert np.isfinite(gradient).all()


class TestRBF:
    def test_rbf_equals_scaled_dot_product_for_keys_of_equal_length(self):
        query, key = normal(4, 5), normal(6, 5, seed=1)
        key *= 3 / np.linalg.norm(key, axis=-1, keepdims=True)
        found = weights_of("rbf", query, key)
        np.testing.assert_allclose(found, weights_of("scaled_dot_product", query, key), rtol=1e-4, atol=1e-6)
        other = weights_of("rbf", query, key * np.arange(1, 7, dtype="float32")[:, None])
        assert not np.allclose(other, found)

    def test_rbf_is_invariant_under_translation_of_queries_and_keys(self):
        query, key = normal(4, 5), normal(6, 5, seed=1)
        moved = np.float32([1, -2, 0.5, 3, 0])
        found = weights_of(scores.RBF(1.3), query + moved, key + moved)
        np.testing.assert_allclose(found, weights_of(scores.RBF(1.3), query, key), rtol=1e-4, atol=1e-6)

    @on_tensorflow
    def test_rbf_in_float64_has_float64_accuracy(self):
        query, key = (normal(5, 4, seed=seed).astype("float64") for seed in range(2))
        kernel = np.exp(-((query[:, None] - key) ** 2).sum(-1) / 2 / 2)
        found = np.asarray(
            attention(query[None, :, None], key[None, :, None], np.eye(5)[None, :, None], score="rbf")
        )
        np.testing.assert_allclose(found[0, :, 0], kernel / kernel.sum(-1, keepdims=True), rtol=1e-12)


class TestPolynomial:
    def test_squared_scores_equal_a_manual_computation(self):
        query = np.float32([[1, 0], [2, 1]])
        key = np.float32([[1, 5], [3, 1], [-2, 0]])
        found = weights_of(scores.Polynomial(2, offset=1.0, scale=1.0), query, key)
        squares = np.array([[2**2, 4**2, 1**2], [8**2, 8**2, 3**2]])
        np.testing.assert_allclose(found, squares / squares.sum(-1, keepdims=True), rtol=1e-5)

    @pytest.mark.parametrize("kernel", ["dense", "chunked"])
    @neutral
    def test_a_dot_product_of_minus_the_offset_gives_zero_weight(self, kernel, gradients):
        score = scores.Polynomial(2, offset=1.0, scale=1.0)
        query = np.float32([[1, 0]]).reshape(1, 1, 1, 2)
        key = np.float32([[-1, 5], [3, 1], [1, 2]]).reshape(1, 3, 1, 2)
        found = attention(
            query, key, np.eye(3, dtype="float32").reshape(1, 3, 1, 3), score=score, kernel=kernel
        )
        np.testing.assert_allclose(np.asarray(found)[0, 0, 0], [0, 16 / 20, 4 / 20], rtol=1e-5)
        value = normal(1, 3, 1, 2)
        found = gradients(
            lambda q, k: ops.sum(attention(q, k, value, score=score, kernel=kernel)), query, key
        )
        # κ = s², so h = Σ s² v / Σ s², whose slope by s₀ is 0 where s₀ = 0.
        assert np.isfinite(found[0]).all()
        np.testing.assert_allclose(found[1][0, 0], 0, atol=1e-6)

    @pytest.mark.parametrize("kernel", ["dense", "chunked"])
    def test_all_zero_kernels_are_finite(self, kernel, gradients):
        score, zeros, value = scores.Polynomial(2), np.zeros((1, 3, 1, 2), "float32"), normal(1, 3, 1, 2)
        found = attention(zeros, zeros, value, score=score, kernel=kernel)
        np.testing.assert_allclose(found, np.broadcast_to(value.mean(1, keepdims=True), value.shape), **CLOSE)
        function = lambda q, k: ops.sum(attention(q, k, value, score=score, kernel=kernel))  # noqa: E731
        for gradient in gradients(function, zeros, zeros):
            assert np.isfinite(gradient).all()

    @pytest.mark.xfail(
        strict=True, reason="the slope of the logarithm overflows before the weight scales it down"
    )
    @pytest.mark.parametrize("kernel", ["dense", "chunked"])
    def test_small_scores_have_finite_gradients_in_float16(self, kernel, gradients):
        query, value = 1e-3 * normal(1, 16, 2, 8), normal(1, 16, 2, 8, seed=1).astype("float16")

        def function(x):
            return ops.sum(attention(x, x, value, "causal", score="polynomial", kernel=kernel))

        (exact,) = gradients(function, query)
        assert abs(exact).max() < 60_000
        (found,) = gradients(function, query.astype("float16"))
        assert np.isfinite(found).all()


class TestLinear:
    @pytest.fixture(autouse=True)
    def small_blocks_of_positions(self, monkeypatch):
        monkeypatch.setattr(linear, "BLOCK_SIZE", 8)

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("feature_map", ["elu", "softplus"])
    @pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=str)
    @pytest.mark.parametrize(
        ("relation", "lengths"), [(None, (5, 19)), (None, (9, 1)), ("causal", (17, 17))], ids=str
    )
    def test_the_linear_kernel_equals_the_dense_kernel(
        self, relation, lengths, heads, feature_map, gradients
    ):
        tensors = (
            normal(2, lengths[0], heads[0], 4),
            normal(2, lengths[1], heads[1], 4, seed=1),
            normal(2, lengths[1], heads[1], 3, seed=2),
        )
        padding_mask = np.random.default_rng(0).random((2, lengths[1])) < 0.7
        padding_mask[1] = False
        options = {"score": scores.LinearFeatures(feature_map), "padding_mask": padding_mask}
        upstream = normal(2, lengths[0], heads[0], 3, seed=4)
        found, expected = (
            (
                attention(*tensors, relation, **options, kernel=kernel),
                *gradients(
                    lambda *given, kernel=kernel: ops.sum(
                        attention(*given, relation, **options, kernel=kernel) * upstream
                    ),
                    *tensors,
                ),
            )
            for kernel in ("linear", "dense")
        )
        for actual, reference in zip(found, expected, strict=True):
            np.testing.assert_allclose(actual, reference, **CLOSE)

    @pytest.mark.parametrize("length", [1, 7, 8, 9, 16, pytest.param(30, marks=neutral)])
    def test_the_causal_linear_kernel_equals_the_recurrence(self, length):
        """Katharopoulos et al., equations 16 to 20."""
        query, key, value = (normal(length, 3, seed=seed) for seed in range(3))
        state, normaliser, expected = np.zeros((3, 3)), np.zeros(3), []
        for q, k, v in zip(*(np.where(x > 0, x + 1, np.exp(x)) for x in (query, key)), value, strict=True):
            state, normaliser = state + np.outer(k, v), normaliser + k
            expected.append(q @ state / (q @ normaliser))
        tensors = (tensor[None, :, None] for tensor in (query, key, value))
        found = np.asarray(attention(*tensors, Causal(), score="linear", kernel="linear"))
        np.testing.assert_allclose(found[0, :, 0], expected, **CLOSE)


def test_gat_ranks_keys_equally_for_every_query_and_gatv2_does_not():
    """Brody et al. (2022), theorem 1: GAT's attention is static."""
    query, key = normal(1, 30, 1, 4), normal(1, 8, 1, 4, seed=1)
    a, b = normal(1, 4), normal(1, 4, seed=1)
    orders = [
        np.unique(np.argsort(np.asarray(attention_weights(query, key, score=score))[0, 0], axis=-1), axis=0)
        for score in (scores.GAT(a, b), scores.Additive(a, "leaky_relu"))
    ]
    assert len(orders[0]) == 1
    assert len(orders[1]) > 5


def test_a_bilinear_score_with_identity_equals_scaled_dot_product():
    query, key = normal(4, 5), normal(6, 5, seed=1)
    found = weights_of(scores.Bilinear(np.eye(5, dtype="float32")[None] / 5**0.5), query, key)
    np.testing.assert_allclose(found, weights_of(None, query, key), **CLOSE)


class TestValues:
    @pytest.mark.parametrize("score", WEIGHTLESS.values(), ids=WEIGHTLESS)
    def test_scores_round_trip_through_their_config(self, score):
        assert type(score).from_config(score.get_config()) == score
        config = keras.saving.serialize_keras_object(score)
        again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
        assert again == score == scores.get(config)
        assert again.get_config() == score.get_config()
        assert hash(again) == hash(score)
        assert config["registered_name"] == f"keras_transformer>{type(score).__name__}"

    @pytest.mark.parametrize("score", WEIGHTLESS.values(), ids=WEIGHTLESS)
    def test_scores_are_frozen(self, score):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(score, dataclasses.fields(score)[0].name, 1)

    def test_get_accepts_names_values_and_none(self):
        assert scores.get(None) == scores.get("scaled_dot_product") == scores.get("exponential")
        assert scores.get(None) == scores.ScaledDotProduct()
        for name, kind in {
            "cosine": scores.Cosine,
            "rbf": scores.RBF,
            "polynomial": scores.Polynomial,
            "linear": scores.LinearFeatures,
        }.items():
            assert scores.get(name) == kind()
        given = scores.GAT(normal(2, 3), normal(2, 3))
        assert scores.get(given) is given

    def test_get_rejects_configs_of_other_classes(self):
        config = keras.saving.serialize_keras_object(Causal())
        with pytest.raises(ValueError, match="`score` must be .*Received: score="):
            scores.get(config)
