import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import LabelSmoothedCrossentropy, Perplexity, TokenAccuracy

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
B, T, V = 4, 5, 7
LABELS = RANDOM.integers(1, V, (B, T))
LABELS[1, 3:] = LABELS[2, 1:] = LABELS[3] = 0
LOGITS = (RANDOM.normal(size=(B, T, V)) + 2 * np.eye(V)[LABELS] * (RANDOM.random((B, T, 1)) < 0.6)).astype(
    "float32"
)


def per_token(metric, labels, logits):
    logits = logits.astype("float64")
    if metric is TokenAccuracy:
        return (logits.argmax(-1) == labels).astype("float64")
    log_sum = np.log(np.exp(logits).sum(-1))
    return log_sum - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def reference(metric, labels, logits, weights=1.0, pad_id=0):
    valid = (labels != pad_id) * weights
    mean = (per_token(metric, np.where(labels == pad_id, 0, labels), logits) * valid).sum() / valid.sum()
    return np.exp(mean) if metric is Perplexity else mean


both = pytest.mark.parametrize("metric", [Perplexity, TokenAccuracy])


@both
def test_result_equals_the_mean_over_valid_tokens(metric):
    np.testing.assert_allclose(metric()(LABELS, LOGITS), reference(metric, LABELS, LOGITS), rtol=1e-5)


@both
def test_batches_of_different_padding_equal_one_batch(metric):
    whole, parts = metric(), metric()
    whole.update_state(LABELS, LOGITS)
    for row, length in enumerate((5, 3, 1, 5)):  # the last row is all padding
        parts.update_state(LABELS[row : row + 1, :length], LOGITS[row : row + 1, :length])
    np.testing.assert_allclose(parts.result(), whole.result(), rtol=1e-6)


@both
def test_sample_weights_apply_to_rows_or_tokens(metric):
    for shape in ((B,), (B, 1), (B, T)):
        weights = RANDOM.random(shape).astype("float32")
        each = weights[:, None] if len(shape) == 1 else weights
        found = metric()(LABELS, LOGITS, sample_weight=weights)
        np.testing.assert_allclose(
            found, reference(metric, LABELS, LOGITS, each), rtol=1e-5, err_msg=str(shape)
        )


@both
def test_row_weights_and_token_weights_are_distinguished_in_square_batches(metric):
    labels, logits = LABELS[:3, :3], LOGITS[:3, :3]
    weights = np.array([1.0, 0.0, 0.0], "float32")
    expected = reference(metric, labels, logits, weights[:, None])
    np.testing.assert_allclose(metric()(labels, logits, sample_weight=weights), expected, rtol=1e-5)


@both
@pytest.mark.parametrize("pad_id", [3, -1, -100])
def test_pad_id_can_be_set(metric, pad_id):
    labels = np.where(LABELS == 0, pad_id, np.where(pad_id == LABELS, 2, LABELS))
    found = metric(pad_id=pad_id)(labels, LOGITS)
    np.testing.assert_allclose(found, reference(metric, labels, LOGITS, pad_id=pad_id), rtol=1e-5)


@both
def test_reset_state_gives_zero_not_nan(metric):
    found = metric()
    nothing = 1 if metric is Perplexity else 0
    assert found.result() == nothing
    found.update_state(LABELS, LOGITS)
    found.reset_state()
    assert found.result() == nothing
    assert found(np.zeros_like(LABELS), LOGITS) == nothing


def test_perplexity_of_uniform_logits_is_the_vocabulary_size():
    np.testing.assert_allclose(Perplexity()(LABELS, np.zeros_like(LOGITS)), V, rtol=1e-5)


def test_perplexity_is_the_exponential_of_the_loss_without_smoothing():
    loss = LabelSmoothedCrossentropy(0.0)(LABELS, LOGITS)
    np.testing.assert_allclose(Perplexity()(LABELS, LOGITS), np.exp(loss), rtol=1e-5)


@both
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_cast_to_float32(metric, dtype):
    half = ops.cast(LOGITS, dtype)
    expected = reference(metric, LABELS, np.asarray(ops.cast(half, "float32")))
    np.testing.assert_allclose(metric()(LABELS, half), expected, rtol=1e-4)


@both
def test_any_label_type_is_accepted(metric):
    for dtype in ("int32", "int64", "float32"):
        np.testing.assert_allclose(
            metric()(LABELS.astype(dtype), LOGITS), reference(metric, LABELS, LOGITS), rtol=1e-5
        )


@pytest.mark.slow_variants
@both
def test_evaluate_weights_tokens_equally_over_uneven_batches(metric):
    for masked in (False, True):
        inputs = keras.Input((T,), dtype="int32")
        embedding = keras.layers.Embedding(V, V, mask_zero=masked)
        model = keras.Model(inputs, embedding(inputs))
        embedding.set_weights([RANDOM.normal(size=(V, V))])
        model.compile(loss=LabelSmoothedCrossentropy(0.1), metrics=[metric()], jit_compile=False)
        found = model.evaluate(LABELS, LABELS, batch_size=3, verbose=0, return_dict=True)
        expected = reference(metric, LABELS, np.asarray(embedding(LABELS)))
        np.testing.assert_allclose(found[metric().name], expected, rtol=1e-5)


@both
def test_config_round_trip_is_the_identity(metric):
    found = metric(name="mine", pad_id=3)
    config = found.get_config()
    assert metric.from_config(config).get_config() == config
    again = keras.metrics.deserialize(keras.metrics.serialize(found))
    assert (type(again), again.name, again.pad_id) == (metric, "mine", 3)
