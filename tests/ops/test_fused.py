"""The fused kernel: the laws of all kernels with an XLA implementation, and its choice on GPUs."""

import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import models
from keras_transformer.ops import attention, dense, dispatch, explain, fused, scores
from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.relations import Bipartite, Causal, Full, PrefixLM, SlidingWindow

pytestmark = pytest.mark.backend_neutral
on_jax = pytest.mark.skipif(keras.config.backend() != "jax", reason="fused attention is JAX's")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def tensors(queries=12, keys=12, heads=4, kv_heads=2, size=8, batch=3):
    shapes = (batch, queries, heads, size), (batch, keys, kv_heads, size), (batch, keys, kv_heads, size)
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


@pytest.fixture
def on_any_device(monkeypatch):
    """Use the XLA implementation of the same operation, which needs no GPU."""
    monkeypatch.setattr(fused, "IMPLEMENTATION", "xla")


@pytest.fixture
def on_gpu(monkeypatch):
    """Return on_gpu(name, capability), which simulates a JAX GPU."""

    def use(name="NVIDIA A100-SXM4-40GB", capability="8.0", platform="gpu"):
        device = types.SimpleNamespace(platform=platform, device_kind=name, compute_capability=capability)
        monkeypatch.setattr(fused, "_device", lambda: device)
        monkeypatch.setattr(keras.config, "backend", lambda: "jax")

    return use


# The relation, the lengths of queries and keys, and the options.
CASES = {
    "full": (Full(), (12, 12), {}),
    "cross": (Bipartite(), (7, 12), {}),
    "causal": (Causal(), (12, 12), {}),
    "window": (SlidingWindow(3), (12, 12), {}),
    "window of one": (SlidingWindow(0), (12, 12), {}),
    "window to the start": (SlidingWindow(None), (12, 12), {}),
    "wide window": (SlidingWindow(50), (12, 12), {}),
    "window to both ends": (SlidingWindow(None, None), (12, 12), {}),
    "scale": (Causal(), (12, 12), {"score": scores.ScaledDotProduct(0.7)}),
    "full, lengths": (Full(), (12, 12), {"key_lengths": np.array([12, 5, 0])}),
    "cross, lengths": (Bipartite(), (7, 12), {"key_lengths": np.array([0, 12, 1])}),
    "causal, lengths": (Causal(), (12, 12), {"key_lengths": np.array([9, 0, 12])}),
}


@on_jax
class TestLaws:
    """Half precision is tested only in bfloat16: JAX has no float16 matrix multiplications on a CPU."""

    @pytest.mark.parametrize("case", CASES)
    def test_outputs_and_gradients_equal_dense(self, case, on_any_device):
        relation, (queries, keys), options = CASES[case]
        score = options.get("score", scores.ScaledDotProduct())
        lengths = options.get("key_lengths")
        given = tensors(queries, keys)

        def run(attend):
            return lambda *tensors: attend(
                AttentionInputs(*tensors, relation, score, key_lengths=lengths).with_padding_mask()
                if attend is dense.attend
                else AttentionInputs(*tensors, relation, score, key_lengths=lengths)
            )

        found, expected = (results(run(attend), given) for attend in (fused.attend, dense.attend))
        for actual, reference in zip(found, expected, strict=True):
            assert np.isfinite(actual).all()
            assert (actual[reference == 0] == 0).all()
            np.testing.assert_allclose(actual, reference, rtol=2e-5, atol=2e-6)

    @pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=str)
    def test_bfloat16_with_grouped_heads_equals_float32(self, heads, on_any_device):
        given = [
            np.asarray(ops.cast(each, "bfloat16")) for each in tensors(heads=heads[0], kv_heads=heads[1])
        ]
        lengths = np.array([9, 0, 12])

        def run(kernel):
            return lambda *tensors: attention(*tensors, "causal", key_lengths=lengths, kernel=kernel)

        found = results(run("fused"), given)
        expected = results(run("dense"), [each.astype("float32") for each in given])
        for actual, reference in zip(found, expected, strict=True):
            assert (actual[reference == 0] == 0).all()
            error = ((actual - reference) ** 2).mean() ** 0.5
            assert error <= 4 * 2.0**-8 * (reference**2).mean() ** 0.5

    @pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
    def test_padding_does_not_change_the_output(self, left, on_any_device):
        # Lengths are never derived from a mask, as a left-padding mask has the same sum.
        query, key, value = (ops.cast(each, "bfloat16") for each in tensors())
        real = np.arange(12) >= 4 if left else np.arange(12) < 8
        options = {"padding_mask": np.tile(real, (3, 1))} if left else {"key_lengths": np.full(3, 8)}
        assert explain(query, key, value, **options).kernel == ("dense" if left else "fused")
        changed = ops.where(real[:, None, None], key, 9 * ops.ones_like(key))
        found, expected = (attention(query, each, value, **options) for each in (changed, key))
        np.testing.assert_array_equal(found, expected)

    def test_functional_models_consist_of_keras_operations(self, on_any_device):
        x = keras.Input((12, 4, 8), dtype="bfloat16")
        y = attention(x, x, x, "causal", kernel="fused")
        assert (y.shape, y.dtype) == (x.shape, x.dtype)


