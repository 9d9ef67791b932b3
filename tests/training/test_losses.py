import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import models
from keras_transformer.training import LabelSmoothedCrossentropy, Perplexity, TokenAccuracy

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
B, T, V = 3, 5, 7
LABELS = RANDOM.integers(1, V, (B, T))
LABELS[1, 3:] = LABELS[2, 1:] = 0
LOGITS = RANDOM.normal(size=(B, T, V)).astype("float32") * 3
SMOOTHINGS = (0.0, 0.1, 0.9)


def one_hot_reference(labels, logits, smoothing, pad_id=0, weights=1.0):
    """Compute the mean over valid tokens and its gradient in float64, from the smoothed distribution."""
    logits = logits.astype("float64")
    size = logits.shape[-1]
    target = (1 - smoothing) * np.eye(size)[np.where(labels == pad_id, 0, labels)] + smoothing / size
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    probabilities = np.exp(log_probabilities)
    valid = (labels != pad_id) * np.ones_like(labels)
    losses = -(target * log_probabilities).sum(-1)
    loss = (losses * valid * weights).sum() / valid.sum()
    gradient = (probabilities - target) * (valid * weights / valid.sum())[..., None]
    return loss, gradient


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_loss_and_gradient_equal_smoothed_cross_entropy(smoothing, gradients):
    expected, expected_gradient = one_hot_reference(LABELS, LOGITS, smoothing)
    loss = LabelSmoothedCrossentropy(smoothing)
    np.testing.assert_allclose(loss(LABELS, LOGITS), expected, rtol=1e-5)
    (gradient,) = gradients(lambda logits: loss(ops.convert_to_tensor(LABELS), logits), LOGITS)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)
    assert (gradient[LABELS == 0] == 0).all()


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize(("scale", "offset"), [(100, 0), (1e-3, 0), (1, 100), (1, -100)])
def test_large_small_and_shifted_logits_keep_their_precision(smoothing, scale, offset, gradients):
    logits = (LOGITS * scale + offset).astype("float32")
    expected, expected_gradient = one_hot_reference(LABELS, logits, smoothing)
    loss = LabelSmoothedCrossentropy(smoothing)
    np.testing.assert_allclose(loss(LABELS, logits), expected, rtol=1e-5)
    (gradient,) = gradients(lambda logits: loss(ops.convert_to_tensor(LABELS), logits), logits)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_without_smoothing_ids_of_probability_zero_do_not_count(gradients):
    logits = np.concatenate([LOGITS, np.full_like(LOGITS, -np.inf)], axis=-1)
    loss = LabelSmoothedCrossentropy(0.0)
    np.testing.assert_allclose(loss(LABELS, logits), loss(LABELS, LOGITS), rtol=1e-6)
    (gradient,) = gradients(lambda logits: loss(ops.convert_to_tensor(LABELS), logits), logits)
    assert np.isfinite(gradient).all()


