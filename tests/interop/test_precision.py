"""The precision of published weights: float32, float16, bfloat16, and int8 matrices."""

import gc
import tracemalloc

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, interop
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.interop import assignment
from keras_transformer.interop.architecture import Parameter
from keras_transformer.models import (
    BERT,
    GPT,
    T5,
    Llama,
    MaskedLanguageModel,
    SequenceClassifier,
    Transformer,
)
from keras_transformer.models.model import flatten_layers

safetensors = pytest.importorskip("safetensors.numpy")

IDS = np.random.default_rng(0).integers(4, 60, (2, 9)).astype("int32")
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 64, "hidden_dim": 128}
MODELS = {
    "gpt": lambda: GPT(300, **SIZES, max_length=32, end_id=3),
    "llama": lambda: Llama(300, **SIZES, num_kv_heads=1, end_id=3),
    "t5": lambda: T5(300, **SIZES, dropout=0.0),
    "transformer": lambda: Transformer(300, **SIZES, dropout=0.0),
    "bert": lambda: MaskedLanguageModel(BERT(300, **SIZES, max_length=32)),
    "classifier": lambda: SequenceClassifier(BERT(300, **SIZES, max_length=32), num_classes=3),
}
FLOATS = ("float32", "float16", "bfloat16")
slow = pytest.mark.slow_variants


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama of one block as it is published: its weights in bfloat16."""
    keras.utils.set_random_seed(0)
    model = Llama(300, **{**SIZES, "num_layers": 1}, num_kv_heads=1, end_id=3)
    folder = interop.to_hugging_face(model, tmp_path_factory.mktemp("models") / "llama")
    tensors = safetensors.load_file(folder / "model.safetensors")
    halves = {name: values.astype(ml_dtypes.bfloat16) for name, values in tensors.items()}
    safetensors.save_file(halves, folder / "model.safetensors")
    return folder


def logits(model):
    inputs = {"source_ids": IDS, "target_ids": IDS} if is_encoder_decoder(model) else IDS
    return ops.convert_to_numpy(ops.cast(model(inputs), "float32"))


def cosine(found, expected):
    """Return the lowest cosine of two vectors of logits at the same position."""
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return ((found * expected).sum(-1) / norms).min()


def weight_bytes(model):
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
    return sum(int(ops.size(weight)) * sizes[str(weight.dtype)] for weight in model.weights)


@pytest.mark.parametrize("precision", FLOATS)
def test_weights_are_stored_and_computed_in_the_precision(folder, precision):
    model = interop.from_hugging_face(folder, precision=precision)
    assert {str(weight.dtype) for weight in model.weights} == {precision}
    assert model.compute_dtype == precision
    assert cosine(logits(model), logits(interop.from_hugging_face(folder))) > 0.999


@pytest.mark.parametrize("precision", [*FLOATS, "int8"])
def test_large_tensors_are_read_in_blocks_without_change(folder, precision, monkeypatch):
    monkeypatch.setattr(assignment, "_BLOCK", 1000)
    in_blocks = interop.from_hugging_face(folder, precision=precision)
    monkeypatch.undo()
    whole = interop.from_hugging_face(folder, precision=precision)
    for found, expected in zip(in_blocks.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(found), ops.convert_to_numpy(expected))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's variables")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_operations_do_not_copy_loaded_weights(folder, precision, monkeypatch):
    monkeypatch.setattr(assignment, "_BLOCK", 1000)
    for weight in interop.from_hugging_face(folder, precision=precision).weights:
        reads = [weight.value.read_value() for _ in range(2)]
        addresses = {np.asarray(memoryview(read)).ctypes.data for read in reads}
        assert len(addresses) == 1, weight.path


@slow
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "bfloat16", "float16"])
def test_models_generate_and_are_saved_in_a_precision(folder, precision, tmp_path):
    model = interop.from_hugging_face(folder, precision=precision)
    for sampler in ("greedy", generation.Beam(2)):
        out = generation.generate(model, IDS, sampler, max_new_tokens=3)
        assert out.ids.shape == (2, 1, 3)
        assert np.isfinite(out.scores).all()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.dtype for weight in loaded.weights] == [weight.dtype for weight in model.weights]
    np.testing.assert_array_equal(logits(loaded), logits(model))


@pytest.mark.slow
def test_logits_are_float32_in_every_precision(folder):
    for options in ({"precision": "bfloat16"}, {"precision": "int8", "dtype": "bfloat16"}):
        assert interop.from_hugging_face(folder, **options)(IDS).dtype == "float32"


@slow
@pytest.mark.parametrize("name", MODELS)
def test_int8_weights_are_a_quarter_and_logits_close(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    expected, size = logits(model), weight_bytes(model)
    assignment.quantize_weights(model)
    assert weight_bytes(model) < 0.32 * size  # matrices of 64 rows have a scale for each column
    assert cosine(logits(model), expected) > 0.999
    matrices = [weight for weight in model.weights if len(weight.shape) == 2]
    assert {str(weight.dtype) for weight in matrices if min(weight.shape) >= 64} == {"int8"}


@slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", "float32"),
        ("llama", "bfloat16"),
        *((name, "float32") for name in ("gpt", "t5", "classifier")),
    ],
)
def test_int8_is_the_quantization_of_keras(name, dtype, tmp_path):
    """Only its weights: by default Keras quantizes activations too."""
    folder = interop.to_hugging_face(MODELS[name](), tmp_path / name)
    found = interop.from_hugging_face(folder, precision="int8", dtype=dtype)
    expected = interop.from_hugging_face(folder, dtype=dtype)
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    matrices = "embedding$|query|key|value|output|hidden|gate|head$|segments|pooler"
    expected.quantize("int8", config=config, filters=matrices)
    assert quantization_of(found) == quantization_of(expected)
    for weight, other in zip(found.weights, expected.weights, strict=True):
        assert (weight.dtype, weight.trainable) == (other.dtype, other.trainable)
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), ops.convert_to_numpy(other))


def test_quantization_does_not_search_all_objects_for_garbage(usual_collections, monkeypatch):
    """Keras collects garbage after each layer, which would take longer than all the rest."""
    model, frozen = MODELS["classifier"](), []
    count = len(gc.get_objects())
    monkeypatch.setattr(gc, "collect", lambda: frozen.append(gc.get_freeze_count()))
    assignment.quantize_weights(model)
    assert frozen
    assert min(frozen) > count // 2
    assert gc.get_freeze_count() < count // 2


def quantization_of(model):
    return [
        (layer.name, layer.dtype_policy.get_config(), getattr(layer, "inputs_quantizer", None))
        for layer in flatten_layers(model)
        if layer.quantization_mode is not None
    ]


def test_int8_matrices_never_have_values_in_floats(folder, monkeypatch):
    created = []
    add_weight = keras.layers.Layer.add_weight

    def record(*args, **kwargs):
        created.append(add_weight(*args, **kwargs))
        return created[-1]

    monkeypatch.setattr(keras.layers.Layer, "add_weight", record)
    model = interop.from_hugging_face(folder, precision="int8")
    assert len(created) == len(model.weights)
    assert {weight.dtype for weight in created if len(weight.shape) == 2} == {"int8"}


def test_a_tensor_is_quantized_with_few_values_in_floats(monkeypatch):
    monkeypatch.setattr(assignment, "_BLOCK", 2**14)
    layer = keras.layers.Dense(512, use_bias=False)
    model = keras.Sequential([keras.Input((512,)), layer])
    assignment.quantize_weights(model)
    parameter, scales = Parameter((layer.kernel,), transposed=True), assignment.scales_of(model)
    values = np.random.default_rng(0).normal(size=(512, 512)).astype("float32")
    tracemalloc.start()
    parameter.read(values, scales)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.75 * values.nbytes  # two copies in int8, and blocks
    restored = ops.convert_to_numpy(layer.kernel) / ops.convert_to_numpy(layer.kernel_scale)
    np.testing.assert_allclose(restored, values.T, atol=abs(values).max() / 127)
