import json

import numpy as np
import pytest

from keras_transformer import interop
from keras_transformer.interop import bert, vit
from keras_transformer.models import (
    BERT,
    MaskedLanguageModel,
    Pretraining,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    ViT,
)
from tests.interop.configurations import BERT_CONFIG, VIT_CONFIG

safetensors = pytest.importorskip("safetensors.numpy")

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
IDS = np.array([[2, 7, 9, 5, 3, 0], [2, 6, 3, 8, 3, 0]])
INPUTS = {"token_ids": IDS, "segment_ids": np.array([[0] * 6, [0, 0, 0, 1, 1, 0]])}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3)).astype("uint8")


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name):
    return {f"{name}.weight": (8,), f"{name}.bias": (8,)}


def block(name, attention):
    shapes = linear(f"{name}.attention.output.dense", 8, 8) | linear(f"{name}.output.dense", 16, 8)
    for part in ("query", "key", "value"):
        shapes |= linear(f"{name}.attention.{attention}.{part}", 8, 8)
    return shapes | linear(f"{name}.intermediate.dense", 8, 16)


def bert_shapes(prefix="bert.", pooler=True):
    shapes = {
        f"{prefix}embeddings.word_embeddings.weight": (13, 8),
        f"{prefix}embeddings.position_embeddings.weight": (9, 8),
        f"{prefix}embeddings.token_type_embeddings.weight": (2, 8),
    } | norm(f"{prefix}embeddings.LayerNorm")
    for name in (f"{prefix}encoder.layer.{i}" for i in range(2)):
        shapes |= block(name, "self")
        shapes |= norm(f"{name}.attention.output.LayerNorm") | norm(f"{name}.output.LayerNorm")
    return shapes | (linear(f"{prefix}pooler.dense", 8, 8) if pooler else {})


MASKED = (
    {"cls.predictions.bias": (13,)}
    | linear("cls.predictions.transform.dense", 8, 8)
    | norm("cls.predictions.transform.LayerNorm")
)
CASES = {
    "BertForPreTraining": (Pretraining, bert_shapes() | MASKED | linear("cls.seq_relationship", 8, 2)),
    "BertForMaskedLM": (MaskedLanguageModel, bert_shapes(pooler=False) | MASKED),
    "BertForSequenceClassification": (SequenceClassifier, bert_shapes() | linear("classifier", 8, 3)),
    "BertForTokenClassification": (TokenClassifier, bert_shapes(pooler=False) | linear("classifier", 8, 3)),
    "BertForQuestionAnswering": (SpanClassifier, bert_shapes(pooler=False) | linear("qa_outputs", 8, 2)),
    "BertModel": (BERT, bert_shapes("")),
    "ViTForImageClassification": (
        ViT,
        {
            "vit.embeddings.cls_token": (1, 1, 8),
            "vit.embeddings.position_embeddings": (1, 7, 8),
            "vit.embeddings.patch_embeddings.projection.weight": (8, 3, 4, 4),
            "vit.embeddings.patch_embeddings.projection.bias": (8,),
        }
        | block("vit.encoder.layer.0", "attention")
        | norm("vit.encoder.layer.0.layernorm_before")
        | norm("vit.encoder.layer.0.layernorm_after")
        | norm("vit.layernorm")
        | linear("classifier", 8, 3),
    ),
}


def random_tensors(shapes):
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype("float32") * 0.3 for name, shape in shapes.items()}


def write(folder, name, tensors, **changes):
    folder.mkdir(exist_ok=True)
    config = VIT_CONFIG if name.startswith("ViT") else {**BERT_CONFIG, "architectures": [name]}
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    safetensors.save_file(tensors, folder / "model.safetensors")
    return folder


