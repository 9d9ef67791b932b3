"""Arguments of `keras.layers.MultiHeadAttention` give equal outputs, scores and losses."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import relations
from keras_transformer.layers import MultiHeadAttention

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
HEADS = {"num_heads": 2, "key_dim": 3, "value_dim": 4}
QUERY, MEMORY = (RANDOM.normal(size=(2, length, 6)).astype("float32") for length in (5, 4))
KEEP = np.array([[True, True, True, False], [True, False, False, False]])
ALLOWED = RANDOM.random((2, 5, 4)) < 0.6
ALLOWED[..., 0] = True  # for queries without keys, Keras averages over all
# Inputs, call arguments of Keras' layer and of this package's layer.
CALLS = {
    "self": ((QUERY, QUERY), {}, {}),
    "causal": ((QUERY, QUERY), {"use_causal_mask": True}, {"use_causal_mask": True}),
    "padded": ((QUERY[:, :4],) * 2, {"attention_mask": KEEP[:, None]}, {"padding_mask": KEEP}),
    "cross": ((QUERY, MEMORY), {}, {}),
    "cross with keys": ((QUERY, MEMORY, MEMORY[::-1]), {}, {}),
    "cross, causal": ((QUERY, MEMORY), {"use_causal_mask": True}, {"use_causal_mask": True}),
    "cross, padded": ((QUERY, MEMORY), {"value_mask": KEEP}, {"value_mask": KEEP}),
    "masked": ((QUERY, MEMORY), {"attention_mask": ALLOWED}, {"attention_mask": ALLOWED}),
}
REGULARIZERS = {"kernel_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"}


def both(*inputs, **options):
    """Return Keras' layer with random weights, and the layer of this package with the same weights."""
    keras_layer = keras.layers.MultiHeadAttention(**HEADS, **options)
    layer = MultiHeadAttention(**HEADS, **options)
    for attention in (keras_layer, layer):
        attention.build(*(each.shape for each in inputs))
    keras_layer.set_weights([RANDOM.normal(size=weight.shape) * 0.5 for weight in keras_layer.weights])
    values = keras_layer.get_weights()
    shapes = [weight.shape for weight in layer.weights]
    layer.set_weights([value.reshape(shape) for value, shape in zip(values, shapes, strict=True)])
    return keras_layer, layer


@pytest.mark.slow_variants
@pytest.mark.backend_neutral
@pytest.mark.parametrize("name", CALLS)
def test_outputs_and_scores_equal_keras(name):
    inputs, keras_arguments, arguments = CALLS[name]
    keras_layer, layer = both(*inputs)
    expected = keras_layer(*inputs, **keras_arguments, return_attention_scores=True)
    found = layer(*inputs, **arguments, return_attention_scores=True)
    for actual, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, reference, **CLOSE)
    np.testing.assert_array_equal(layer(*inputs, **arguments), found[0])


def test_masks_of_an_embedding_act_as_in_keras():
    ids = np.array([[3, 4, 5, 0], [6, 7, 0, 0]])
    embedding = keras.layers.Embedding(8, 6, embeddings_initializer="normal", mask_zero=True)
    outputs = []
    for layer in both(embedding(ids), embedding(ids)):
        embedded = embedding(ids)  # the layer of Keras removes the mask of its inputs
        outputs.append(np.asarray(layer(embedded, embedded)))
    expected, found = outputs
    np.testing.assert_allclose(found[ids > 0], expected[ids > 0], **CLOSE)


def test_use_causal_mask_restricts_the_relation():
    layer = MultiHeadAttention(2, 3, relation=relations.SlidingWindow(1, 1))
    same = MultiHeadAttention(2, 3, relation=relations.SlidingWindow(1, 0))
    layer.build(QUERY.shape)
    same.build(QUERY.shape)
    same.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(QUERY, use_causal_mask=True), same(QUERY), **CLOSE)


def test_a_functional_model_returns_scores():
    inputs = keras.Input((None, 6))
    layer = MultiHeadAttention(**HEADS)
    output, scores = layer(inputs, return_attention_scores=True)
    assert (output.shape, scores.shape) == ((None, None, 6), (None, 2, None, None))
    found = keras.Model(inputs, [output, scores])(QUERY)
    for actual, expected in zip(found, layer(QUERY, return_attention_scores=True), strict=True):
        np.testing.assert_allclose(actual, expected, **CLOSE)


@pytest.mark.backend_neutral
def test_regularization_losses_equal_keras():
    losses = []
    for layer in both(QUERY, QUERY, **REGULARIZERS):
        layer(
            QUERY, QUERY, return_attention_scores=True
        )  # without it, Keras on JAX does not support value_dim != key_dim
        losses.append(float(sum(layer.losses)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_weight_constraints_hold_after_an_update():
    layer = MultiHeadAttention(**HEADS, kernel_constraint="non_neg", bias_constraint="non_neg")
    layer.build(QUERY.shape)
    gradients = [ops.ones(weight.shape) for weight in layer.trainable_weights]
    keras.optimizers.SGD(10.0).apply(gradients, layer.trainable_weights)
    assert all(np.asarray(weight).min() == 0 for weight in layer.trainable_weights)


def test_projection_options_round_trip_through_the_config():
    options = {
        **REGULARIZERS,
        "bias_initializer": keras.initializers.RandomNormal(stddev=2.0),
        "kernel_constraint": keras.constraints.MaxNorm(3.0),
        "bias_constraint": "non_neg",
    }
    layer = MultiHeadAttention(**HEADS, **options)
    copy = MultiHeadAttention.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    copy.build(QUERY.shape)
    projection = copy.key_projection
    assert np.std(projection.bias) > 0
    assert isinstance(projection.kernel_regularizer, keras.regularizers.L2)
    assert isinstance(projection.activity_regularizer, keras.regularizers.L2)
    assert projection.kernel_constraint.max_value == 3.0


@pytest.mark.slow
def test_only_adapters_train_after_enable_lora(tmp_path):
    inputs = keras.Input((None, 6))
    layer = MultiHeadAttention(**HEADS)
    model = keras.Model(inputs, keras.layers.Dense(1, name="head")(layer(inputs)))
    expected = model(QUERY)
    layer.enable_lora(2, lora_alpha=4)
    np.testing.assert_allclose(model(QUERY), expected, **CLOSE)
    names = [weight.name for weight in layer.trainable_weights]
    assert sorted(names) == ["lora_kernel_a"] * 4 + ["lora_kernel_b"] * 4
    assert len(model.trainable_weights) == len(names) + 2
    frozen = [np.asarray(weight) for weight in layer.non_trainable_weights]
    model.compile("sgd", "mse")
    model.fit(QUERY, np.ones((2, 5, 1)), verbose=0)
    for before, after in zip(frozen, layer.non_trainable_weights, strict=True):
        np.testing.assert_array_equal(after, before)
    trained = model(QUERY)
    assert not np.allclose(trained, expected, **CLOSE)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(keras.saving.load_model(tmp_path / "model.keras")(QUERY), trained, **CLOSE)
