"""Multi-head attention with every position encoding, score, kernel and relation, and its cache."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.layers import ALiBi, MultiHeadAttention, RelativeBias
from keras_transformer.ops import (
    GrowingCache,
    RollingCache,
    StaticCache,
    scores,
)
from keras_transformer.relations import Adjacency, Causal, Dilated, SlidingWindow, Strided

from .block_makers import decoder_block, encoder_block

neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LENGTH = 9
VARIANTS = {
    "rotary": {"position_encoding": "rotary"},
    "alibi": {"position_encoding": "alibi"},
    "relative bias": {"position_encoding": "relative_bias"},
    "causal buckets": {"position_encoding": RelativeBias(4, 8, 6, bidirectional=False)},
    "cosine": {"score": "cosine"},
    "soft cap": {"score": scores.ScaledDotProduct(soft_cap=2.0)},
    "rbf": {"score": "rbf"},
    "polynomial": {"score": "polynomial"},
    "linear": {"score": "linear"},
    "additive": {"score": "additive"},
    "bilinear": {"score": "bilinear"},
    "gat": {"score": "gat"},
    "gatv2": {"score": "gatv2"},
    "grouped, rotary": {"position_encoding": "rotary", "num_kv_heads": 2},
    "multi-query, alibi, cosine": {"position_encoding": "alibi", "num_kv_heads": 1, "score": "cosine"},
    "gat, relative bias": {"position_encoding": "relative_bias", "score": "gat", "value_dim": 5},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
some_variants = pytest.mark.parametrize(
    "options", [pytest.param(VARIANTS[name], id=name) for name in ("grouped, rotary", "gat, relative bias")]
)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


X = normal(2, LENGTH, 16)


def make(seed=1, **options):
    """A layer with weights, biases too, for which no law holds by luck."""
    config = {"num_heads": 4, "key_dim": 4, **options}
    layer = MultiHeadAttention(**MultiHeadAttention(**config).get_config())
    layer.build(X.shape)
    for place, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(*weight.shape, seed=seed + place) * 0.5)
    return layer


@pytest.mark.slow_variants
@variants
def test_causal_steps_equal_one_call(options):
    layer = make(relation="causal", **options)
    expected = layer(X)
    for kv_cache, room in ((StaticCache(), LENGTH), (GrowingCache(rolling=False), 0)):
        cache = layer.empty_cache(2, room, kv_cache=kv_cache)
        outputs = []
        for start, end in ((0, 4), (4, 5), (5, 9)):
            positions = np.broadcast_to(np.arange(start, end), (2, end - start))
            output, cache = layer.step(
                X[:, start:end], cache, cache_index=start, positions=positions, kv_cache=kv_cache
            )
            outputs.append(output)
        np.testing.assert_allclose(ops.concatenate(outputs, axis=1), expected, **CLOSE)


@pytest.mark.slow_variants
@variants
def test_every_kernel_gives_the_same_output(options):
    relation = SlidingWindow(3)
    expected = make(relation=relation, kernel="dense", **options)(X)
    for kernel in ("auto", "chunked", "banded"):
        np.testing.assert_allclose(make(relation=relation, kernel=kernel, **options)(X), expected, **CLOSE)


@pytest.mark.slow_variants
@variants
def test_the_config_makes_the_same_layer(options):
    layer = make(relation=Strided(2), kernel="chunked", **options)
    config = layer.get_config()
    again = MultiHeadAttention.from_config(config)
    assert again.get_config() == config
    again.build(X.shape)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(X), layer(X))


@pytest.mark.slow_variants
@some_variants
@neutral
def test_a_saved_model_of_blocks_gives_the_same_output(options, tmp_path):
    inputs, memory = keras.Input((LENGTH, 16)), keras.Input((5, 16))
    hidden = encoder_block(4, 32, SlidingWindow(2), norm="rms", **options)(inputs)
    hidden = decoder_block(4, 32, activation="swiglu", **options)(hidden, memory)
    model = keras.Model([inputs, memory], hidden)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [w.path.split("/")[-1] for w in again.weights] == [w.path.split("/")[-1] for w in model.weights]
    arrays = [X, normal(2, 5, 16)]
    np.testing.assert_array_equal(again(arrays), model(arrays))


@pytest.mark.slow_variants
@some_variants
@neutral
def test_a_block_steps_as_it_is_called(options):
    block = decoder_block(4, 32, SlidingWindow(3), **options)
    memory = normal(2, 5, 16)
    expected = block(X, memory)
    cache = block.self_attention.empty_cache(2, LENGTH)
    projected = block.cross_attention.project(memory)
    outputs = []
    for i in range(LENGTH):
        output, cache = block.step(
            X[:, i : i + 1], cache, projected, cache_index=i, positions=np.full((2, 1), i)
        )
        outputs.append(output)
    np.testing.assert_allclose(ops.concatenate(outputs, axis=1), expected, **CLOSE)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "relation", [SlidingWindow(3), Dilated(2, 2), SlidingWindow(4) & Strided(2)], ids=repr
)
@pytest.mark.parametrize("pieces", [(1,) * 9, (4, 1, 4), (9,), (2, 6, 1)], ids=str)
@pytest.mark.parametrize("kv_cache", [StaticCache(), StaticCache(in_place=False), GrowingCache()])
def test_a_window_needs_a_cache_of_its_own_size(relation, pieces, kv_cache):
    layer = make(relation=relation, position_encoding="rotary", num_kv_heads=2)
    padding = np.ones((2, LENGTH), bool)
    padding[1, :3] = False
    positions = np.cumsum(padding, axis=1) - 1
    expected = layer(X, padding_mask=padding, positions=positions)
    cache = layer.empty_cache(2, 100, kv_cache=kv_cache)
    window = relation.bandwidth()[0]
    assert cache["key"].shape[-2] == window + 1
    outputs, start = [], 0
    for piece in pieces:
        end = start + piece
        output, cache = layer.step(
            X[:, start:end],
            cache,
            cache_index=start,
            positions=positions[:, start:end],
            padding_mask=padding[:, start:end],
            kv_cache=kv_cache,
        )
        outputs.append(output)
        start = end
    assert cache["key"].shape[-2] == window + 1
    found = ops.convert_to_numpy(ops.concatenate(outputs, axis=1))
    np.testing.assert_allclose(found[padding], ops.convert_to_numpy(expected)[padding], **CLOSE)


@neutral
@pytest.mark.parametrize("in_place", [True, False], ids="in_place={}".format)
def test_rolling_keeps_the_last_entries(in_place):
    state = {"positions": np.zeros((1, 4), "float32")}
    for start, end in ((0, 2), (2, 3), (3, 9), (9, 10), (10, 14)):
        new = {"positions": np.arange(start, end, dtype="float32")[None] + 1}
        _, state = RollingCache(in_place).write(state, new, start)
        expected = np.zeros(4)
        for token in range(end):
            expected[token % 4] = token + 1
        np.testing.assert_array_equal(state["positions"][0], expected)


@neutral
def test_edges_and_adjacency_are_one_relation():
    pairs = [(i, (3 * i + 1) % LENGTH) for i in range(LENGTH)] + [(2, 4), (5, 4)]
    edges = np.array([pairs, pairs], "int32")
    fixed = make(relation=Adjacency(pairs, LENGTH))
    given = make()
    np.testing.assert_allclose(given(X, edges=edges), fixed(X), **CLOSE)
    np.testing.assert_allclose(given.attention_weights(X, edges=edges), fixed.attention_weights(X), **CLOSE)


@pytest.mark.parametrize("name", ["rotary", "alibi", "relative_bias"])
def test_cross_attention_by_single_queries_uses_their_positions(name):
    layer, memory = make(position_encoding=name), normal(2, 5, 16)
    expected = layer(X, memory)
    projected = layer.project(memory)
    found = [layer.attend(X[:, i : i + 1], projected, positions=np.array([i])) for i in range(LENGTH)]
    np.testing.assert_allclose(ops.concatenate(found, axis=1), expected, **CLOSE)


@pytest.mark.parametrize("name", ["rotary", "alibi", "relative_bias"])
def test_moving_all_positions_changes_nothing(name):
    layer = make(position_encoding=name, relation=Causal())
    moved = layer(X, positions=np.arange(LENGTH) + 40)
    np.testing.assert_allclose(moved, layer(X), **CLOSE)
    stretched = layer(X, positions=np.arange(LENGTH) * 3)
    assert np.abs(np.asarray(stretched) - np.asarray(layer(X))).max() > 1e-3


@pytest.mark.parametrize("score", ["additive", "bilinear", "gat", "gatv2"])
@neutral
def test_the_weights_of_a_score_are_trained(score, gradients):
    layer = make(score=score)
    own = layer.score.trainable_weights
    assert own
    values = [ops.convert_to_numpy(weight) for weight in layer.trainable_variables]

    def loss(*tensors):
        if keras.config.backend() == "jax":
            output, _ = layer.stateless_call(tensors, layer.non_trainable_variables, X)
            return ops.sum(output[..., 0])
        return None

    if keras.config.backend() == "jax":
        found = dict(zip([w.path for w in layer.trainable_weights], gradients(loss, *values), strict=True))
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = ops.sum(layer(X)[..., 0])
        by_weight = tape.gradient(total, layer.trainable_variables)
        found = dict(zip([w.path for w in layer.trainable_weights], by_weight, strict=True))
    for weight in own:
        assert np.abs(np.asarray(found[weight.path])).max() > 1e-5


@pytest.mark.slow_variants
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@variants
def test_mixed_precision_stays_finite_where_a_row_is_padding(options, policy):
    layer = MultiHeadAttention(4, 4, relation="causal", dtype=policy, **options)
    padding = np.ones((2, LENGTH), bool)
    padding[1] = False
    output = layer(X, padding_mask=padding)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert np.isfinite(np.asarray(ops.cast(output, "float32"))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"position_encoding": "rotari"},
            "`position_encoding` must be .*Received: position_encoding='rotari'",
        ),
        ({"position_encoding": layers.SinusoidalPositions()}, "added to the inputs.*Received"),
        ({"position_encoding": ALiBi(3)}, "`position_encoding` must have as many heads.*num_heads=3"),
        ({"score": "scaled"}, "`score` must be .*Received: score='scaled'"),
        ({"kernel": "flash"}, "`kernel` must be .*Received: kernel='flash'"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(4, 4, **options)


def test_a_kernel_that_cannot_says_why():
    with pytest.raises(
        ValueError, match="`kernel` cannot be 'banded' where the relation has no finite bandwidth"
    ):
        make(kernel="banded")(X)
