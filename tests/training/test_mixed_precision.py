"""Training in mixed precision matches training in float32."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import models
from keras_transformer.training import (
    LabelSmoothedCrossentropy,
    Perplexity,
    PerUpdate,
    TokenAccuracy,
    TransformerSchedule,
)

pytestmark = pytest.mark.backend_neutral

TINY = {"vocabulary_size": 12, "num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8}
POLICIES = ("mixed_float16", "mixed_bfloat16")
VOCABULARY, LENGTH, MASK_ID = 24, 12, 1


def examples(name, rows):
    """Return inputs and labels: rows to reverse, a noisy cycle to continue, or masked ids from one of 4 topics."""
    random = np.random.default_rng(0)
    lengths = random.integers(LENGTH // 2, LENGTH + 1, (rows, 1))
    real = np.arange(LENGTH) < lengths
    if name == "Transformer":
        source = np.where(real, random.integers(4, VOCABULARY, (rows, LENGTH)), 0)
        labels = np.take_along_axis(source, (lengths - 1 - np.arange(LENGTH)) % LENGTH, 1) * real
        target = np.concatenate([np.full((rows, 1), 2), labels[:, :-1]], axis=1) * real
        return {"source_ids": source, "target_ids": target}, labels
    if name == "BERT":
        ids = 4 + 5 * random.integers(0, 4, (rows, 1)) + random.integers(0, 5, (rows, LENGTH))
        masked = real & (random.random(real.shape) < 0.2)
        return np.where(masked, MASK_ID, ids) * real, ids * masked
    following = random.permutation(VOCABULARY - 4)
    ids = np.zeros((rows, LENGTH + 1), int)
    ids[:, 0] = random.integers(0, VOCABULARY - 4, rows)
    for i in range(LENGTH):
        noise = random.integers(0, VOCABULARY - 4, rows)
        ids[:, i + 1] = np.where(random.random(rows) < 0.2, noise, following[ids[:, i]])
    ids += 4
    return ids[:, :-1], ids[:, 1:] * real


def trained(name, policy, steps, epsilon=1e-7, **options):
    """Return a model after training, its history and its loss on the examples of the first steps."""
    keras.utils.set_random_seed(0)
    sizes = {**TINY, "vocabulary_size": VOCABULARY, "model_dim": 32, "hidden_dim": 64, "dtype": policy}
    model = getattr(models, name)(**sizes, dropout=0.0)
    model = models.MaskedLanguageModel(model) if name == "BERT" else model
    rate = TransformerSchedule(32, min(200, steps), scale=0.5)
    model.compile(keras.optimizers.Adam(rate, epsilon=epsilon), LabelSmoothedCrossentropy(0.1), **options)
    x, y = examples(name, 16 * steps)
    history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0, check_inputs=False)
    first = slice(0, 16 * min(steps, 100))
    part = {key: value[first] for key, value in x.items()} if isinstance(x, dict) else x[first]
    return model, history.history, model.evaluate(part, y[first], verbose=0, check_inputs=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Transformer", "GPT", "BERT"])
def test_loss_after_2000_steps_equals_float32(name):
    untrained = np.log(VOCABULARY)
    _, _, expected = trained(name, "float32", 2000)
    assert expected < untrained - 1
    for policy in POLICIES:
        model, history, found = trained(name, policy, 2000)
        assert np.isfinite(history["loss"]).all()
        assert abs(found - expected) < 0.02
        if policy == "mixed_float16":
            scale = float(ops.convert_to_numpy(model.optimizer.dynamic_scale))
            assert 2**8 <= scale <= 2**17
            assert (
                int(ops.convert_to_numpy(model.optimizer.iterations)) > 1980
            )  # loss scaling skips few updates


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT", "Transformer", "BERT"])
@pytest.mark.parametrize("policy", POLICIES)
def test_first_updates_equal_float32(policy, name):
    # Adam divides by the size of each gradient, and so scales those up that are rounding errors, as of key biases.
    options = {"epsilon": 1e-4, "run_eagerly": True}
    _, _, expected = trained(name, "float32", 4, **options)
    _, _, found = trained(name, policy, 4, **options)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_loss_and_metrics_of_half_precision_logits_are_computed_in_float32(dtype, gradients):
    """More tokens than float16's maximum of 65,504, and a vocabulary with 1/size below its precision."""
    random = np.random.default_rng(0)
    for shape in ((2, 40_000, 3), (2, 3, 32_000)):
        half = ops.cast(random.normal(size=shape) * 10, dtype)
        exact = ops.convert_to_numpy(ops.cast(half, "float32"))
        labels = random.integers(1, shape[-1], shape[:2])
        loss = LabelSmoothedCrossentropy(0.1)
        assert float(loss(labels, half)) == float(loss(labels, ops.convert_to_tensor(exact)))
        for metric in (Perplexity(), TokenAccuracy()):
            results = []
            for logits in (half, ops.convert_to_tensor(exact)):
                metric.reset_state()
                metric.update_state(labels, logits)
                results.append(float(metric.result()))
            assert results[0] == results[1]
            assert int(metric.count) == labels.size

    def scaled(logits):
        return 2.0**15 * loss(labels, ops.cast(logits, dtype))

    (found,), (expected,) = (
        gradients(scaled, exact),
        gradients(lambda each: 2.0**15 * loss(labels, each), exact),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-6)


@pytest.mark.slow_variants
@pytest.mark.parametrize("steps", [None, 2])
def test_loss_scaling_does_not_change_updates(steps, bigrams, padded_batches):
    """Scaling by a power of two is exact in float32, also with accumulation and update schedules."""

    def weights(wrap):
        padded_batches.epochs.start_at(0)
        rate = PerUpdate(TransformerSchedule(4, 2), steps)
        model = bigrams(wrap(keras.optimizers.Adam(rate, gradient_accumulation_steps=steps)))
        model.fit(padded_batches, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()[0]

    plain = weights(lambda optimizer: optimizer)
    np.testing.assert_array_equal(weights(keras.optimizers.LossScaleOptimizer), plain)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("head", "base"),
    [
        (lambda encoder: models.SequenceClassifier(encoder, 2), models.BERT),
        (lambda decoder: models.GPTClassifier(decoder, 2), models.GPT),
        (lambda model: models.Unlimiformer(model, top_k=2, chunk_length=4), models.Transformer),
    ],
    ids=["bert", "gpt", "unlimiformer"],
)
def test_heads_have_the_dtype_policy_and_loss_scaling_of_their_model(head, base):
    model = head(base(**TINY, dtype="mixed_float16"))
    assert model.dtype_policy.name == "mixed_float16"
    model.compile("adam", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert head(base(**TINY)).dtype_policy.name == "float32"