def results(function, given):
    """Return the output and the gradients of its product with fixed numbers, as float32."""
    import jax

    @jax.jit
    def run(*tensors):
        output, back = jax.vjp(function, *tensors)
        upstream = jax.numpy.cos(jax.numpy.arange(output.size)).reshape(output.shape)
        return output, *back(upstream.astype(output.dtype))

    return [np.asarray(each, "float32") for each in run(*given)]


IDS = np.where(np.arange(6) < [[6], [2], [0]], np.arange(4, 22).reshape(3, 6), 0).astype("int32")
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 16, "dropout": 0.0}
# The model, its inputs, and its number of attention layers.
MODELS = {
    "Transformer": (lambda **options: models.Transformer(30, **SIZES, **options), ("source", "target"), 3),
    "GPT": (lambda **options: models.GPT(30, **SIZES, **options), ("token",), 1),
    "BERT": (lambda **options: models.BERT(30, **SIZES, pooler=False, **options), ("token",), 1),
}


def with_lengths(sides):
    names = [f"{side}_lengths" if side != "token" else "lengths" for side in sides]
    return {f"{side}_ids": IDS for side in sides}, dict.fromkeys(names, (IDS > 0).sum(1).astype("int32"))


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", MODELS)
def test_lengths_in_a_model_equal_the_padding_mask(name, modes):
    make, sides, _ = MODELS[name]
    inputs, lengths = with_lengths(sides)
    model = make()
    function = modes["xla" if keras.config.backend() == "jax" else "eager"](lambda inputs: model(inputs))
    found, expected = function({**inputs, **lengths}), function(inputs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@on_jax
@pytest.mark.parametrize("name", MODELS)
def test_models_use_the_fused_kernel_if_inputs_have_lengths(name, on_any_device, monkeypatch):
    import jax

    make, sides, count = MODELS[name]
    used = []
    monkeypatch.setitem(dispatch._ATTEND, "fused", lambda inputs: used.append(inputs) or inputs.query)
    model = make(dtype="mixed_bfloat16")
    inputs, lengths = with_lengths(sides)
    jax.eval_shape(lambda inputs: model(inputs), inputs)
    assert len(used) == 0
    jax.eval_shape(lambda inputs: model(inputs), {**inputs, **lengths})
    assert len(used) == count
    assert all(each.key_lengths is not None for each in used)


@on_jax
def test_a_gpt_without_padding_uses_the_fused_kernel_without_lengths(on_any_device, monkeypatch):
    import jax

    used = []
    monkeypatch.setitem(dispatch._ATTEND, "fused", lambda inputs: used.append(inputs) or inputs.query)
    model = MODELS["GPT"][0](dtype="mixed_bfloat16", pad_id=None)
    jax.eval_shape(lambda ids: model(ids), IDS)
    assert [each.key_lengths for each in used] == [None]


UNSUPPORTED = {
    "relation": ({"relation": PrefixLM(3)}, "neither full, causal nor a window"),
    "right window": ({"relation": SlidingWindow(3, 1)}, "neither full, causal nor a window"),
    "padded window": (
        {"relation": SlidingWindow(3), "key_lengths": np.full(3, 9)},
        "`key_lengths` is passed for a window",
    ),
    "soft cap": ({"score": scores.ScaledDotProduct(soft_cap=9.0)}, "soft cap"),
    "score": ({"score": "cosine"}, "not a scaled dot product"),
    "bias": ({"bias": np.zeros((12, 12), "float32")}, "`bias` is passed"),
    "mask": ({"mask": np.ones((12, 12), bool)}, "`mask` is passed"),
    "padding mask": ({"padding_mask": np.ones((3, 12), bool)}, "`padding_mask` is passed"),
    "packing": ({"segment_ids": np.zeros((3, 12), "int32")}, "`segment_ids` is passed"),
    "edges": ({"edges": np.zeros((3, 2, 2), "int32")}, "`edges` is passed"),
    "positions": (
        {"query_positions": np.arange(12), "key_positions": np.arange(12)},
        "`query_positions` is passed; `key_positions` is passed",
    ),
    "dropout": ({"dropout": 0.1, "seed": np.array([1, 2])}, "weights are dropped"),
    "float32": ({"dtype": "float32"}, "the dtype is float32, neither float16 nor bfloat16"),
    "head size": ({"size": 136}, "the head size 136 is not a multiple of 8 up to 128"),
    "odd head size": ({"size": 12}, "the head size 12 is not"),
    "value size": ({"value_size": 16}, "the value size 16 is not the head size 8"),
    "unequal lengths": ({"relation": Causal(), "keys": 14}, "unequal numbers of queries and keys"),
    "one query": ({"queries": 1}, "fewer than two queries or keys"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_each_unsatisfied_condition_is_named(case, on_gpu):
    options, message = UNSUPPORTED[case]
    options = {"queries": 12, "keys": 12, "size": 8, "value_size": None, "dtype": "float16", **options}
    queries, keys, size, value_size, dtype = (
        options.pop(name) for name in ("queries", "keys", "size", "value_size", "dtype")
    )
    shapes = (3, queries, 4, size), (3, keys, 2, size), (3, keys, 2, value_size or size)
    inputs = [keras.KerasTensor(shape, dtype) for shape in shapes]
    on_gpu()
    found = explain(*inputs, **options)
    assert found.kernel != "fused"
    assert message in found.unsupported["fused"]
    with pytest.raises(ValueError, match="`kernel` .*kernel='fused', but") as error:
        explain(*inputs, **options, kernel="fused")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({}, None),
        ({"name": "NVIDIA L4", "capability": "8.9"}, None),
        ({"name": "NVIDIA B200", "capability": "10.0", "platform": "cuda"}, None),
        ({"name": "Tesla T4", "capability": "7.5"}, "Tesla T4 has compute capability 7.5, lower than Ampere"),
        ({"name": "AMD Instinct MI250X", "capability": "gfx90a"}, "AMD Instinct MI250X, not an NVIDIA GPU"),
        ({"name": "cpu", "capability": None, "platform": "cpu"}, "the device is a CPU, not an NVIDIA GPU"),
    ],
    ids=lambda value: value.get("name", "A100") if isinstance(value, dict) else "",
)
def test_auto_chooses_the_fused_kernel_on_nvidia_gpus_since_ampere(device, reason, on_gpu):
    x = keras.KerasTensor((2, 64, 4, 64), "float16")
    on_gpu(**device)
    found = explain(x, x, x, "causal")
    if reason is None:
        assert (found.kernel, "fused" in found.unsupported) == ("fused", False)
        assert device.get("name", "A100") in found.reason
        assert found.bytes < explain(x, x, x, "causal", kernel="dense").bytes
    else:
        assert found.kernel == "dense"
        assert reason in found.unsupported["fused"]


@on_jax
def test_the_kernel_choice_uses_the_device_of_keras():
    with keras.device("cpu:0"):
        assert fused._device().platform == "cpu"
    assert fused._device().platform in ("cpu", "gpu")


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="TensorFlow has none")
def test_tensorflow_has_no_fused_attention():
    x = keras.KerasTensor((2, 64, 4, 64), "float16")
    assert explain(x, x, x).unsupported["fused"] == (
        "the backend is tensorflow: only JAX has fused attention"
    )


