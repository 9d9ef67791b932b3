import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import relations
from keras_transformer.layers import MultiHeadAttention
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
HEADS = {
    "MHA": {"num_heads": 4},
    "GQA": {"num_heads": 4, "num_kv_heads": 2},
    "MQA": {"num_heads": 4, "num_kv_heads": 1},
}


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def built(*shapes, **options):
    layer = MultiHeadAttention(**{"num_heads": 4, "key_dim": 3, **options})
    layer.build(*shapes)
    return randomise(layer)


def copied_to_keras(layer, *shapes):
    """Return `keras.layers.MultiHeadAttention` as a reference, with the weights of the layer."""
    reference = keras.layers.MultiHeadAttention(
        layer.num_heads, layer.key_dim, layer.value_dim, use_bias=layer.use_bias
    )
    reference.build(*shapes)
    weights = []
    sizes = {"query": layer.key_dim, "key": layer.key_dim, "value": layer.value_dim}
    for name, size in sizes.items():
        values = getattr(layer, f"{name}_projection").get_weights()
        weights.append(values[0].reshape(-1, layer.num_heads, size))
        weights += [bias.reshape(layer.num_heads, size) for bias in values[1:]]
    values = layer.output_projection.get_weights()
    weights += [values[0].reshape(layer.num_heads, layer.value_dim, -1), *values[1:]]
    reference.set_weights(weights)
    return reference


class TestAgainstKeras:
    @pytest.mark.parametrize("options", [{}, {"value_dim": 5}, {"use_bias": False}], ids=str)
    def test_self_attention_equals_keras(self, options):
        x = normal(2, 5, 8)
        layer = built(x.shape, **options)
        reference = copied_to_keras(layer, x.shape, x.shape)
        np.testing.assert_allclose(layer(x), reference(x, x), **CLOSE)

    @neutral
    def test_causal_self_attention_equals_keras(self):
        x = normal(2, 5, 8)
        layer = built(x.shape, relation="causal")
        reference = copied_to_keras(layer, x.shape, x.shape)
        np.testing.assert_allclose(layer(x), reference(x, x, use_causal_mask=True), **CLOSE)

    @pytest.mark.parametrize("options", [{}, {"value_dim": 5}], ids=str)
    def test_cross_attention_with_a_separate_key_and_mask_equals_keras(self, options):
        query, value, key = normal(2, 4, 8), normal(2, 6, 7), normal(2, 6, 5)
        shapes = query.shape, value.shape, key.shape
        layer = built(*shapes, **options)
        mask = RANDOM.random((2, 4, 6)) < 0.6
        mask[..., 0] = True  # for queries without keys, Keras averages over all
        reference = copied_to_keras(layer, *shapes)
        expected = reference(query, value, key, attention_mask=mask)
        np.testing.assert_allclose(layer(query, value, key, attention_mask=mask), expected, **CLOSE)

    def test_attention_weights_equal_keras(self):
        x = normal(2, 5, 8)
        layer = built(x.shape)
        _, expected = copied_to_keras(layer, x.shape, x.shape)(x, x, return_attention_scores=True)
        np.testing.assert_allclose(layer.attention_weights(x), expected, **CLOSE)


@pytest.mark.parametrize("heads", HEADS)
def test_self_attention_is_equivariant_under_permutations_and_causal_is_not(heads):
    x, order = normal(2, 5, 8), [3, 0, 4, 1, 2]
    layer = built(x.shape, **HEADS[heads])
    np.testing.assert_allclose(layer(x[:, order]), np.asarray(layer(x))[:, order], **CLOSE)
    layer.relation = relations.Causal()
    assert not np.allclose(layer(x[:, order]), np.asarray(layer(x))[:, order], **CLOSE)


def test_cross_attention_is_invariant_under_permutations_of_the_memory():
    query, memory = normal(2, 4, 8), normal(2, 5, 6)
    layer = built(query.shape, memory.shape)
    np.testing.assert_allclose(layer(query, memory[:, [4, 2, 0, 1, 3]]), layer(query, memory), **CLOSE)