def answers(model):
    found = model(IMAGES if isinstance(model, ViT) else INPUTS)
    return [np.asarray(each) for each in (found.values() if isinstance(found, dict) else [found])]


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_read_and_written_back_under_its_name(name, tmp_path):
    expected_class, shapes = CASES[name]
    tensors = random_tensors(shapes)
    model = interop.from_hugging_face(write(tmp_path / "it", name, tensors))
    assert type(model) is expected_class
    interop.to_hugging_face(model, tmp_path / "back")
    back = safetensors.load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    for tensor in tensors:
        np.testing.assert_array_equal(back[tensor], tensors[tensor], err_msg=tensor)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["architectures"] == [name]
    again = interop.from_hugging_face(tmp_path / "back")
    for output, reference in zip(answers(model), answers(again), strict=True):
        if name not in ("BertForMaskedLM",):
            np.testing.assert_array_equal(output, reference)
    # Only a pooler that the class lacks keeps its random value.
    unread = {w.path for w in model.trainable_weights} - {
        weight.path
        for _, parameter in next(
            each for each in (*bert.ARCHITECTURES, vit.VIT) if each.class_name == name
        ).parameters(model)
        for weight in parameter.weights
    }
    assert not unread


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"])
def test_all_names_of_tanh_gelu_are_read(name, tmp_path):
    tensors = random_tensors(CASES["BertForPreTraining"][1])
    read = [
        interop.from_hugging_face(write(tmp_path / each, "BertForPreTraining", tensors, hidden_act=each))
        for each in (name, "gelu_new", "gelu")
    ]
    assert read[0].encoder.activation == "gelu_tanh"
    found, same, exact = (answers(model)[0] for model in read)
    np.testing.assert_array_equal(found, same)
    difference = np.abs(found - exact).max()
    assert 0 < difference < 0.01


def test_patch_convolution_equals_matrix_multiplication(tmp_path):
    name = "ViTForImageClassification"
    tensors = random_tensors(CASES[name][1])
    model = interop.from_hugging_face(write(tmp_path / "it", name, tensors))
    kernel = tensors["vit.embeddings.patch_embeddings.projection.weight"]
    patch = IMAGES[0, 4:8, 8:12] / 127.5 - 1  # row 1, column 2: the last
    embedded = np.einsum("hwc,dchw->d", patch, kernel)
    embedded += tensors["vit.embeddings.patch_embeddings.projection.bias"]
    embedded += tensors["vit.embeddings.position_embeddings"][0, 6]
    np.testing.assert_allclose(model._embed(IMAGES, training=False)[0, 6], embedded, rtol=1e-4, atol=1e-4)
    token = tensors["vit.embeddings.cls_token"][0, 0] + tensors["vit.embeddings.position_embeddings"][0, 0]
    np.testing.assert_allclose(model._embed(IMAGES, training=False)[0, 0], token, **CLOSE)


@pytest.mark.slow
def test_legacy_norm_names_and_tied_copies_are_accepted(tmp_path):
    name = "BertForPreTraining"
    tensors = random_tensors(CASES[name][1])
    expected = answers(interop.from_hugging_face(write(tmp_path / "new", name, tensors)))
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    old["bert.embeddings.position_ids"] = np.arange(9)[None]
    for output, reference in zip(
        answers(interop.from_hugging_face(write(tmp_path / "old", name, old))), expected, strict=True
    ):
        np.testing.assert_array_equal(output, reference)
    old["cls.predictions.decoder.weight"] = old["cls.predictions.decoder.weight"] + 1
    with pytest.raises(ValueError, match="differs from bert.embeddings.word_embeddings.weight"):
        interop.from_hugging_face(write(tmp_path / "old", name, old))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier.bias of shape \(3,\) instead of \(2,\)"),
        ({"num_hidden_layers": 1}, "unknown: bert.encoder.layer.1"),
        ({"num_hidden_layers": 3}, "missing: bert.encoder.layer.2"),
    ],
)
def test_weights_that_do_not_match_the_config_are_rejected(changes, message, tmp_path):
    name = "BertForSequenceClassification"
    folder = write(tmp_path / "it", name, random_tensors(CASES[name][1]), **changes)
    with pytest.raises(ValueError, match=message):
        interop.from_hugging_face(folder)


