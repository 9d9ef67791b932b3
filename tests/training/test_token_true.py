"""Each token has the same weight, however a batch is divided into micro-batches or over replicas."""

import subprocess
import sys
import textwrap
import types

import keras
import numpy as np
import pytest

from keras_transformer.training import LabelSmoothedCrossentropy

VOCABULARY, LENGTH, ROWS = 11, 6, 8
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, VOCABULARY, (ROWS, LENGTH))
LABELS = np.where(np.arange(LENGTH) < RANDOM.integers(1, LENGTH + 1, (ROWS, 1)), IDS, 0)


def trained(normalizer, batch_size, steps=None):
    """Return the weights after an epoch in batches of `batch_size`, from the same initial weights."""
    model = keras.Sequential([keras.Input((LENGTH,)), keras.layers.Embedding(VOCABULARY, VOCABULARY)])
    model.set_weights([np.random.default_rng(1).normal(size=(VOCABULARY, VOCABULARY))])
    optimizer = keras.optimizers.SGD(1.0, momentum=0.9, gradient_accumulation_steps=steps)
    model.compile(optimizer, LabelSmoothedCrossentropy(0.1, normalizer=normalizer))
    model.fit(IDS, LABELS, batch_size=batch_size, shuffle=False, verbose=0)
    return model.get_weights()[0]


@pytest.mark.backend_neutral
def test_accumulated_batches_equal_one_batch():
    whole, divided = trained(20.0, ROWS), trained(5.0, ROWS // 4, steps=4)
    np.testing.assert_allclose(divided, whole, atol=1e-6)


@pytest.mark.backend_neutral
def test_a_number_of_tokens_can_be_the_normalizer():
    tokens = float((LABELS != 0).sum())
    np.testing.assert_allclose(trained(tokens, ROWS), trained("tokens", ROWS), atol=1e-6)


@pytest.mark.parametrize("normalizer", ["tokens", 7.0])
def test_loss_is_divided_by_the_number_of_replicas(normalizer, monkeypatch):
    import tensorflow as tf

    logits = np.random.default_rng(2).normal(size=(ROWS, LENGTH, VOCABULARY)).astype("float32")
    loss = LabelSmoothedCrossentropy(0.1, normalizer=normalizer)
    single = float(loss(LABELS, logits))
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: types.SimpleNamespace(num_replicas_in_sync=2))
    assert float(loss(LABELS, logits)) == pytest.approx(single / 2)


@pytest.mark.slow
def test_two_replicas_equal_one_device():
    code = """
        import keras, numpy as np, tensorflow as tf
        from tests.training import test_token_true as case
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        one = case.trained(24.0, case.ROWS)
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            two = case.trained(12.0, case.ROWS)
        assert np.abs(one - two).max() < 1e-6, np.abs(one - two).max()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize("normalizer", ["batch", 0, -1.0, True, float("nan"), None])
def test_invalid_normalizers_are_rejected(normalizer):
    with pytest.raises(ValueError, match="`normalizer` must be"):
        LabelSmoothedCrossentropy(normalizer=normalizer)