def test_grouped_heads_equal_repeated_keys():
    x = normal(2, 5, 8)
    grouped = built(x.shape, num_kv_heads=2)
    whole = MultiHeadAttention(4, 3)
    whole.build(x.shape)
    for name in ("query", "output"):
        getattr(whole, f"{name}_projection").set_weights(getattr(grouped, f"{name}_projection").get_weights())
    for name in ("key", "value"):
        repeated = [
            np.repeat(weight.reshape(*weight.shape[:-1], 2, 3), 2, axis=-2).reshape(*weight.shape[:-1], 12)
            for weight in getattr(grouped, f"{name}_projection").get_weights()
        ]
        getattr(whole, f"{name}_projection").set_weights(repeated)
    np.testing.assert_allclose(grouped(x), whole(x), **CLOSE)


class TestMasks:
    def test_masks_of_three_and_four_axes_agree(self):
        x = normal(2, 4, 8)
        layer = built(x.shape)
        mask = RANDOM.random((2, 4, 4)) < 0.5
        expected = layer(x, attention_mask=mask)
        for same in (
            mask[:, None],
            np.repeat(mask[:, None], 4, axis=1),
            mask.astype("int32"),
            ops.cast(mask, "bool"),
        ):
            np.testing.assert_array_equal(layer(x, attention_mask=same), expected)
        np.testing.assert_array_equal(
            layer(x, attention_mask=mask[0])[0], layer(x[:1], attention_mask=mask[:1])[0]
        )

    def test_rows_of_padding_give_zeros(self):
        x = normal(2, 5, 8)
        layer = built(x.shape, use_bias=False)
        output = np.asarray(layer(x, padding_mask=np.array([[True] * 5, [False] * 5])))
        assert (output[1] == 0).all()
        assert output[0].any()

    def test_packed_segments_do_not_attend_to_each_other(self):
        a, b = normal(1, 3, 8), normal(1, 4, 8)
        layer = built(a.shape, relation="causal")
        packed = layer(np.concatenate([a, b], axis=1), segment_ids=np.array([[0] * 3 + [1] * 4], "int32"))
        np.testing.assert_allclose(packed[:, :3], layer(a), **CLOSE)
        np.testing.assert_allclose(packed[:, 3:], layer(b), **CLOSE)

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_causal_attention_compares_the_passed_positions(self, dtype):
        x, order = normal(2, 4, 8), np.array([2, 0, 3, 1])
        layer = built(x.shape, relation="causal")
        found = layer(x[:, order], positions=order.astype(dtype))
        np.testing.assert_allclose(found, np.asarray(layer(x))[:, order], **CLOSE)

    def test_attention_weights_reproduce_the_call(self):
        x = normal(2, 4, 8)
        layer = built(x.shape, use_bias=False, num_heads=1, num_kv_heads=1, relation="causal", value_dim=8)
        layer.value_projection.set_weights([np.eye(8, dtype="float32")])
        layer.output_projection.set_weights([np.eye(8, dtype="float32")])
        options = {
            "attention_mask": RANDOM.random((2, 4, 4)) < 0.7,
            "padding_mask": np.array([[True] * 4, [True, True, False, False]]),
            "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], "int32"),
            "positions": np.array([1, 0, 2, 3], "int32"),
        }
        weights = np.asarray(layer.attention_weights(x, **options))
        np.testing.assert_allclose(layer(x, **options), weights[:, 0] @ x, **CLOSE)


