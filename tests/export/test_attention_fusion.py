import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.ops import GrowingCache
from tests.export.conversions import converted

HEADS, SIZE = 2, 4
RNG = np.random.default_rng(0)
KERNELS = [RNG.normal(size=(8, 8)).astype("float32") for _ in range(3)]


def inputs(length):
    return RNG.normal(size=(3, length, 8)).astype("float32")


def past(batch=3):
    return RNG.normal(size=(batch, HEADS, 5, SIZE)).astype("float32")


def heads(x, kernel, bias=None):
    """Project, and split into heads (B, N, T, H)."""
    x = tf.matmul(x, kernel)
    x = x if bias is None else x + bias
    return tf.transpose(tf.reshape(x, [-1, x.shape[1], HEADS, SIZE]), [0, 2, 1, 3])


def attend(query, key, value, visible=None, readable=None):
    """Attend, and join the heads."""
    scores = tf.matmul(query * 0.5, key, transpose_b=True)
    if visible is not None:
        scores = tf.where(visible, scores, -1e30)
    output = tf.matmul(tf.nn.softmax(scores), value)
    if readable is not None:
        output = tf.where(readable, output, 0.0)
    return tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [-1, query.shape[2], HEADS * SIZE])


def is_fused(counts):
    assert counts["MultiHeadAttention"] + counts["Softmax"] == 1
    return counts["MultiHeadAttention"] == 1


@pytest.mark.parametrize("bias", [None, np.arange(8, dtype="float32")], ids=["no bias", "bias"])
@pytest.mark.parametrize("length", [1, 3])
def test_attention_to_a_past_is_one_operation(length, bias):
    def step(x, keys, values):
        query, key, value = (heads(x, kernel, bias) for kernel in KERNELS)
        keys, values = tf.concat([keys, key], 2), tf.concat([values, value], 2)
        past = tf.reshape(tf.tanh(keys), [-1, 5 + length, HEADS * SIZE])
        return tf.concat([tf.tanh(attend(query, keys, values)), past], 1)

    counts, found, expected, _ = converted(step, inputs(length), past(), past())
    assert is_fused(counts)
    assert counts["Transpose"] == counts["Add"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_masks_of_keys_and_rows_without_keys_are_respected(rows):
    visible = RNG.random((3, 1, rows, 8)) > 0.5
    visible[0] = False
    visible[1:, :, :, 0] = True

    def step(x, keys, values, visible):
        query, key, value = (heads(x, kernel) for kernel in KERNELS)
        keys, values = tf.concat([keys, key], 2), tf.concat([values, value], 2)
        return attend(query, keys, values, visible, tf.reduce_any(visible, axis=-1, keepdims=True))

    counts, found, expected, _ = converted(step, inputs(3), past(), past(), visible)
    assert is_fused(counts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found[0] == 0).all()


@pytest.mark.parametrize("bias", [None, np.arange(8, dtype="float32")], ids=["no bias", "bias"])
@pytest.mark.parametrize("length", [1, 3])
def test_keys_and_values_may_be_computed_before(length, bias):
    def step(x, keys, values):
        return attend(heads(x, KERNELS[0], bias), keys, values)

    counts, found, expected, _ = converted(step, inputs(length), past(), past())
    assert is_fused(counts)
    assert counts["Add"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["keys and values", "keys as values"])
def test_two_attentions_may_share_a_past(tied):
    def step(x, keys, values):
        first, second, new = (heads(x, kernel) for kernel in KERNELS)
        keys = tf.concat([keys, new], 2)
        values = keys if tied else tf.concat([values, new], 2)
        return tf.tanh(attend(first, keys, values)) + attend(second, keys, values)

    counts, found, expected, _ = converted(step, inputs(3), past(), past())
    assert (counts["MultiHeadAttention"], counts["Softmax"]) == (2, 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_one_number_is_not_a_bias():
    def step(x, keys, values):
        query, key, value = (heads(x, kernel, np.array([0.5], "float32")) for kernel in KERNELS)
        return attend(query, tf.concat([keys, key], 2), tf.concat([values, value], 2))

    counts, found, expected, _ = converted(step, inputs(3), past(), past())
    assert is_fused(counts)
    assert counts["Add"] == 3
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3])
def test_rotated_queries_and_keys_are_joined(length):
    def step(x, keys, values):
        query, key, value = (heads(x, kernel) for kernel in KERNELS)
        return attend(tf.sin(query), tf.concat([keys, tf.cos(key)], 2), tf.concat([values, value], 2))

    counts, found, expected, _ = converted(step, inputs(length), past(), past())
    assert is_fused(counts)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def weights_are_read(x, keys, values):
    weights = tf.nn.softmax(tf.matmul(heads(x, KERNELS[0]) * 0.5, keys, transpose_b=True))
    joined = tf.reshape(tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3]), [-1, 3, HEADS * SIZE])
    return joined * tf.reduce_max(weights)


