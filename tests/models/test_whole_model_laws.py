"""Properties of every model: LoRA and int8 of Keras, mixed precision, XLA.

Exports of Keras and summaries too. Configurations and files of each are tested beside the model.
"""

import keras
import numpy as np
import pytest

from keras_transformer import models
from keras_transformer.models.base import flatten_layers

IDS = np.array([[5, 6, 7, 3, 0], [8, 9, 10, 4, 3], [0, 0, 0, 0, 0]])
PAIRS = {"source_ids": IDS, "target_ids": np.array([[2, 9, 4], [2, 7, 0], [2, 5, 6]])}
SEGMENTS = {"token_ids": IDS, "segment_ids": np.array([[0, 0, 1, 1, 0]] * 3)}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype("float32")
NODES = np.random.default_rng(1).normal(size=(3, 6, 16)).astype("float32")
EDGES = np.array([[[0, 1], [1, 2], [3, 3], [-1, -1]]] * 3)  # 4 and 5 are isolated
GRAPHS = {"nodes": NODES, "edges": EDGES}

ANSWERS = np.stack([IDS, IDS[::-1]], axis=1)  # two sequences for each example

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "dropout": 0.0}


def encoder(dtype):
    return models.BERT(16, **SIZES, max_length=8, dtype=dtype)


def decoder(dtype):
    return models.GPT(13, **SIZES, max_length=8, dtype=dtype).resize_token_embeddings(16)


def transformer(dtype):
    return models.Transformer(16, **SIZES, dtype=dtype)


V1_1 = {"activation": "geglu_tanh", "tied": False}
# Makers of models of a dtype policy, and inputs with padding, rows of nothing else among them.
CASES = {
    "transformer": (transformer, PAIRS),
    "gpt": (lambda dtype: models.GPT(16, **SIZES, max_length=8, dtype=dtype), IDS),
    "gpt rotary": (lambda dtype: models.GPT(16, **SIZES, position_encoding="rotary", dtype=dtype), IDS),
    "llama": (lambda dtype: models.Llama(16, **SIZES, num_kv_heads=1, key_dim=6, pad_id=0, dtype=dtype), IDS),
    "gpt classifier": (lambda dtype: models.GPTClassifier(decoder(dtype), 2, dtype=dtype), IDS),
    "bert pre-training": (lambda dtype: models.Pretraining(encoder(dtype), dtype=dtype), SEGMENTS),
    "bert classifier": (lambda dtype: models.SequenceClassifier(encoder(dtype), 3, dtype=dtype), SEGMENTS),
    "t5": (lambda dtype: models.T5(16, **SIZES, key_dim=8, num_decoder_layers=2, dtype=dtype), PAIRS),
    "t5 v1.1": (lambda dtype: models.T5(16, **SIZES, key_dim=8, **V1_1, dtype=dtype), PAIRS),
    "vit": (lambda dtype: models.ViT(8, 4, num_classes=3, **SIZES, dtype=dtype), IMAGES),
    "gat": (lambda dtype: models.GAT(16, 3, (2, 1), 8, dropout=0.0, dtype=dtype), GRAPHS),
    "unlimiformer": (
        lambda dtype: models.Unlimiformer(transformer(dtype), top_k=2, chunk_length=4),
        PAIRS,
    ),
}
# Models whose layers are tested with those above: their inputs and outputs differ.
HEADS = {
    "bert": (encoder, SEGMENTS),
    "bert masked": (lambda dtype: models.MaskedLanguageModel(encoder(dtype)), SEGMENTS),
    "bert tokens": (lambda dtype: models.TokenClassifier(encoder(dtype), 3), SEGMENTS),
    "bert sentences": (lambda dtype: models.SentenceEncoder(encoder(dtype), "first"), ANSWERS),
    "bert spans": (lambda dtype: models.SpanClassifier(encoder(dtype)), SEGMENTS),
    "gpt pairs": (lambda dtype: models.GPTClassifier(decoder(dtype), 2, symmetric=True), ANSWERS),
    "gpt choices": (lambda dtype: models.GPTMultipleChoice(decoder(dtype)), ANSWERS),
    "gpt without padding id": (
        lambda dtype: models.GPT(16, **SIZES, pad_id=None, max_length=8, dtype=dtype),
        {"token_ids": IDS, "padding_mask": IDS != 0},
    ),
}
# On JAX every new shape compiles for seconds: one case of each law runs there.
SLOW = {
    "gpt rotary",
    "llama",
    "gpt classifier",
    "bert pre-training",
    "t5 v1.1",
    "unlimiformer",
}  # whose layers others have too


def of_each(slow=()):
    def markers(name):
        neutral = [pytest.mark.backend_neutral] if name == "gpt" else []
        return [*neutral, pytest.mark.slow] if name in slow else neutral

    return pytest.mark.parametrize("name", [pytest.param(name, marks=markers(name)) for name in CASES])


each = of_each()


def tiny(name, dtype="float32"):
    """The model with every weight, biases too, random."""
    model = {**CASES, **HEADS}[name][0](dtype)
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape) * 0.3)
    return model


def outputs(model, inputs, **options):
    return [keras.ops.convert_to_numpy(each) for each in keras.tree.flatten(model(inputs, **options))]


def layers(model, method):
    """All layers, at any depth, that have the method and weights."""
    return [
        layer
        for layer in flatten_layers(model)
        if isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense | keras.layers.Embedding)
        and hasattr(layer, method)
    ]


