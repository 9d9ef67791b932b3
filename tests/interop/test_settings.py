"""Every setting of a folder is applied, known to change no output, or refused or reported by name.

`benchmarks/parity/settings_of_folders.py` writes the values of `transformers` in `settings`.
"""

import functools
import json
import pathlib
import warnings

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_transformer import interop
from keras_transformer.interop import assignment, settings
from keras_transformer.interop.hugging_face import ALL
from keras_transformer.interop.tensors import tensors_of
from keras_transformer.models import (
    BERT,
    GPT,
    T5,
    Llama,
    MaskedLanguageModel,
    ModernBERT,
    Pretraining,
    SequenceClassifier,
    TokenClassifier,
    ViT,
)
from keras_transformer.models.model import flatten_layers
from tests import arrays
from tests.random_weights import randomise

safetensors = pytest.importorskip("safetensors.numpy")

VALUES = pathlib.Path(__file__).parent / "settings"
KEYS = json.loads((VALUES / "keys.json").read_text())
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}
IDS = np.array([[5, 6, 7, 1, 9], [8, 3, 4, 2, 2]])


randomised = functools.partial(randomise, seed=1)


def change_config(folder, *removed, **changes):
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))


def change_weights(folder, change):
    tensors = change({name: tensor.read() for name, tensor in tensors_of(folder).items()})
    tensors = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    safetensors.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def bert(tmp_path):
    """Return bert(make), which writes the folder of a BERT with a head."""

    def write(make=MaskedLanguageModel, **arguments):
        encoder = BERT(20, **SIZES, max_length=16, **arguments)
        model = randomised(make(encoder))
        return model, interop.to_hugging_face(model, tmp_path / "bert")

    return write


