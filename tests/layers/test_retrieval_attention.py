import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import AdditiveScore, MultiHeadAttention, RetrievalAttention

# On JAX every new shape compiles for seconds: one case of each law runs there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SHAPES = (2, 3, 8), (2, 11, 7)


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def inputs():
    """Queries (B, T, D) and a memory (B, S, D')."""
    return tuple(normal(*shape) for shape in SHAPES)


def built(k=4, kind=RetrievalAttention, weights=None, **options):
    options = {"num_heads": 4, "key_dim": 3, **({"k": k} if kind is RetrievalAttention else {}), **options}
    layer = kind(**options)
    layer.build(*SHAPES)
    for weight, value in zip(
        layer.trainable_weights,
        weights or [normal(*weight.shape) * 0.5 for weight in layer.trainable_weights],
        strict=True,
    ):
        weight.assign(value)
    return layer


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=neutral),
        {"num_kv_heads": 2, "value_dim": 5},
        {"score": "additive"},
        {"dropout": 0.3, "seed": 1},
    ],
    ids=str,
)
def test_with_k_as_large_as_the_memory_it_is_cross_attention(options):
    (query, memory), mask = inputs(), np.arange(11) < np.array([[11], [4]])
    theirs = built(kind=MultiHeadAttention, **options)
    ours = built(11, weights=theirs.trainable_weights, **options)
    training = "dropout" in options
    np.testing.assert_array_equal(
        ours(query, memory, padding_mask=mask, training=training),
        theirs(query, memory, padding_mask=mask, training=training),
    )


def test_a_trained_cross_attention_gives_its_weights():
    theirs = built(kind=MultiHeadAttention)
    ours = built()
    ours.set_weights(theirs.get_weights())
    assert [w.path.split("/")[-2:] for w in ours.weights] == [w.path.split("/")[-2:] for w in theirs.weights]
    query, memory = inputs()
    memory = memory[:, :4]
    np.testing.assert_array_equal(ours(query, memory), theirs(query, memory))


def test_heads_and_queries_see_k_keys_each_and_no_others():
    """A token that changes moves the output of those queries of which some head has chosen it."""
    (query, memory), layer = inputs(), built(2)
    weights = np.asarray(
        built(kind=MultiHeadAttention, weights=layer.trainable_weights).attention_weights(query, memory)
    )
    chosen = np.sort(np.argsort(-weights, axis=-1)[..., :2], axis=-1)  # (B, N, T, 2)
    expected = np.asarray(layer(query, memory))
    for b in range(2):
        for j in range(11):
            changed = memory.copy()
            changed[b, j] *= 1.001
            moved = (np.asarray(layer(query, changed))[b] != expected[b]).any(-1)
            np.testing.assert_array_equal(moved, (chosen[b] == j).any((0, 2)))


class TestSymmetries:
    def test_invariant_under_permutations_of_the_memory(self):
        (query, memory), layer = inputs(), built()
        mask, order = np.arange(11) < np.array([[11], [4]]), RANDOM.permutation(11)
        found = layer(query, memory[:, order], padding_mask=mask[:, order])
        np.testing.assert_allclose(found, layer(query, memory, padding_mask=mask), **CLOSE)

    def test_equivariant_under_permutations_of_the_queries(self):
        (query, memory), layer = inputs(), built()
        found = layer(query[:, [2, 0, 1]], memory)
        np.testing.assert_allclose(found, np.asarray(layer(query, memory))[:, [2, 0, 1]], **CLOSE)


class TestPadding:
    def test_is_never_chosen(self):
        (query, memory), layer = inputs(), built()
        longer = np.concatenate([memory, normal(2, 6, 7) * 50], axis=1)
        mask = np.stack([np.arange(17) < 11] * 2)
        np.testing.assert_allclose(layer(query, longer, padding_mask=mask), layer(query, memory), **CLOSE)

    def test_everywhere_leaves_the_bias_of_the_output(self):
        (query, memory), layer = inputs(), built()
        found = layer(query, memory, padding_mask=np.zeros((2, 11), bool))
        np.testing.assert_array_equal(
            found, np.broadcast_to(layer.attention.output_projection.bias, found.shape)
        )

    def test_of_keras_hides_keys_and_that_of_the_query_is_passed_on(self):
        ids = np.array([[4, 5, 6, 7, 3, 0, 0], [7, 0, 0, 0, 0, 0, 0]])
        embedded, layer = keras.layers.Embedding(10, 8, mask_zero=True)(ids), RetrievalAttention(2, 3, 2)
        bare, other = np.asarray(embedded), normal(2, 3, 8)
        np.testing.assert_array_equal(layer(other, embedded), layer(other, bare, padding_mask=ids != 0))
        both = layer(other, embedded, padding_mask=np.arange(7) != np.array([[1], [5]]))
        mask = (ids != 0) & (np.arange(7) != np.array([[1], [5]]))
        np.testing.assert_array_equal(both, layer(other, bare, padding_mask=mask))
        np.testing.assert_array_equal(layer(embedded, other), layer(bare, other))
        passed_on = keras.layers.GlobalAveragePooling1D()
        np.testing.assert_allclose(
            passed_on(layer(embedded, other)), passed_on(layer(bare, other), mask=ids != 0), **CLOSE
        )


