import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import relations
from keras_transformer.layers import MultiHeadAttention, TokenEmbedding
from keras_transformer.ops import GrowingCache, StaticCache

# On JAX every new shape compiles for seconds: one case of each law runs there.
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


def randomise(layer):
    """Give every weight, biases too, a value that no law holds for by luck."""
    layer.set_weights([normal(*weight.shape) * 0.5 for weight in layer.weights])
    return layer


def built(*shapes, **options):
    layer = MultiHeadAttention(**{"num_heads": 4, "key_dim": 3, **options})
    layer.build(*shapes)
    return randomise(layer)


def copied_to_keras(layer, *shapes):
    """`keras.layers.MultiHeadAttention`, a reference that nobody here wrote, with our layer's weights."""
    theirs = keras.layers.MultiHeadAttention(
        layer.num_heads, layer.key_dim, layer.value_dim, use_bias=layer.use_bias
    )
    theirs.build(*shapes)
    weights = []
    sizes = {"query": layer.key_dim, "key": layer.key_dim, "value": layer.value_dim}
    for name, size in sizes.items():
        ours = getattr(layer, f"{name}_projection").get_weights()
        weights.append(ours[0].reshape(-1, layer.num_heads, size))
        weights += [bias.reshape(layer.num_heads, size) for bias in ours[1:]]
    ours = layer.output_projection.get_weights()
    weights += [ours[0].reshape(layer.num_heads, layer.value_dim, -1), *ours[1:]]
    theirs.set_weights(weights)
    return theirs


class TestAgainstKeras:
    @pytest.mark.parametrize("options", [{}, {"value_dim": 5}, {"use_bias": False}], ids=str)
    def test_self_attention_is_the_same(self, options):
        x = normal(2, 5, 8)
        layer = built(x.shape, **options)
        theirs = copied_to_keras(layer, x.shape, x.shape)
        np.testing.assert_allclose(layer(x), theirs(x, x), **CLOSE)

    @neutral
    def test_causal_self_attention_is_the_same(self):
        x = normal(2, 5, 8)
        layer = built(x.shape, relation="causal")
        theirs = copied_to_keras(layer, x.shape, x.shape)
        np.testing.assert_allclose(layer(x), theirs(x, x, use_causal_mask=True), **CLOSE)

    @pytest.mark.parametrize("options", [{}, {"value_dim": 5}], ids=str)
    def test_cross_attention_with_its_own_key_and_a_mask_is_the_same(self, options):
        query, value, key = normal(2, 4, 8), normal(2, 6, 7), normal(2, 6, 5)
        shapes = query.shape, value.shape, key.shape
        layer = built(*shapes, **options)
        mask = RANDOM.random((2, 4, 6)) < 0.6
        mask[..., 0] = True  # where nothing is related, theirs averages over all
        theirs = copied_to_keras(layer, *shapes)
        expected = theirs(query, value, key, attention_mask=mask)
        np.testing.assert_allclose(layer(query, value, key, attention_mask=mask), expected, **CLOSE)

    def test_weights_are_the_same(self):
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


def test_heads_share_keys_as_if_the_keys_were_repeated():
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
    def test_of_three_and_four_axes_agree(self):
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

    def test_padding_changes_nothing_at_other_positions(self):
        x = normal(2, 5, 8)
        layer = built(x.shape)
        padded = np.concatenate([x, normal(2, 3, 8) * 100], axis=1)
        mask = np.arange(8) < 5
        found = layer(padded, padding_mask=np.stack([mask, mask]))
        np.testing.assert_allclose(found[:, :5], layer(x), **CLOSE)

    def test_a_row_of_padding_attends_to_nothing(self):
        x = normal(2, 5, 8)
        layer = built(x.shape, use_bias=False)
        output = np.asarray(layer(x, padding_mask=np.array([[True] * 5, [False] * 5])))
        assert (output[1] == 0).all()
        assert output[0].any()

    def test_packed_segments_do_not_see_each_other(self):
        a, b = normal(1, 3, 8), normal(1, 4, 8)
        layer = built(a.shape, relation="causal")
        packed = layer(np.concatenate([a, b], axis=1), segment_ids=np.array([[0] * 3 + [1] * 4], "int32"))
        np.testing.assert_allclose(packed[:, :3], layer(a), **CLOSE)
        np.testing.assert_allclose(packed[:, 3:], layer(b), **CLOSE)

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_causal_attention_follows_given_positions(self, dtype):
        x, order = normal(2, 4, 8), np.array([2, 0, 3, 1])
        layer = built(x.shape, relation="causal")
        found = layer(x[:, order], positions=order.astype(dtype))
        np.testing.assert_allclose(found, np.asarray(layer(x))[:, order], **CLOSE)

    def test_weights_and_call_see_the_same(self):
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