@pytest.mark.parametrize("kernel", ["dense", "chunked", "banded", "linear"])
def test_key_lengths_equal_the_padding_mask_in_every_kernel(kernel, small_blocks, modes):
    given = tensors(37, 37)
    relation = SlidingWindow(5) if kernel == "banded" else None
    options = {"relation": relation, "kernel": kernel, "score": "linear" if kernel == "linear" else None}
    lengths = np.array([37, 9, 0])
    right = np.arange(37) < lengths[:, None]
    other = np.random.default_rng(3).random((3, 37)) < 0.8

    @modes["xla" if keras.config.backend() == "jax" else "eager"]
    def both(query, key, value):
        found = attention(query, key, value, key_lengths=lengths, padding_mask=other, **options)
        return found, attention(query, key, value, padding_mask=right & other, **options)

    found, expected = both(*given)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.ones(2, int), r"`key_lengths` must be \(B\).*\(2,\)"),
        (np.ones(3), "`key_lengths` must be integers"),
    ],
    ids=["shape", "dtype"],
)
def test_invalid_lengths_are_rejected(lengths, message):
    x = normal(3, 5, 2, 8)
    with pytest.raises(ValueError, match=message):
        attention(x, x, x, key_lengths=lengths)
    assert AttentionInputs(x, x, x, Full(), scores.get(None)).key_lengths is None