def test_loss_equals_keras_without_padding():
    labels = RANDOM.integers(1, V, (B, T))
    one_hot = np.eye(V, dtype="float32")[labels]
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(one_hot, LOGITS)
    np.testing.assert_allclose(LabelSmoothedCrossentropy(0.1)(labels, LOGITS), expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_padding_does_not_change_the_loss(smoothing):
    labels = RANDOM.integers(1, V, (B, T))
    loss = LabelSmoothedCrossentropy(smoothing)
    padded = np.concatenate([labels, np.zeros_like(labels)], axis=1)
    logits = np.concatenate([LOGITS, RANDOM.normal(size=LOGITS.shape) * 100], axis=1).astype("float32")
    np.testing.assert_allclose(loss(padded, logits), loss(labels, LOGITS), rtol=1e-5)


def test_a_keras_mask_does_not_change_the_result():
    loss = LabelSmoothedCrossentropy(0.1)
    masked = keras.layers.Masking(mask_value=-1.0)(ops.convert_to_tensor(LOGITS))
    hidden = np.where((LABELS == 0)[..., None], 0.0, LOGITS).astype("float32")
    np.testing.assert_allclose(loss(LABELS, masked), loss(LABELS, LOGITS), rtol=1e-6)
    np.testing.assert_allclose(
        loss(LABELS, keras.layers.Masking()(ops.convert_to_tensor(hidden))), loss(LABELS, LOGITS), rtol=1e-6
    )


@pytest.mark.parametrize("masked", [False, True], ids=["no Keras mask", "Keras mask"])
def test_fit_reports_the_same_loss_with_and_without_keras_mask(masked):
    inputs = keras.Input((T,), dtype="int32")
    embedding = keras.layers.Embedding(V, V, mask_zero=masked)
    model = keras.Model(inputs, embedding(inputs))
    model.compile(loss=LabelSmoothedCrossentropy(0.1), run_eagerly=True)
    embedding.set_weights([RANDOM.normal(size=(V, V))])
    expected, _ = one_hot_reference(LABELS, np.asarray(embedding(LABELS)), 0.1)
    np.testing.assert_allclose(model.evaluate(LABELS, LABELS, verbose=0, batch_size=B), expected, rtol=1e-5)


@pytest.mark.parametrize("pad_id", [4, -1, -100])
def test_pad_id_can_be_set(pad_id):
    labels = np.where(LABELS == 0, pad_id, np.where(pad_id == LABELS, 2, LABELS))
    expected, _ = one_hot_reference(labels, LOGITS, 0.1, pad_id)
    np.testing.assert_allclose(
        LabelSmoothedCrossentropy(0.1, pad_id=pad_id)(labels, LOGITS), expected, rtol=1e-5
    )


@pytest.mark.parametrize("shape", [(), (B,), (B, 1), (B, T)], ids=str)
def test_sample_weights_apply_to_rows_or_tokens(shape):
    weights = RANDOM.random(shape).astype("float32")
    each = weights[:, None] if len(shape) == 1 else weights
    expected, _ = one_hot_reference(LABELS, LOGITS, 0.1, weights=each)
    found = LabelSmoothedCrossentropy(0.1)(LABELS, LOGITS, sample_weight=weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_row_weights_and_token_weights_are_distinguished_in_square_batches():
    labels, logits = LABELS[:, :B], LOGITS[:, :B]
    weights = np.array([1.0, 0.0, 0.0], "float32")
    expected, _ = one_hot_reference(labels, logits, 0.1, weights=weights[:, None])
    np.testing.assert_allclose(LabelSmoothedCrossentropy(0.1)(labels, logits, weights), expected, rtol=1e-5)


def test_only_padding_gives_zero_loss_and_gradient(gradients):
    labels, loss = np.zeros_like(LABELS), LabelSmoothedCrossentropy(0.1)
    assert float(loss(labels, LOGITS)) == 0
    (gradient,) = gradients(lambda logits: loss(ops.convert_to_tensor(labels), logits), LOGITS)
    assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_cast_to_float32(dtype):
    half = ops.cast(LOGITS * 1000, dtype)  # exp(3000) overflows in either type
    expected, _ = one_hot_reference(LABELS, np.asarray(ops.cast(half, "float32")), 0.1)
    found = LabelSmoothedCrossentropy(0.1)(LABELS, half)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32"])
def test_any_label_type_is_accepted(dtype):
    loss = LabelSmoothedCrossentropy(0.1)
    np.testing.assert_allclose(loss(LABELS.astype(dtype), LOGITS), loss(LABELS, LOGITS), rtol=1e-6)


def test_the_loss_is_equal_in_every_mode(modes):
    loss = LabelSmoothedCrossentropy(0.1)
    expected, _ = one_hot_reference(LABELS, LOGITS, 0.1)
    for name, wrap in modes.items():
        found = wrap(loss)(ops.convert_to_tensor(LABELS, "int32"), ops.convert_to_tensor(LOGITS))
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)


def test_config_round_trip_is_the_identity():
    loss = LabelSmoothedCrossentropy(0.2, pad_id=4, name="mine")
    config = loss.get_config()
    assert LabelSmoothedCrossentropy.from_config(config).get_config() == config
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert (again.smoothing, again.pad_id, again.name) == (0.2, 4, "mine")


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_outside_0_1_is_rejected(smoothing):
    with pytest.raises(
        ValueError, match=rf"`smoothing` must be in \[0, 1\). Received: smoothing={smoothing}"
    ):
        LabelSmoothedCrossentropy(smoothing)


def test_without_padding_id_negative_labels_are_ignored():
    labels = np.where(LABELS == 0, -1, LABELS)
    labels[0, 0] = 0  # a token like any other
    expected, _ = one_hot_reference(labels, LOGITS, 0.1, pad_id=-1)
    np.testing.assert_allclose(
        LabelSmoothedCrossentropy(0.1, pad_id=None)(labels, LOGITS), expected, rtol=1e-5
    )
    perplexity, accuracy = Perplexity(pad_id=None), TokenAccuracy(pad_id=None)
    for metric, reference in ((perplexity, Perplexity(pad_id=-1)), (accuracy, TokenAccuracy(pad_id=-1))):
        for each in (metric, reference):
            each.update_state(labels, LOGITS)
        np.testing.assert_allclose(metric.result(), reference.result())


@pytest.mark.parametrize("pad_id", [0, None])
@pytest.mark.parametrize("ignore_class", [-100, -1, 4])
def test_ignore_class_is_ignored_with_padding(ignore_class, pad_id):
    labels = np.where(LABELS == 0, -1 if pad_id is None else 0, np.where(LABELS == 4, ignore_class, LABELS))
    padded = np.where((LABELS == 0) | (LABELS == 4), 0, LABELS)
    expected, _ = one_hot_reference(padded, LOGITS, 0.1)
    settings = {"pad_id": pad_id, "ignore_class": ignore_class}
    loss = LabelSmoothedCrossentropy(0.1, **settings)
    np.testing.assert_allclose(loss(labels, LOGITS), expected, rtol=1e-5)
    for metric in (Perplexity, TokenAccuracy):
        np.testing.assert_allclose(metric(**settings)(labels, LOGITS), metric()(padded, LOGITS), rtol=1e-6)
        assert metric.from_config(metric(**settings).get_config()).ignore_class == ignore_class
    assert LabelSmoothedCrossentropy.from_config(loss.get_config()).ignore_class == ignore_class


def test_ignore_class_equals_keras():
    labels = np.where(LABELS == 0, -100, LABELS)
    valid = (labels != -100).sum()
    keras_loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-100, reduction="sum"
    )
    loss = LabelSmoothedCrossentropy(0.0, ignore_class=-100)
    np.testing.assert_allclose(loss(labels, LOGITS), keras_loss(labels, LOGITS) / valid, rtol=1e-5)


def test_the_rank_of_weights_may_change():
    model = models.GPT(20, 1, 1, 4, max_length=8, dropout=0.0)
    model.compile(
        keras.optimizers.SGD(0.0), LabelSmoothedCrossentropy(0.0), weighted_metrics=[TokenAccuracy()]
    )
    ids, weights = np.array([[2, 5, 6], [7, 8, 0]]), np.array([1.0, 3.0])
    given = [weights, np.repeat(weights[:, None], 3, axis=1)] * 2
    results = [model.test_on_batch(ids, ids, each) for each in given]
    np.testing.assert_allclose(results, results[:1] * 4, rtol=1e-6)