class TestKerasMasks:
    """What `Embedding(mask_zero=True)` and `TokenEmbedding` attach to their output."""

    ids = np.array([[4, 5, 6, 0, 0], [7, 0, 0, 0, 0]])

    def embedded(self, kind):
        if kind == "keras":
            return keras.layers.Embedding(10, 8, mask_zero=True)(self.ids)
        return TokenEmbedding(10, 8)(self.ids)

    @pytest.mark.parametrize("kind", ["keras", "ours"])
    def test_of_the_input_is_the_padding_mask(self, kind):
        x = self.embedded(kind)
        layer = built(x.shape)
        bare = np.asarray(x)
        expected = layer(bare, padding_mask=self.ids != 0)
        np.testing.assert_array_equal(layer(x), expected)
        assert not np.allclose(layer(bare), expected)

    def test_and_a_given_padding_mask_hide_together(self):
        x = self.embedded("ours")
        layer = built(x.shape)
        given = np.array([[False, True, True, True, True]] * 2)
        expected = layer(np.asarray(x), padding_mask=given & (self.ids != 0))
        np.testing.assert_array_equal(layer(x, padding_mask=given), expected)

    @neutral
    def test_of_the_memory_hides_keys_and_that_of_the_query_does_not(self):
        x, other = self.embedded("keras"), normal(2, 3, 8)
        layer = built(x.shape, other.shape)
        bare = np.asarray(x)
        np.testing.assert_array_equal(layer(other, x), layer(other, bare, padding_mask=self.ids != 0))
        np.testing.assert_array_equal(layer(x, other), layer(bare, other))

    @pytest.mark.parametrize("calls", [1, 2])
    def test_are_passed_to_the_next_layer(self, calls):
        x = self.embedded("keras")
        hidden = x
        for _ in range(calls):
            layer = built(x.shape)
            hidden = layer(hidden)
        following = built(x.shape)
        expected = following(np.asarray(hidden), padding_mask=self.ids != 0)
        np.testing.assert_array_equal(following(hidden), expected)

    def test_of_the_query_is_that_of_the_cross_attentions_output(self):
        x, other = self.embedded("keras"), normal(2, 3, 8)
        hidden = built(x.shape, other.shape)(x, other)
        following = built(x.shape)
        expected = following(np.asarray(hidden), padding_mask=self.ids != 0)
        np.testing.assert_array_equal(following(hidden), expected)


def run_steps(layer, x, lengths, kv_cache, cache_length, positions=None, padding_mask=None):
    """The outputs of `step` over `lengths` tokens at a time."""
    cache = layer.empty_cache(len(x), cache_length, kv_cache=kv_cache)
    positions = (
        np.broadcast_to(np.arange(x.shape[1], dtype="int32"), x.shape[:2]) if positions is None else positions
    )
    outputs, cache_index = [], 0
    for length in lengths:
        now = slice(cache_index, cache_index + length)
        output, cache = layer.step(
            x[:, now],
            cache,
            cache_index=cache_index,
            positions=positions[:, now],
            padding_mask=None if padding_mask is None else padding_mask[:, now],
            kv_cache=kv_cache,
        )
        outputs.append(output)
        cache_index += length
    return np.concatenate(outputs, axis=1)


