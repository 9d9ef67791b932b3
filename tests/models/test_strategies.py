"""Strategies of tf.distribute that fail are refused before training; the others equal one device."""

import subprocess
import sys
import textwrap
import types

import keras
import numpy as np
import pytest

from keras_transformer import models

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
def test_strategies_that_fail_are_refused(monkeypatch, strategy, options, error):
    model = models.GPT(8, 1, 1, 4, max_length=4, dtype=options.pop("dtype", None))
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=options.pop("steps", None))
    model.compile(optimizer, "mse", **options)
    monkeypatch.setattr(type(model), "distribute_strategy", strategy(num_replicas_in_sync=2))
    with pytest.raises(ValueError, match=error):
        model.fit(IDS, IDS, verbose=0)


@pytest.mark.slow
def test_two_replicas_equal_one_device():
    code = """
        import keras
        import tensorflow as tf
        from tests.training import several_devices

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        # Without dropout, which replicas draw for themselves. Keras' Adam divides the gradients of tables that are read
        # by rows by a variance of each replica's rows, so that learned positions differ with it.
        several_devices.SIZES["dropout"] = 0.0
        one = several_devices.trained("gpt", "sgd")
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            two = several_devices.trained("gpt", "sgd", replicas=2)
        found = several_devices.difference(one, two)
        assert found < 1e-6, found
        two.compile(keras.optimizers.SGD(), "mse", jit_compile=True)
        try:
            two.fit(several_devices.IDS, several_devices.IDS, verbose=0)
        except ValueError as error:
            assert "`jit_compile` must be False" in str(error), error
        else:
            raise AssertionError("XLA was not refused")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=900)
