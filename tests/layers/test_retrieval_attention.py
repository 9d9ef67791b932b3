import numpy as np
import pytest

from keras_transformer.layers import MultiHeadAttention, RetrievalAttention

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SHAPES = (2, 3, 8), (2, 11, 7)


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def inputs():
    """Return queries (B, T, D) and a memory (B, S, D')."""
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
def test_k_of_the_memory_size_equals_cross_attention(options):
    (query, memory), mask = inputs(), np.arange(11) < np.array([[11], [4]])
    full = built(kind=MultiHeadAttention, **options)
    retrieval = built(11, weights=full.trainable_weights, **options)
    training = "dropout" in options
    np.testing.assert_array_equal(
        retrieval(query, memory, padding_mask=mask, training=training),
        full(query, memory, padding_mask=mask, training=training),
    )


def test_weights_of_a_trained_cross_attention_are_loaded():
    full = built(kind=MultiHeadAttention)
    retrieval = built()
    retrieval.set_weights(full.get_weights())
    assert [w.path.split("/")[-2:] for w in retrieval.weights] == [
        w.path.split("/")[-2:] for w in full.weights
    ]
    query, memory = inputs()
    memory = memory[:, :4]
    np.testing.assert_array_equal(retrieval(query, memory), full(query, memory))


def test_each_head_and_query_attends_to_exactly_k_keys():
    """Changing a token changes the outputs of exactly the queries with a head that selects it."""
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
    def test_outputs_are_invariant_under_memory_permutations(self):
        (query, memory), layer = inputs(), built()
        mask, order = np.arange(11) < np.array([[11], [4]]), RANDOM.permutation(11)
        found = layer(query, memory[:, order], padding_mask=mask[:, order])
        np.testing.assert_allclose(found, layer(query, memory, padding_mask=mask), **CLOSE)

    def test_outputs_are_equivariant_under_query_permutations(self):
        (query, memory), layer = inputs(), built()
        found = layer(query[:, [2, 0, 1]], memory)
        np.testing.assert_allclose(found, np.asarray(layer(query, memory))[:, [2, 0, 1]], **CLOSE)


class TestPadding:
    def test_only_padding_gives_the_output_bias(self):
        (query, memory), layer = inputs(), built()
        found = layer(query, memory, padding_mask=np.zeros((2, 11), bool))
        np.testing.assert_array_equal(
            found, np.broadcast_to(layer.attention.output_projection.bias, found.shape)
        )


def test_attending_to_projected_memory_equals_the_call():
    (query, memory), layer = inputs(), built(num_kv_heads=2, value_dim=5)
    mask = np.arange(11) < np.array([[11], [4]])
    projected, expected = layer.project(memory), np.asarray(layer(query, memory, padding_mask=mask))
    np.testing.assert_allclose(layer.attend(query, projected, mask), expected, **CLOSE)
    np.testing.assert_allclose(layer.attend(query[:, 1:2], projected, mask), expected[:, 1:2], **CLOSE)