class TestSteps:
    @pytest.mark.slow_variants
    @pytest.mark.parametrize("heads", HEADS)
    @pytest.mark.parametrize(
        ("kv_cache", "lengths", "room"),
        [
            (StaticCache(), (1,) * 5, 5),
            (StaticCache(), (3, 1, 1), 5),
            (StaticCache(), (5,), 5),
            (StaticCache(), (2, 3), 9),
            (StaticCache(in_place=False), (1,) * 5, 5),
            (StaticCache(in_place=False), (1,) * 5, 8),
            (GrowingCache(rolling=False), (1,) * 5, 0),
            (GrowingCache(rolling=False), (3, 1, 1), 0),
        ],
        ids=str,
    )
    def test_one_by_one_or_several_at_a_time_equal_one_causal_call(self, heads, kv_cache, lengths, room):
        x = normal(2, 5, 8)
        layer = built(x.shape, relation="causal", value_dim=2, **HEADS[heads])
        np.testing.assert_allclose(run_steps(layer, x, lengths, kv_cache, room), layer(x), **CLOSE)

    @pytest.mark.parametrize(
        ("kv_cache", "room"),
        [(StaticCache(), 7), (GrowingCache(rolling=False), 0)],
        ids=["static", "growing"],
    )
    @pytest.mark.parametrize("before", ["clipped", "negative"])
    def test_prompts_padded_on_the_left_equal_their_unpadded_rows(self, kv_cache, room, before):
        lengths = (5, 3, 1)
        rows = [normal(1, length + 2, 8) for length in lengths]  # two tokens follow each prompt
        layer = built(rows[0].shape, relation="causal", num_kv_heads=2)
        padded = np.concatenate(
            [np.concatenate([normal(1, 7 - row.shape[1], 8), row], axis=1) for row in rows]
        )
        shift = np.array([[5 - length] for length in lengths])
        positions = (np.arange(7) - shift).astype("int32")
        padding_mask = positions >= 0
        if before == "clipped":
            positions = np.maximum(positions, 0)
        found = run_steps(layer, padded, (5, 1, 1), kv_cache, room, positions, padding_mask)
        for output, row in zip(found, rows, strict=True):
            np.testing.assert_allclose(output[-row.shape[1] :], layer(row)[0], **CLOSE)

    @neutral
    def test_steps_under_xla_with_a_traced_cache_index_are_equal(self, modes):
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

    def test_the_cache_is_empty_at_first_and_left_as_it_was(self):
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
def test_projecting_once_and_attending_equals_the_cross_call(heads):
    query, memory = normal(2, 4, 8), normal(2, 6, 7)
    layer = built(query.shape, memory.shape, value_dim=5, **HEADS[heads])
    mask = np.arange(6) < np.array([[6], [2]])
    projected = layer.project(memory)
    expected = layer(query, memory, padding_mask=mask)
    np.testing.assert_allclose(layer.attend(query, projected, mask), expected, **CLOSE)
    np.testing.assert_allclose(layer.attend(query[:, 2:3], projected, mask), expected[:, 2:3], **CLOSE)


class TestDropout:
    def test_only_while_training(self):
        x = normal(2, 5, 8)
        layer = built(x.shape, dropout=0.5, seed=3)
        np.testing.assert_array_equal(layer(x), layer(x, training=False))
        first = np.asarray(layer(x, training=True))
        assert not np.allclose(first, layer(x))
        assert not np.allclose(first, layer(x, training=True))

    @neutral
    def test_one_seed_gives_one_sequence_of_patterns(self):
        x = normal(2, 5, 8)
        weights = built(x.shape).get_weights()
        outputs = []
        for _ in range(2):
            layer = built(x.shape, dropout=0.5, seed=3)
            layer.set_weights(weights)
            outputs.append([np.asarray(layer(x, training=True)) for _ in range(3)])
        np.testing.assert_array_equal(*outputs)


CONFIGS = [
    {"num_heads": 4, "key_dim": 3},
    {
        "num_heads": 4,
        "key_dim": 3,
        "value_dim": 2,
        "num_kv_heads": 2,
        "relation": relations.Causal() & ~relations.Full(),
        "dropout": 0.2,
        "use_bias": False,
        "seed": 5,
        "name": "attention",
        "dtype": "mixed_bfloat16",
    },
]


@pytest.mark.parametrize("arguments", CONFIGS, ids=["defaults", "everything"])
@neutral
def test_config_round_trip_is_the_identity(arguments):
    layer = MultiHeadAttention(**arguments)
    config = layer.get_config()
    again = MultiHeadAttention.from_config(config)
    assert again.get_config() == config
    assert again.relation == layer.relation
    serialised = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(serialised).get_config() == config
    for name, value in arguments.items():
        if name not in ("dtype", "relation"):
            assert config[name] == value


