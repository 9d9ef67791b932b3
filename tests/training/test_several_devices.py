"""Training on several devices equals training on one."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import keras
import pytest

from keras_transformer import layers, models
from keras_transformer.training import layout_map
from tests.training import several_devices

MESH = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), devices=["cpu:0", "cpu:1"])


def run(code, devices=2):
    """Run code on JAX with several CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("case", several_devices.CASES)
def test_two_devices_equal_one(case):
    run(f"""
        from tests.training import several_devices
        for optimizer in several_devices.OPTIMIZERS:
            several_devices.check({case!r}, optimizer)
    """)


def test_every_model_is_tested():
    compared = {type(make()) for make, *_ in several_devices.CASES.values()}
    parts = {models.BERT, models.CausalLanguageModel, models.ModernBERT, models.SpeechEncoder}
    assert compared | parts == {getattr(models, name) for name in models.__all__}


def test_layouts_split_heads_hidden_units_and_vocabulary():
    found = layout_map(models.GPT(16, num_layers=1, num_heads=2, model_dim=8, max_length=4), MESH)
    assert {path: found[path].axes for path in found} == {
        "embedding/embedding/embeddings": ("model", None),
        **{f"block_0/self_attention/{name}/kernel": (None, "model") for name in ("query", "key", "value")},
        **{f"block_0/self_attention/{name}/bias": ("model",) for name in ("query", "key", "value")},
        "block_0/self_attention/output/kernel": ("model", None),
        "block_0/feed_forward/hidden/kernel": (None, "model"),
        "block_0/feed_forward/hidden/bias": ("model",),
        "block_0/feed_forward/output/kernel": ("model", None),
    }


def test_heads_that_cannot_be_split_are_replicated():
    attention = layers.MultiHeadAttention(2, 4, num_kv_heads=1, name="attention")
    model = keras.Sequential([keras.Input((3, 8)), attention])
    found = [path.split("attention/")[1] for path in layout_map(model, MESH)]
    assert found == ["query/kernel", "query/bias", "output/kernel"]


def test_meshes_without_a_split_are_rejected():
    model = models.GPT(15, num_layers=1, num_heads=3, model_dim=9, hidden_dim=15, max_length=4)
    with pytest.raises(ValueError, match='`mesh` must have an axis "model" whose size divides .* size=2'):
        layout_map(model, MESH)
    batches = keras.distribution.DeviceMesh((2,), ("batch",), devices=["cpu:0", "cpu:1"])
    with pytest.raises(ValueError, match='`mesh` must be a DeviceMesh with an axis "model"'):
        layout_map(model, batches)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("orbax") is None, reason="needs orbax-checkpoint")
def test_sharded_checkpoints_resume_on_any_number_of_devices(tmp_path):
    folder = str(tmp_path / "checkpoints")
    run(f"from tests.training import several_devices; several_devices.save_sharded({folder!r})")
    for devices, bound in ((2, 0), (1, several_devices.BOUND)):
        code = f"several_devices.resume_sharded({folder!r}, {devices}, {bound})"
        run(f"from tests.training import several_devices; {code}", devices)