class TestSteps:
    @neutral
    def test_steps_under_xla_with_a_traced_cache_index_equal_eager_steps(self, modes):
        x = normal(2, 4, 8)
        layer = built(x.shape, relation="causal")
        expected = layer(x)

        def one(x, cache, cache_index, positions):
            return layer.step(x, cache, cache_index=cache_index, positions=positions)

        step = modes["xla"](one)
        cache = layer.empty_cache(2, 4)
        for t in range(4):
            cache_index = ops.convert_to_tensor(t, "int32")
            output, cache = step(
                ops.convert_to_tensor(x[:, t : t + 1]), cache, cache_index, ops.full((2, 1), t, "int32")
            )
            np.testing.assert_allclose(output[:, 0], expected[:, t], **CLOSE)

    def test_a_new_cache_is_empty_and_steps_do_not_modify_it(self):
        layer = built((2, 5, 8), relation="causal", num_kv_heads=2, value_dim=5)
        cache = layer.empty_cache(2, 6)
        assert {name: tuple(part.shape) for name, part in cache.items()} == {
            "key": (2 * 2, 6, 3),
            "value": (2 * 2, 6, 5),
            "positions": (2, 6),
        }
        assert (np.asarray(cache["positions"]) == -1).all()
        _, new = layer.step(normal(2, 1, 8), cache, cache_index=2, positions=np.array([[2], [2]]))
        assert (np.asarray(cache["positions"]) == -1).all()
        np.testing.assert_array_equal(new["positions"], [[-1, -1, 2, -1, -1, -1]] * 2)

    def test_unwritten_cache_entries_are_masked(self):
        x = normal(2, 3, 8)
        layer = built(x.shape, relation="causal")
        cache = layer.empty_cache(2, 9)
        dirty = {**cache, "key": cache["key"] + 50.0, "value": cache["value"] - 50.0}
        positions = np.broadcast_to(np.arange(3, dtype="int32"), (2, 3))
        clean, _ = layer.step(x, cache, cache_index=0, positions=positions)
        found, _ = layer.step(x, dirty, cache_index=0, positions=positions)
        np.testing.assert_array_equal(found, clean)


@pytest.mark.parametrize("heads", HEADS)
def test_attending_to_projected_memory_equals_cross_attention(heads):
    query, memory = normal(2, 4, 8), normal(2, 6, 7)
    layer = built(query.shape, memory.shape, value_dim=5, **HEADS[heads])
    mask = np.arange(6) < np.array([[6], [2]])
    projected = layer.project(memory)
    expected = layer(query, memory, padding_mask=mask)
    np.testing.assert_allclose(layer.attend(query, projected, mask), expected, **CLOSE)
    np.testing.assert_allclose(layer.attend(query[:, 2:3], projected, mask), expected[:, 2:3], **CLOSE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_and_caches_have_the_dtype_of_the_policy(dtype):
    if dtype == "float64" and keras.config.backend() == "jax":
        pytest.skip("JAX has float64 only where a global flag is set")
    layer = MultiHeadAttention(4, 3, dtype=dtype if dtype == "float64" else f"mixed_{dtype}")
    x = ops.cast(normal(2, 5, 8), dtype)
    assert keras.backend.standardize_dtype(layer(x).dtype) == dtype
    assert keras.backend.standardize_dtype(layer.attention_weights(x).dtype) in ("float32", dtype)
    assert keras.backend.standardize_dtype(layer.empty_cache(1, 2)["key"].dtype) == dtype


@pytest.mark.parametrize(
    "score",
    [
        "exponential",
        *(pytest.param(name, marks=neutral) for name in ("cosine", "rbf", "polynomial", "linear")),
    ],
)
def test_with_one_projection_of_queries_and_keys_attention_is_a_reversible_markov_chain(score):
    """A symmetric κ gives weights whose product along a cycle is the same in both directions (Kolmogorov)."""
    x = normal(2, 4, 8)
    for shared in (True, False):
        weights = np.asarray(built(x.shape, score=score, shared_query_key=shared).attention_weights(x))
        there = weights[..., 0, 1] * weights[..., 1, 2] * weights[..., 2, 0]
        back = weights[..., 0, 2] * weights[..., 2, 1] * weights[..., 1, 0]
        assert np.allclose(there, back, rtol=1e-3, atol=0) == shared


def test_a_shared_projection_is_one_weight_that_is_saved_and_adapted_once(tmp_path):
    x = keras.Input((5, 8))
    model = keras.Model(x, MultiHeadAttention(4, 3, shared_query_key=True)(x))
    layer = randomise(model.layers[-1])
    assert layer.query_projection is layer.key_projection
    assert layer.count_params() == 2 * (8 * 12 + 12) + 12 * 8 + 8
    inputs = normal(2, 5, 8)
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(inputs), expected)
    layer.enable_lora(2)
    np.testing.assert_allclose(model(inputs), expected, **CLOSE)
    assert len(layer.trainable_weights) == 6
