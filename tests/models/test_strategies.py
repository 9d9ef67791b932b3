"""Unsupported strategies of tf.distribute raise an error before training; the others equal one device."""

import subprocess
import sys
import textwrap
import types

import keras
import numpy as np
import pytest

from keras_transformer import models
from tests.training import several_devices

IDS = np.ones((2, 4), "int32")


class CollectiveAllReduceStrategy(types.SimpleNamespace):
    """Stand-in for `tf.distribute.MultiWorkerMirroredStrategy`, which waits for its other workers."""


class MirroredStrategy(types.SimpleNamespace):
    """Stand-in for the strategy of two devices."""


@pytest.mark.parametrize(
    ("strategy", "options", "error"),
    [
        (CollectiveAllReduceStrategy, {}, "several processes with Keras on JAX"),
        (MirroredStrategy, {"jit_compile": True}, "`jit_compile` must be False .* 2 replicas"),
        (MirroredStrategy, {"steps": 4}, "`gradient_accumulation_steps` must be None .* 2 replicas"),
        (
            MirroredStrategy,
            {"steps": 4, "dtype": "mixed_float16"},
            "`gradient_accumulation_steps` must be None",
        ),
    ],
)
def test_unsupported_strategies_are_rejected(monkeypatch, strategy, options, error):
    model = models.GPT(8, 1, 1, 4, max_length=4, dtype=options.pop("dtype", None))
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=options.pop("steps", None))
    model.compile(optimizer, "mse", **options)
    monkeypatch.setattr(type(model), "distribute_strategy", strategy(num_replicas_in_sync=2))
    with pytest.raises(ValueError, match=error):
        model.fit(IDS, IDS, verbose=0)


# The embeddings of the classifier are not tied to an output matrix, whose gradient would be dense.
@pytest.mark.slow_variants
@pytest.mark.parametrize("case", sorted(several_devices.CASES, key=lambda case: case != "classifier"))
def test_embedding_gradients_are_dense(case):
    """Keras optimizers square sparse gradients of a repeated row separately, instead of their sum."""
    tf = pytest.importorskip("tensorflow")
    model = several_devices.new(case, "sgd")
    _, inputs, labels, _ = several_devices.CASES[case]
    with tf.GradientTape() as tape:
        loss = model.compute_loss(inputs, labels, model(inputs, training=True))
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_weights])
    assert [type(each) for each in gradients if not isinstance(each, tf.Tensor)] == []


@pytest.mark.slow
def test_two_replicas_equal_one_device():
    code = """
        import keras
        import tensorflow as tf
        from tests.training import several_devices

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # a second one would use its keys of collectives
        # Without dropout, which replicas draw for themselves.
        several_devices.SIZES["dropout"] = 0.0
        for case in ("gpt", "packed gpt", "t5", "classifier"):
            for optimizer in several_devices.OPTIMIZERS:
                one = several_devices.trained(case, optimizer)
                with strategy.scope():
                    two = several_devices.trained(case, optimizer, replicas=2)
                found = several_devices.difference(one, two)
                print(case, optimizer, found)
                assert found < several_devices.BOUND, (case, optimizer, found)
        two.compile(keras.optimizers.SGD(), "mse", jit_compile=True)
        try:
            two.fit(several_devices.IDS, several_devices.IDS, verbose=0)
        except ValueError as error:
            assert "`jit_compile` must be False" in str(error), error
        else:
            raise AssertionError("XLA was not rejected")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=900)