def test_a_functional_model_saves_and_reloads_equal(tmp_path):
    ids, memory = keras.Input((6,), dtype="int32"), keras.Input((5, 7))
    padding = keras.Input((5,), dtype="bool")
    hidden = TokenEmbedding(10, 8)(ids)
    hidden = MultiHeadAttention(4, 3, num_kv_heads=2, relation="causal", dropout=0.1)(hidden)
    hidden = MultiHeadAttention(2, 4, name="cross")(hidden, memory, padding_mask=padding)
    model = randomise_model(keras.Model([ids, memory, padding], hidden))
    inputs = [np.array([[4, 5, 6, 7, 0, 0]] * 2), normal(2, 5, 7), np.arange(5) < np.array([[5], [3]])]
    expected = model(inputs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(again(inputs), expected, rtol=1e-6, atol=1e-6)
    assert again.get_layer("cross").get_config() == model.get_layer("cross").get_config()


def randomise_model(model):
    for weight in model.trainable_weights:
        weight.assign(normal(*weight.shape) * 0.3)
    return model


@pytest.mark.parametrize(
    ("policy", "output", "weights"),
    [
        ("mixed_float16", "float16", "float32"),
        ("mixed_bfloat16", "bfloat16", "float32"),
        ("float64", "float64", "float64"),
    ],
)
def test_dtype_policies_hold_and_padded_rows_stay_finite(policy, output, weights):
    if policy == "float64" and keras.config.backend() == "jax":
        pytest.skip("JAX has float64 only where a global flag is set")
    layer = MultiHeadAttention(4, 3, num_kv_heads=2, relation="causal", dropout=0.5, dtype=policy)
    x = normal(2, 5, 8)
    found = layer(x, padding_mask=np.array([[True] * 5, [False] * 5]), training=True)
    assert keras.backend.standardize_dtype(found.dtype) == output
    assert {weight.dtype for weight in layer.trainable_weights} == {weights}
    assert np.isfinite(np.asarray(ops.cast(found, "float32"))).all()
    assert keras.backend.standardize_dtype(layer.attention_weights(ops.cast(x, output)).dtype) in (
        "float32",
        output,
    )
    assert keras.backend.standardize_dtype(layer.empty_cache(1, 2)["key"].dtype) == output


@neutral
def test_every_mode_gives_the_same(modes):
    x = normal(2, 5, 8)
    layer = built(x.shape, relation="causal", num_kv_heads=2)
    mask = ops.convert_to_tensor(np.arange(5) < np.array([[5], [2]]))
    for name, wrap in modes.items():
        found = wrap(lambda x, mask: layer(x, padding_mask=mask))(ops.convert_to_tensor(x), mask)
        np.testing.assert_allclose(found, layer(x, padding_mask=mask), **CLOSE, err_msg=name)


@pytest.mark.parametrize("length", [0, 1])
def test_an_empty_batch_and_a_single_token(length):
    layer = built((None, None, 8), relation="causal", num_kv_heads=2)
    assert layer(normal(length, 3, 8)).shape == (length, 3, 8)
    assert layer(normal(2, 1, 8)).shape == (2, 1, 8)


def test_output_shape_is_the_querys_in_functional_models():
    query, memory = keras.Input((None, 8)), keras.Input((6, 7))
    assert MultiHeadAttention(2, 4)(query).shape == (None, None, 8)
    assert MultiHeadAttention(2, 4)(query, memory).shape == (None, None, 8)
    assert MultiHeadAttention(2, 4)(query, value=memory, key=memory).shape == (None, None, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "`num_heads` must be a positive integer. Received: num_heads=0"),
        ({"key_dim": -1}, "`key_dim` must be a positive integer. Received: key_dim=-1"),
        ({"value_dim": 0}, "`value_dim` must be a positive integer. Received: value_dim=0"),
        ({"num_kv_heads": 0}, "`num_kv_heads` must be a positive integer. Received: num_kv_heads=0"),
        ({"num_kv_heads": 3}, "`num_kv_heads` must divide `num_heads`.*num_heads=4, num_kv_heads=3"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\). Received: dropout=1.0"),
        ({"relation": "cause"}, "`relation` must be .*Received: relation='cause'"),
    ],
    ids=str,
)
@neutral
def test_errors_name_the_argument_and_its_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"num_heads": 4, "key_dim": 3, **arguments})


@pytest.mark.parametrize("name", ["positions", "segment_ids"])
def test_self_attention_arguments_are_refused_with_a_value(name):
    x = np.zeros((1, 3, 8), "float32")
    with pytest.raises(ValueError, match=f"`{name}` must be None if `value` is given"):
        MultiHeadAttention(2, 4)(x, x, **{name: np.zeros((1, 3), "int32")})