def size(weights):
    return sum(int(np.prod(weight.shape)) for weight in weights)


@pytest.mark.slow_variants
@of_each(SLOW)
def test_lora_starts_as_identity_and_trains_few_weights(name, tmp_path):
    model, inputs = tiny(name), CASES[name][1]
    before, parameters = outputs(model, inputs), size(model.trainable_weights)
    adapted = layers(model, "enable_lora")
    assert len(adapted) >= 2
    for layer in adapted:
        layer.enable_lora(1)
    for found, expected in zip(outputs(model, inputs), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert size(model.trainable_weights) < parameters / 2
    frozen = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.non_trainable_weights}
    adapters = [weight for weight in model.trainable_weights if weight.name.startswith("lora_")]
    learning = [
        weight for weight in adapters if weight.name.endswith("_b")
    ]  # the others of zero times something
    assert len(learning) == len(adapters) / 2 == len(adapted)
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=keras.backend.backend() == "tensorflow")
    model.train_on_batch(inputs, keras.tree.map_structure(keras.ops.ones_like, model(inputs)))
    assert all(np.abs(keras.ops.convert_to_numpy(weight)).max() > 0 for weight in learning)
    for weight in model.non_trainable_weights:
        if weight.path in frozen:
            np.testing.assert_array_equal(weight, frozen[weight.path])
    after = outputs(model, inputs)
    assert not all(np.allclose(a, b, atol=1e-5) for a, b in zip(after, before, strict=True))
    model.save(tmp_path / "model.keras")  # with what was learned added to the weights
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    for found, expected in zip(outputs(loaded, inputs), after, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# Quantizing is slow: the model with the fewest weights every day.
SLOW_TO_QUANTIZE = set(CASES) - {"gat"}


@of_each(SLOW_TO_QUANTIZE)
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_int8_is_close_and_survives_a_file(name, tmp_path):
    model, inputs = tiny(name), CASES[name][1]
    before = outputs(model, inputs)
    model.quantize("int8")
    assert any(variable.dtype == "int8" for variable in model.variables)
    for found, expected in zip(outputs(model, inputs), before, strict=True):
        assert not np.array_equal(found, expected)
        np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert [each.dtype for each in loaded.variables] == [each.dtype for each in model.variables]
    for found, expected in zip(outputs(loaded, inputs), outputs(model, inputs), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow_variants
@each
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_is_close_and_returns_float32(name, policy):
    inputs = CASES[name][1]
    expected, found = outputs(tiny(name), inputs), outputs(tiny(name, policy), inputs)
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == "float32"
        np.testing.assert_allclose(ours, exact, atol=0.1 * np.abs(exact).max())  # so none is infinite or NaN


@pytest.mark.slow_variants
@each
def test_summary_shows_every_parameter(name):
    model, lines = tiny(name), []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    text = "\n".join(lines)
    assert f"Total params: {model.count_params():,}" in text
    assert "?" not in text  # every layer has an output shape
    assert "unbuilt" not in text


EXPORTS = [
    pytest.param(name, trained, marks=[] if (name, trained) == ("gat", False) else pytest.mark.slow)
    for name in {**CASES, **HEADS}
    for trained in (False, True)
]


@pytest.mark.parametrize(("name", "trained"), EXPORTS)
def test_exports_of_keras_equal_the_model(name, trained, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    model, inputs = tiny(name), {**CASES, **HEADS}[name][1]
    signature = model.input_signature()
    if isinstance(signature, dict):
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        inputs = {key: inputs[key].astype(spec.dtype) for key, spec in signature.items()}
    if trained:
        model.compile("sgd", "mse")
        model.fit(inputs, keras.tree.map_structure(keras.ops.ones_like, model(inputs)), verbose=0)
    model.export(tmp_path / "export", verbose=False)
    loaded = tensorflow.saved_model.load(tmp_path / "export")
    for found, expected in zip(keras.tree.flatten(loaded.serve(inputs)), outputs(model, inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# Keras patches tf2onnx for NumPy 2.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
@pytest.mark.parametrize("name", ["transformer", "gat"])
def test_onnx_of_keras_equals_the_model(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = tiny(name), CASES[name][1]
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    feed = {key: inputs[key].astype(spec.dtype) for key, spec in model.input_signature().items()}
    np.testing.assert_allclose(session.run(None, feed)[0], outputs(model, inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
def test_onnx_of_keras_without_a_form_is_refused(tmp_path):
    """Keras writes a file that ONNX Runtime cannot load: exact GELU becomes an operation that ONNX lacks."""
    pytest.importorskip("tf2onnx")
    with pytest.raises(ValueError, match=r"kt\.export\.onnx_model.*Received: Erfc"):
        tiny("vit").export(tmp_path / "model.onnx", format="onnx", verbose=False)
    assert not (tmp_path / "model.onnx").exists()


@each
def test_every_layer_is_built_with_its_model(name):
    """So that it can be summed up, quantised and given to LoRA before its first call."""
    assert [layer.name for layer in flatten_layers(tiny(name)) if not layer.built] == []


@pytest.mark.slow
@each
def test_graph_and_xla_equal_eager(name, modes):
    model, inputs = tiny(name), CASES[name][1]
    inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
    expected = outputs(model, inputs)
    for mode, wrap in modes.items():
        found = keras.tree.flatten(wrap(model)(inputs))
        for ours, eager in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, eager, rtol=1e-4, atol=1e-4, err_msg=mode)
