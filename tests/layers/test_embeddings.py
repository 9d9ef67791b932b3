import keras
import numpy as np
import pytest

from keras_transformer.layers import TokenEmbedding

pytestmark = pytest.mark.backend_neutral

IDS = np.array([[5, 6, 0], [1, 0, 0]])


def matrix(layer):
    (weights,) = layer.get_weights()
    return weights


@pytest.mark.parametrize("scale", [True, False])
def test_embeddings_are_scaled_by_the_square_root_of_the_size(scale):
    layer = TokenEmbedding(10, 16, scale=scale)
    output = layer(IDS)
    np.testing.assert_allclose(output, matrix(layer)[IDS] * (4 if scale else 1), rtol=1e-6)


def test_logits_are_the_product_with_the_embedding_matrix():
    layer = TokenEmbedding(10, 16)
    layer.build((None, None))
    hidden = np.random.default_rng(0).normal(size=(2, 3, 16)).astype("float32")
    np.testing.assert_allclose(layer.logits(hidden), hidden @ matrix(layer).T, rtol=1e-4, atol=1e-5)
    assert len(layer.trainable_weights) == 1


def test_scaled_embeddings_start_with_unit_variance():
    output = np.asarray(TokenEmbedding(500, 256)(np.arange(500)[None]))
    assert abs(output.std() - 1) < 0.02
    assert abs(output.mean()) < 0.02


def test_the_mask_excludes_only_padding():
    for pad_id in (0, 6):
        layer = TokenEmbedding(10, 16, pad_id=pad_id)
        np.testing.assert_array_equal(layer.compute_mask(IDS), pad_id != IDS)
        output = layer(IDS[:1])
        pooled = keras.layers.GlobalAveragePooling1D()(output)
        kept = np.asarray(output)[0, IDS[0] != pad_id]
        np.testing.assert_allclose(pooled[0], kept.mean(0), rtol=1e-4, atol=1e-5)


def test_without_pad_id_there_is_no_mask():
    layer = TokenEmbedding(10, 16, pad_id=None)
    assert layer.compute_mask(IDS) is None
    output = layer(IDS)
    np.testing.assert_allclose(
        keras.layers.GlobalAveragePooling1D()(output), np.asarray(output).mean(1), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_gives_half_precision_embeddings_and_float32_logits(policy):
    layer = TokenEmbedding(10, 16, dtype=policy)
    output = layer(IDS)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    logits = layer.logits(output)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    # Keras rounds weights to half precision; products and sums are in float32.
    rounded = np.asarray(keras.ops.cast(keras.ops.cast(matrix(layer), output.dtype), "float32"))
    expected = np.asarray(keras.ops.cast(output, "float32")) @ rounded.T
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert layer.trainable_weights[0].dtype == "float32"


def test_logits_of_masked_embeddings_do_not_warn(recwarn):
    layer = TokenEmbedding(10, 16)
    assert layer.logits(layer(IDS)).shape == (2, 3, 10)
    assert not [warning for warning in recwarn if "mask" in str(warning.message)]


def test_the_tied_matrix_gets_gradients_from_both_uses():
    if keras.config.backend() != "tensorflow":
        pytest.skip("reads variables by a gradient tape")
    import tensorflow as tf

    layer = TokenEmbedding(10, 16)
    layer.build((None, None))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer.logits(layer(IDS)))
    (gradient,) = tape.gradient(total, layer.trainable_variables)
    gradient = tf.convert_to_tensor(gradient).numpy()
    assert (gradient != 0).any(-1).all()  # gradients of all rows as outputs, and of rows of ids as inputs
    assert not np.allclose(gradient[5], gradient[9])