def test_projecting_once_and_attending_equals_the_call():
    (query, memory), layer = inputs(), built(num_kv_heads=2, value_dim=5)
    mask = np.arange(11) < np.array([[11], [4]])
    projected, expected = layer.project(memory), np.asarray(layer(query, memory, padding_mask=mask))
    np.testing.assert_allclose(layer.attend(query, projected, mask), expected, **CLOSE)
    np.testing.assert_allclose(layer.attend(query[:, 1:2], projected, mask), expected[:, 1:2], **CLOSE)


def test_dropout_only_while_training_and_reproducible():
    query, memory = inputs()
    weights = built().get_weights()
    outputs = []
    for _ in range(2):
        layer = built(weights=weights, dropout=0.5, seed=3)
        np.testing.assert_array_equal(layer(query, memory), layer(query, memory, training=False))
        outputs.append([np.asarray(layer(query, memory, training=True)) for _ in range(2)])
        assert not np.allclose(*outputs[-1])
    np.testing.assert_array_equal(*outputs)


@neutral
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_every_mode_agrees(modes, mode):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    (query, memory), layer = inputs(), built()
    arguments = ops.convert_to_tensor(query), ops.convert_to_tensor(memory)
    np.testing.assert_allclose(modes[mode](lambda *x: layer(*x))(*arguments), layer(query, memory), **CLOSE)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_low_precision_is_finite(policy):
    (query, memory), layer = inputs(), built(dtype=policy)
    output = layer(query * 10, memory * 10, padding_mask=np.arange(11) < np.array([[11], [0]]))
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    assert np.isfinite(np.asarray(ops.cast(output, "float32"))).all()


@pytest.mark.slow
def test_a_functional_model_of_unknown_lengths_trains_saves_and_reloads_equal(tmp_path):
    query, memory = keras.Input((None, 8)), keras.Input((None, 7))
    padding = keras.Input((None,), dtype="bool")
    hidden = RetrievalAttention(2, 3, 4, dropout=0.1, score="bilinear", name="retrieval")(
        query, memory, padding_mask=padding
    )
    assert hidden.shape == (None, None, 8)
    model = keras.Model([query, memory, padding], hidden)
    model.compile("sgd", "mse")
    arrays = [*inputs(), np.arange(11) < np.array([[11], [3]])]
    before = model.get_weights()
    model.fit(arrays, normal(*SHAPES[0]), epochs=1, verbose=0)
    # A bias of the keys moves all scores of a query alike, but for rounding.
    changed = [not np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True)]
    assert sum(changed) >= len(changed) - 1
    assert model([arrays[0], arrays[1][:, :2], arrays[2][:, :2]]).shape == (2, 3, 8)  # fewer keys than k
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(again(arrays), model(arrays))
    assert again.get_layer("retrieval").get_config() == model.get_layer("retrieval").get_config()


CONFIGS = [
    {"num_heads": 4, "key_dim": 3, "k": 5},
    {
        "num_heads": 4,
        "key_dim": 3,
        "k": 5,
        "value_dim": 2,
        "num_kv_heads": 2,
        "score": AdditiveScore(name="mine"),
        "dropout": 0.2,
        "use_bias": False,
        "seed": 5,
        "name": "retrieval",
        "dtype": "mixed_bfloat16",
    },
]


@pytest.mark.parametrize("arguments", CONFIGS, ids=["defaults", "everything"])
def test_config_round_trip_is_the_identity(arguments):
    layer = RetrievalAttention(**arguments)
    config = layer.get_config()
    assert RetrievalAttention.from_config(config).get_config() == config
    serialised = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(serialised).get_config() == config
    for name, value in arguments.items():
        if name not in ("dtype", "score"):
            assert config[name] == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "`k` must be a positive integer. Received: k=0"),
        ({"num_heads": 0}, "`num_heads` must be a positive integer. Received: num_heads=0"),
        ({"num_kv_heads": 3}, "`num_kv_heads` must divide .*num_kv_heads=3"),
        ({"score": "luong"}, "`score` must be .*Received: score='luong'"),
    ],
)
def test_errors_name_the_argument_and_its_value(options, message):
    with pytest.raises(ValueError, match=message):
        RetrievalAttention(**{"num_heads": 4, "key_dim": 3, "k": 2, **options})