def one_mask_for_all_keys(x, keys, values):
    return attend(heads(x, KERNELS[0]), keys, values, tf.reduce_max(keys, (2, 3), True) > 0)


def values_have_other_sizes(x, keys, values):
    output = tf.matmul(
        tf.nn.softmax(tf.matmul(heads(x, KERNELS[0]), keys, transpose_b=True)), values[..., :2]
    )
    return tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [-1, 3, HEADS * 2])


def heads_share_keys(x, keys, values):
    return attend(heads(x, KERNELS[0]), keys[:, :1], values[:, :1])


def heads_are_joined_in_another_order(x, keys, values):
    output = tf.matmul(tf.nn.softmax(tf.matmul(heads(x, KERNELS[0]), keys, transpose_b=True)), values)
    return tf.reshape(output, [-1, 3, HEADS * SIZE])


@pytest.mark.parametrize(
    "step",
    [
        weights_are_read,
        one_mask_for_all_keys,
        values_have_other_sizes,
        heads_share_keys,
        heads_are_joined_in_another_order,
    ],
)
def test_similar_attention_is_kept(step):
    counts, found, expected, _ = converted(step, inputs(3), past(), past())
    assert not is_fused(counts)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_varying_number_of_queries_is_kept():
    def function(x, keys, values):
        lengths = tf.shape(x)
        query = tf.transpose(tf.reshape(x, [lengths[0], -1, HEADS, SIZE]), [0, 2, 1, 3])
        output = tf.matmul(tf.nn.softmax(tf.matmul(query, keys, transpose_b=True)), values)
        return tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [lengths[0], -1, HEADS * SIZE])

    counts, found, expected, _ = converted(
        lambda x, keys, values: function(x[:, : tf.shape(keys)[0]], keys, values), inputs(5), past(), past()
    )
    assert not is_fused(counts)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_causal_step_with_a_growing_cache_compares_no_positions():
    layer = MultiHeadAttention(2, 4, relation="causal")
    layer.build((None, None, 8))

    def step(x, keys, values, positions):
        cache, length = {"key": keys, "value": values, "positions": positions}, tf.shape(keys)[2]
        now = tf.fill([tf.shape(x)[0], 1], length)
        return layer.step(x, cache, cache_index=length, positions=now, kv_cache=GrowingCache())[0]

    x, entries = (np.random.default_rng(0).normal(size=shape) for shape in ((2, 1, 8), (2, 2, 3, 4)))
    positions = np.array([[0, 1, 2], [-1, 0, 1]], "int32")
    arrays = [each.astype("float32") for each in (x, entries, -entries)]
    counts, found, expected, _ = converted(step, *arrays, positions, variables=layer.weights)
    assert (counts["LessOrEqual"], counts["GreaterOrEqual"]) == (0, 1)  # only padding is masked
    np.testing.assert_allclose(found, expected, atol=1e-5)