@pytest.mark.parametrize("model_type", KEYS)
def test_every_key_that_transformers_writes_is_known(model_type, tmp_path):
    read = set().union(*(each.keys for each in ALL if each.model_type == model_type))
    config = {"model_type": model_type, **dict.fromkeys(set(KEYS[model_type]) - {"model_type"}, 0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.warn_of_unknown(tmp_path, config, read)
    both = read & settings.without_effect(model_type)
    assert not both, "a key that is read has an effect"


def test_unknown_keys_are_reported_once_by_name(bert):
    model, folder = bert()
    change_config(folder, embedding_multiplier=2.0, gradient_checkpointing=False, _private=1, nothing=None)
    with pytest.warns(UserWarning, match=r"not applied: embedding_multiplier=2\.0$") as found:
        again = interop.from_hugging_face(folder)
    assert len(found) == 1
    np.testing.assert_array_equal(again(IDS), model(IDS))


# Of weights in int8, integers and scales.


@pytest.mark.slow_variants
@pytest.mark.parametrize("make", [lambda: MaskedLanguageModel(BERT(40, **SIZES, max_length=16)),
                                  lambda: GPT(40, **SIZES, max_length=16, end_id=3),
                                  lambda: ViT(8, 4, num_classes=3, **SIZES)],
                         ids=["BERT", "GPT", "ViT"])  # fmt: skip
def test_int8_weights_are_dequantized_when_they_are_written(make, tmp_path):
    model = randomised(make())
    inputs = np.random.default_rng(0).uniform(0, 255, (2, 8, 8, 3)) if isinstance(model, ViT) else IDS
    assignment.quantize_weights(model)
    expected = ops.convert_to_numpy(model(inputs))
    folder = interop.to_hugging_face(model, tmp_path / "model")
    tensors = safetensors.load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype("float32")}
    np.testing.assert_allclose(interop.from_hugging_face(folder)(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_variants
@pytest.mark.parametrize("block_size", [4, -1], ids=["groups", "channels"])
@pytest.mark.parametrize("make", [lambda: Llama(40, **SIZES, end_id=3, tied=False),
                                  lambda: MaskedLanguageModel(BERT(40, **SIZES, max_length=16)),
                                  lambda: T5(40, **SIZES, pad_id=0, start_id=0, end_id=3, tied=False)],
                         ids=["Llama", "BERT", "T5"])  # fmt: skip
def test_int4_weights_are_dequantized_when_they_are_written(make, block_size, tmp_path):
    model = randomised(make())
    inputs = {"source_ids": IDS, "target_ids": IDS} if isinstance(model, T5) else IDS
    config = keras.quantizers.Int4QuantizationConfig(block_size=block_size, activation_quantizer=None)
    for layer in flatten_layers(model):
        if isinstance(layer, keras.layers.Dense | keras.layers.Embedding):
            mode = "int8" if layer.name == "query" else "int4"
            layer.quantize(mode, config=assignment.QUANTIZATION if mode == "int8" else config)
    expected = ops.convert_to_numpy(model(inputs))
    folder = interop.to_hugging_face(model, tmp_path / "model")
    np.testing.assert_allclose(interop.from_hugging_face(folder)(inputs), expected, rtol=1e-4, atol=1e-5)


def test_matrices_in_another_quantization_are_rejected(tmp_path):
    model = GPT(40, **SIZES, max_length=16, end_id=3)
    model.quantize("float8", filters="hidden")
    with pytest.raises(
        ValueError, match=r"or int4 without adapters\. Received: the layer .*hidden in float8"
    ):
        interop.to_hugging_face(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_fp8_weights_with_scales_of_blocks_equal_transformers():
    model, expected = interop.from_hugging_face(VALUES / "fp8"), arrays.load(VALUES / "fp8" / "expected.npz")
    np.testing.assert_allclose(model(expected["ids"]), expected["outputs"], rtol=1e-4, atol=1e-5)


def quantized(values, config):
    """Return the tensors of a matrix (6, 10), and the values that they stand for."""
    match config:
        case {"load_in_8bit": True}:
            scale = np.abs(values).max(1)
            integers = np.round(values / scale[:, None] * 127).astype("int8")
            return {"weight": integers, "SCB": scale, "weight_format": np.zeros((), "uint8")}, (
                integers * (scale[:, None] / 127)
            )
        case {"format": "int-quantized"}:
            scale = (np.abs(values).max(1, keepdims=True) / 127).astype("float32")
            integers = np.round(values / scale).astype("int8")
            return {"weight": integers, "weight_scale": scale}, integers * scale
        case {"quant_method": "fbgemm_fp8"}:
            scale = (np.abs(values).max(1, keepdims=True) / 448).astype("float32")
            floats = (values / scale).astype(ml_dtypes.float8_e4m3fn)
            return {"weight": floats, "weight_scale": scale, "input_scale_ub": np.float32([1200])}, (
                floats.astype("float32") * scale
            )
        case {"format": "float-quantized"}:
            scale, floats = np.float32([0.25]), (values / 0.25).astype(ml_dtypes.float8_e4m3fn)
            return {"weight": floats, "weight_scale": scale, "input_scale": scale}, (
                floats.astype("float32") * 0.25
            )
    block = np.float32([[1, 2], [3, 4]])  # of 4 rows and 8 columns, the last of fewer
    scale = block.repeat(4, 0)[:6].repeat(8, 1)[:, :10]
    floats = (values / scale).astype(ml_dtypes.float8_e4m3fn)
    return {"weight": floats, "weight_scale_inv": block}, floats.astype("float32") * scale


QUANTIZED = [
    {"quant_method": "fp8", "weight_block_size": [4, 8]},
    {"quant_method": "fbgemm_fp8"},
    {"quant_method": "compressed-tensors", "format": "float-quantized"},
    {"quant_method": "compressed-tensors", "format": "int-quantized"},
    {"quant_method": "bitsandbytes", "load_in_8bit": True},
]


@pytest.mark.slow_variants
@pytest.mark.parametrize("config", QUANTIZED, ids=lambda config: "-".join(map(str, config.values())))
def test_quantized_weights_with_a_scale_beside_them_are_dequantized(config, tmp_path):
    model = randomised(TokenClassifier(BERT(20, **{**SIZES, "model_dim": 10}, max_length=16), 6))
    folder = interop.to_hugging_face(model, tmp_path / "model")
    values = np.ascontiguousarray(ops.convert_to_numpy(model.head.kernel).T)
    tensors, expected = quantized(values, config)

    def change(others):
        return {**others, **{f"classifier.{name}": tensor for name, tensor in tensors.items()}}

    change_weights(folder, change)
    with pytest.raises(ValueError, match=r"classifier\.weight of int8 without a scale|unknown: classifier\."):
        interop.from_hugging_face(folder)
    change_config(folder, quantization_config=config)
    found = interop.from_hugging_face(folder)
    np.testing.assert_allclose(ops.convert_to_numpy(found.head.kernel).T, expected, rtol=1e-6)
    change_weights(
        folder, lambda others: {k: v for k, v in others.items() if k[-5:] not in ("scale", "e_inv", "r.SCB")}
    )
    with pytest.raises(ValueError, match=r"must have a scale classifier\..* Received: none"):
        interop.from_hugging_face(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method='gptq', bits=4"),
        ({"quant_method": "awq", "bits": 4}, "quant_method='awq'"),
        ({"quant_method": "mxfp4"}, "quant_method='mxfp4'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes', load_in_4bit=True"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "format='pack-quantized'"),
        ("int8", "quant_method='int8'"),
    ],
    ids=str,
)
def test_other_quantizations_are_rejected_by_name(bert, config, message):
    _, folder = bert()
    change_config(folder, quantization_config=config)
    with pytest.raises(ValueError, match=rf"one with a scale beside each weight.*Received: .*{message}"):
        interop.from_hugging_face(folder)


def test_tensors_of_an_unknown_type_are_named_rather_than_called_damaged(bert):
    _, folder = bert()
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content.replace(b'"F32"', b'"F4" ', 1))
    with pytest.raises(ValueError, match=r"must have tensors of the types .*F8_E4M3.*Received: \S+ of F4"):
        interop.from_hugging_face(folder)


# Of the class of a model.


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "named", [None, ["RobertaForMaskedLM"], ["BertModel"], ["BertForMaskedLM"], ["Other"]]
)
def test_model_class_replaces_the_class_of_the_config(bert, named):
    model, folder = bert(Pretraining)
    change_config(folder, architectures=named)
    encoder = interop.from_hugging_face(folder, model_class=BERT)
    assert type(encoder) is BERT
    np.testing.assert_allclose(encoder(IDS), model.encoder(IDS), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        encoder.pool(encoder(IDS)), model.encoder.pool(model.encoder(IDS)), rtol=1e-5, atol=1e-6
    )
    masked = interop.from_hugging_face(folder, model_class=MaskedLanguageModel)
    np.testing.assert_allclose(masked(IDS), model(IDS)["tokens"], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="missing: classifier"):
        interop.from_hugging_face(folder, model_class=SequenceClassifier)
    with pytest.raises(ValueError, match=r"must describe a model of a class among \['ModernBERT'\].*a bert"):
        interop.from_hugging_face(folder, model_class=ModernBERT)


def test_bare_weights_have_the_names_of_a_class_with_a_head(bert):
    model, folder = bert(lambda encoder: TokenClassifier(encoder, 3))
    change_weights(
        folder, lambda tensors: {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    )
    np.testing.assert_array_equal(interop.from_hugging_face(folder)(IDS), model(IDS))
    change_config(folder, architectures=["BertForMaskedLM"])
    change_weights(
        folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if "classifier" not in name}
    )
    with pytest.raises(ValueError, match=r"missing: cls\.predictions\.bias"):
        interop.from_hugging_face(folder)
    encoder = interop.from_hugging_face(folder, model_class=BERT)
    np.testing.assert_array_equal(encoder(IDS), model.encoder(IDS))


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("files", "pad_id"),
    [
        ({}, 0),
        ({"vocab.txt": "a\n[PAD]\nb"}, 1),
        ({"vocab.txt": "a\nb\n<pad>", "tokenizer_config.json": {"pad_token": "<pad>"}}, 2),
        ({"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}, 1),
        (
            {
                "sentencepiece.bpe.model": "",
                "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
            },
            1,
        ),
        (
            {
                "tokenizer.json": {"added_tokens": [{"content": "<pad>", "id": 3}]},
                "special_tokens_map.json": {"pad_token": {"content": "<pad>"}},
            },
            3,
        ),
    ],
    ids=["none", "vocab.txt", "pad_token", "class", "sentencepiece", "tokenizer.json"],
)
def test_the_padding_id_of_an_encoder_is_its_tokenizers(bert, files, pad_id):
    _, folder = bert()
    change_config(folder, "pad_token_id")
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert interop.from_hugging_face(folder).encoder.pad_id == pad_id


# Of heads.


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "make",
    [
        MaskedLanguageModel,
        lambda encoder: TokenClassifier(encoder, 3, prediction_head=True, head_activation="relu"),
    ],
)
def test_activations_of_modernbert_heads_are_read_and_written(make, tmp_path):
    encoder = ModernBERT(
        20,
        **{**SIZES, "hidden_dim": 12},
        max_length=16,
        activation="swiglu",
        window=4,
        pad_id=0,
        pooler=False,
    )
    model = randomised(make(encoder))
    folder = interop.to_hugging_face(model, tmp_path / "model")
    is_default = isinstance(model, MaskedLanguageModel)
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_activation"], config["classifier_activation"]) == (
        "silu",
        "silu" if is_default else "relu",
    )
    np.testing.assert_array_equal(interop.from_hugging_face(folder)(IDS), model(IDS))
    change_config(folder, classifier_activation="gelu")
    assert np.abs(interop.from_hugging_face(folder)(IDS) - model(IDS)).max() > 1e-3
    change_config(folder, classifier_activation="mish")
    with pytest.raises(ValueError, match="as classifier_activation. Received: classifier_activation='mish'"):
        interop.from_hugging_face(folder)


def test_a_bert_whose_head_has_another_activation_is_rejected(tmp_path):
    model = MaskedLanguageModel(BERT(20, **SIZES, max_length=16, activation="gelu"), head_activation="relu")
    with pytest.raises(ValueError, match="must be supported by BertForMaskedLM.*head_activation="):
        interop.to_hugging_face(model, tmp_path / "bert", "bert")
    with pytest.raises(ValueError, match="`head_activation` must be None without prediction_head"):
        TokenClassifier(BERT(20, **SIZES, max_length=16), 3, head_activation="relu")
