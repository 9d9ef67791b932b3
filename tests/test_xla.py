"""Disable XLA by environment variable, and on devices on which it is known to fail."""

import logging

import keras
import numpy as np
import pytest

from keras_transformer import generation, models, ops, xla

on_tensorflow = pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="JAX always has XLA")
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8}


@pytest.fixture
def gpu(monkeypatch):
    """Return gpu(version, *capability), which simulates a TensorFlow version and a GPU's compute capability."""
    import tensorflow as tf

    def use(version, *capability):
        details = {"device_name": "NVIDIA GeForce RTX 5090", "compute_capability": capability}
        monkeypatch.setattr(tf, "__version__", version)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["/physical_device:GPU:0"])
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
        xla._is_known_to_fail.cache_clear()

    monkeypatch.delenv(xla.VARIABLE, raising=False)
    yield use
    xla._is_known_to_fail.cache_clear()


@on_tensorflow
@pytest.mark.parametrize(
    ("version", "capability", "enabled"),
    [
        ("2.21.0", (12, 0), False),
        ("2.20.0", (10, 0), False),
        ("2.21.0", (9, 0), True),
        ("2.21.0", (7, 5), True),
        ("2.22.0", (12, 0), True),
    ],
)
def test_xla_is_off_with_one_warning_on_devices_where_it_fails(version, capability, enabled, gpu, caplog):
    gpu(version, *capability)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        assert [xla.is_enabled(), xla.is_enabled()] == [enabled, enabled]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (not enabled)
    for message in messages:
        assert f"TensorFlow {version}" in message
        assert "RTX 5090 (compute capability {}.{})".format(*capability) in message
        assert "KERAS_TRANSFORMER_XLA=1" in message


@on_tensorflow
def test_the_environment_variable_overrides_the_device(gpu, monkeypatch, caplog):
    gpu("2.21.0", 12, 0)
    for setting, enabled in (("0", False), ("1", True)):
        monkeypatch.setenv(xla.VARIABLE, setting)
        assert xla.is_enabled() == enabled
    assert not caplog.records
    monkeypatch.setenv(xla.VARIABLE, "off")
    with pytest.raises(ValueError, match="`KERAS_TRANSFORMER_XLA` must be 0 or 1. Received: .*'off'"):
        xla.is_enabled()


@on_tensorflow
def test_generation_without_xla_gives_equal_ids_and_runs_no_xla_operation(random_transformer, monkeypatch):
    import tensorflow as tf

    model, sources = random_transformer(3), np.array([[5, 6, 3, 0]])
    expected = generation.Generator(model, max_new_tokens=4, jit_compile=False)(sources).ids
    compiled, make = [], tf.function

    def record(function, **options):
        compiled.append(options["jit_compile"])
        return make(function, **options)

    monkeypatch.setattr(tf, "function", record)
    monkeypatch.setenv(xla.VARIABLE, "0")
    np.testing.assert_array_equal(generation.Generator(model, max_new_tokens=4)(sources).ids, expected)
    assert compiled == [False]
    write = make(lambda tensor: ops.StaticCache().insert(tensor, tensor[:, :1], 1), autograph=False)
    graph = write.get_concrete_function(tf.TensorSpec((2, 4, 3))).graph
    assert not [node.type for node in graph.get_operations() if node.type.startswith("Xla")]


@on_tensorflow
def test_generators_without_xla_are_cached_apart(random_transformer, monkeypatch):
    import tensorflow as tf

    monkeypatch.setenv(xla.VARIABLE, "1")
    compiled, make = [], tf.function
    monkeypatch.setattr(
        tf,
        "function",
        lambda function, **options: (compiled.append(options["jit_compile"]), make(function, **options))[1],
    )
    model, sources = random_transformer(3), np.array([[5, 6, 3, 0]])
    expected = generation.generate(model, sources, max_new_tokens=4).ids
    for _ in range(2):
        with xla.off():
            np.testing.assert_array_equal(generation.generate(model, sources, max_new_tokens=4).ids, expected)
        generation.generate(model, sources, max_new_tokens=4)
    assert compiled == [True, False]


@on_tensorflow
def test_models_compile_without_xla_if_it_is_disabled(monkeypatch):
    assert models.Transformer(9, **SIZES).supports_jit
    monkeypatch.setenv(xla.VARIABLE, "0")
    model = models.Transformer(9, **SIZES)
    model.compile("adam", "mse")
    assert not model.jit_compile
    with pytest.warns(UserWarning, match="Model doesn't support `jit_compile=True`"):
        model.compile("adam", "mse", jit_compile=True)
    assert not model.jit_compile


@pytest.mark.backend_neutral
@pytest.mark.skipif(keras.config.backend() != "jax", reason="other backends have the switch")
def test_xla_cannot_be_disabled_on_jax(monkeypatch):
    monkeypatch.setenv(xla.VARIABLE, "0")
    assert xla.is_enabled()