def test_arguments_can_be_overridden(tmp_path):
    name = "BertForSequenceClassification"
    folder = write(tmp_path / "it", name, random_tensors(CASES[name][1]))
    model = interop.from_hugging_face(folder, dropout=0.0, dtype="mixed_bfloat16")
    assert (model.dropout, model.encoder.dropout) == (0.0, 0.0)
    assert model.dtype_policy.name == model.encoder.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        (
            "BertForTokenClassification",
            {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
            {"dropout": 0.3, "attention_dropout": 0.2},
        ),
        (
            "ViTForImageClassification",
            {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.2},
            {"dropout": 0.0, "attention_dropout": 0.2},
        ),
    ],
)
def test_two_dropout_rates_are_read_and_written(name, changes, found, tmp_path):
    model = interop.from_hugging_face(write(tmp_path / "it", name, random_tensors(CASES[name][1]), **changes))
    encoder = getattr(model, "encoder", model) if name.startswith("Bert") else model
    assert {argument: getattr(encoder, argument) for argument in found} == found
    written = interop.to_hugging_face(model, tmp_path / "back")
    config = json.loads((written / "config.json").read_text())
    assert {key: config[key] for key in changes} == changes


def test_bert_without_pooler_is_read_and_written(tmp_path):
    tensors = random_tensors(bert_shapes("", pooler=False))
    model = interop.from_hugging_face(write(tmp_path / "it", "BertModel", tensors))
    assert model.pooler is None
    whole = interop.from_hugging_face(write(tmp_path / "whole", "BertModel", random_tensors(bert_shapes(""))))
    np.testing.assert_array_equal(answers(model)[0], answers(whole)[0])
    written = interop.to_hugging_face(model, tmp_path / "back")
    assert safetensors.load_file(written / "model.safetensors").keys() == tensors.keys()
    tensors["pooler.dense.weight"] = np.ones((8, 8), "float32")
    with pytest.raises(ValueError, match="missing: pooler.dense.bias"):
        interop.from_hugging_face(write(tmp_path / "half", "BertModel", tensors))


@pytest.mark.parametrize(("patch_size", "patches"), [([8, 4], 3), ([4, 4], 6), ([2, 6], 8)])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_vit_may_have_rectangular_patches_and_no_biases(patch_size, patches, qkv_bias, tmp_path):
    name = "ViTForImageClassification"
    shapes = {
        **CASES[name][1],
        "vit.embeddings.position_embeddings": (1, 1 + patches, 8),
        "vit.embeddings.patch_embeddings.projection.weight": (8, 3, *patch_size),
    }
    if not qkv_bias:
        shapes = {
            key: shape
            for key, shape in shapes.items()
            if not key.endswith(("query.bias", "key.bias", "value.bias"))
        }
    tensors = random_tensors(shapes)
    changes = {"patch_size": patch_size, "qkv_bias": qkv_bias}
    model = interop.from_hugging_face(write(tmp_path / "it", name, tensors, **changes))
    height, width = patch_size
    kernel = tensors["vit.embeddings.patch_embeddings.projection.weight"]
    last = IMAGES[0, 8 - height :, 12 - width :] / 127.5 - 1
    embedded = np.einsum("hwc,dchw->d", last, kernel)
    embedded += tensors["vit.embeddings.patch_embeddings.projection.bias"]
    embedded += tensors["vit.embeddings.position_embeddings"][0, -1]
    np.testing.assert_allclose(model._embed(IMAGES, training=False)[0, -1], embedded, rtol=1e-4, atol=1e-4)
    written = interop.to_hugging_face(model, tmp_path / "back")
    config = json.loads((written / "config.json").read_text())
    assert config["patch_size"] == (4 if patch_size == [4, 4] else patch_size)
    assert config["qkv_bias"] == qkv_bias
    back = safetensors.load_file(written / "model.safetensors")
    assert back.keys() == tensors.keys()
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(back[key], tensor, err_msg=key)
