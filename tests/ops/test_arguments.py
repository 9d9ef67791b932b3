"""Arguments of attention: mask conventions, extreme values, empty batches and tracing."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import relations
from keras_transformer.ops import (
    attention,
    explain,
)
from keras_transformer.ops.blockwise import schedule

neutral = pytest.mark.backend_neutral

X = np.random.default_rng(0).normal(size=(2, 5, 4, 8)).astype("float32")


@neutral
def test_other_mask_conventions_accept_lists_arrays_and_tensors():
    hidden = [[True, False], [False, False]]
    for given in (hidden, np.array(hidden), ops.array(hidden), np.array(hidden).astype("int32")):
        np.testing.assert_array_equal(relations.from_hidden(given), ~np.array(hidden))
    symbolic = keras.Input((5, 5), dtype="bool")
    assert keras.backend.is_keras_tensor(relations.from_hidden(symbolic))
    additive = [[0.0, -1e9], [0.0, 0.0]]
    for given in (additive, np.array(additive), ops.array(additive, "float32")):
        np.testing.assert_array_equal(relations.from_additive(given), np.array(additive) == 0)


@pytest.mark.parametrize("low", [-1e4, -1e9, -np.inf])
@neutral
def test_rows_with_only_very_low_biases_have_equal_gradients_in_every_kernel(low, gradients):
    query, key, value = np.random.default_rng(1).normal(size=(3, 1, 8, 1, 4)).astype("float32")
    bias = np.zeros((8, 8), "float32")
    bias[3:] = low

    def loss(kernel):
        return lambda q, k, v: ops.sum(attention(q, k, v, bias=bias, kernel=kernel) ** 2)

    expected = gradients(loss("dense"), query, key, value)
    for actual, reference in zip(gradients(loss("chunked"), query, key, value), expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=2e-3, atol=1e-4)


@neutral
def test_linear_attention_masks_nan_padding():
    padding = np.arange(5) < np.array([[3], [5]])
    clean = attention(X, X, X, score="linear", padding_mask=padding, kernel="linear")
    dirty = np.where(padding[:, :, None, None], X, np.nan)
    found = attention(X, dirty, dirty, score="linear", padding_mask=padding, kernel="linear")
    np.testing.assert_allclose(found, clean, rtol=1e-6)


def test_an_empty_batch_uses_the_dense_kernel():
    x = np.zeros((0, 2000, 2, 4), "float32")
    assert explain(x, x, x).kernel == "dense"
    assert attention(x, x, x).shape == x.shape


def test_kernel_choice_depends_on_queries_and_batch_size():
    def chosen(batch, queries, keys, heads=4):
        query, key = (keras.KerasTensor((batch, length, heads, 64)) for length in (queries, keys))
        return explain(query, key, key, "causal").kernel

    assert chosen(1, 32, 40000) == "dense"
    assert chosen(1, 40000, 32) == "dense"
    assert chosen(1, 1024, 1024) == "dense"
    assert chosen(64, 1024, 1024, heads=16) == "chunked"
    assert chosen(1, 600, 40000) == "chunked"


def test_a_window_wider_than_the_sequence_schedules_only_the_sequence():
    x = keras.KerasTensor((1, 40, 1, 4))
    planned = explain(x, x, x, relations.SlidingWindow(2**29), kernel="banded")
    assert planned.bytes <= 4 * 3 * 128 * 128


def test_exported_attention_runs_without_xla():
    """TensorFlow Serving does not run XLA operations."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("graphs of TensorFlow")
    import tensorflow as tf

    @tf.function(autograph=False)
    def both(x):
        return attention(x, x, x, "causal", kernel="chunked"), attention(
            x, x, x, relations.SlidingWindow(3), kernel="banded"
        )

    concrete = both.get_concrete_function(tf.TensorSpec((1, 200, 2, 4)))
    graph = concrete.graph.as_graph_def()
    names = {node.op for function in graph.library.function for node in function.node_def}
    names |= {node.op for node in graph.node}
    assert not [name for name in names if name.startswith("Xla")]


@pytest.mark.backend_neutral
def test_jax_transformations_compose_in_any_order(monkeypatch):
    if keras.backend.backend() != "jax":
        pytest.skip("transformations of JAX")
    import jax

    sizes = schedule.BLOCK_SIZES["cpu"]._replace(smallest=8, largest=8)
    monkeypatch.setitem(schedule.BLOCK_SIZES, schedule.device_type(), sizes)
    x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(1, 20, 2, 4)).astype("float32"))
    auxiliary = {
        "padding_mask": jax.numpy.arange(20)[None] < 15,
        "segment_ids": jax.numpy.arange(20)[None] // 7,
        "query_positions": jax.numpy.arange(20),
        "key_positions": jax.numpy.arange(20),
        "seed": jax.numpy.array([2**31 + 5, 3], "uint32"),
    }

    def loss(x, auxiliary, kernel="chunked"):
        return (attention(x, x, x, "causal", kernel=kernel, dropout=0.3, **auxiliary) ** 2).sum()

    expected = jax.grad(lambda x: loss(x, auxiliary, "dense"))(x)
    for transformed in (
        jax.grad(jax.jit(loss)),
        jax.grad(jax.checkpoint(loss)),
        jax.jit(jax.grad(jax.jit(loss))),
        jax.grad(lambda x, auxiliary: jax.lax.cond(True, lambda x: loss(x, auxiliary), lambda _: 0.0, x)),
    ):
        np.testing.assert_allclose(transformed(x, auxiliary), expected, rtol=1e-4, atol=1e-4)
