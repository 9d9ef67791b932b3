"""Reranking: scores of NumPy, rankings, and the folders of cross-encoders."""

import json

import numpy as np
import pytest

from keras_transformer import interop, pipelines
from keras_transformer.models import BERT, SequenceClassifier
from keras_transformer.text import WordPieceTokenizer
from tests.random_weights import randomise

pytest.importorskip("safetensors")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
QUERY, TEXTS = "a b", ["c d e", "", "f [SEP] g", "h"]
IDS = [[7, 8, 9], [], [10, 3, 11], [12]]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def new_model(num_classes=1):
    encoder = BERT(len(PIECES), num_layers=1, num_heads=2, model_dim=8, hidden_dim=16, max_length=16)
    return randomise(SequenceClassifier(encoder, num_classes), scale=1.0, seed=1)


@pytest.fixture(scope="module")
def model():
    return new_model()


@pytest.fixture(scope="module")
def logits(model):
    """Return the logit of each text, computed without the pipeline."""
    rows = [[2, 5, 6, 3, *ids, 3] for ids in IDS]
    segments = [[0] * 4 + [1] * (len(ids) + 1) for ids in IDS]
    return np.array(
        [
            float(model({"token_ids": np.array([row]), "segment_ids": np.array([segment])})[0, 0])
            for row, segment in zip(rows, segments, strict=True)
        ]
    )


def write(model, folder, config=None, **json_files):
    """Write a folder; `config` changes `config.json`, and other files are given by name."""
    interop.to_hugging_face(model, folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    known = json.loads((folder / "config.json").read_text())
    for name, content in {"config": known | (config or {}), **json_files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def test_scores_equal_numpy(model, logits, monkeypatch):
    tokenizer, traced = WordPieceTokenizer(PIECES, special_tokens_in_text=True), []
    tokenize = tokenizer.tokenize
    monkeypatch.setattr(tokenizer, "tokenize", lambda texts: traced.append(texts) or tokenize(texts))
    rerank = pipelines.Reranking(model, tokenizer)
    np.testing.assert_allclose(rerank(QUERY, TEXTS), sigmoid(logits), **CLOSE)
    np.testing.assert_allclose(rerank([QUERY] * 4, iter(TEXTS), batch_size=3), sigmoid(logits), **CLOSE)
    assert len(traced) == 1  # for both texts
    assert type(rerank(QUERY, TEXTS[0])) is float
    assert rerank(QUERY, []).shape == (0,)
    linear = pipelines.Reranking(model, tokenizer, "linear")
    np.testing.assert_allclose(linear(QUERY, TEXTS), logits, **CLOSE)
    ranking = linear.rank(QUERY, TEXTS, top_k=3)
    assert [index for index, _ in ranking] == np.argsort(-logits)[:3].tolist()
    np.testing.assert_allclose([score for _, score in ranking], np.sort(logits)[::-1][:3], **CLOSE)
    assert linear.rank(QUERY, []) == []
    assert [each.text_index for each in linear.rank(QUERY, ["c", "d", "c"]) if each.text_index != 1] == [0, 2]


@pytest.mark.slow
def test_long_texts_are_rejected_truncated_or_read_in_windows(model):
    tokenizer, long = WordPieceTokenizer(PIECES), "c d e f g h a b c d e f g h"
    strict = pipelines.Reranking(model, tokenizer)
    with pytest.raises(
        ValueError, match=r"`text` must have at most 11 tokens each beside its `query`.*text\[1\]"
    ):
        strict(QUERY, ["a", long])
    first = " ".join(long.split()[:11])
    expected = strict(QUERY, first)
    assert strict(QUERY, long, truncate=True) == pytest.approx(expected, rel=1e-5)
    truncate = pipelines.Reranking(model, tokenizer, long_texts="truncate")
    assert truncate(QUERY, long) == pytest.approx(expected, rel=1e-5)
    last = " ".join(long.split()[-11:])
    window = pipelines.Reranking(model, tokenizer, long_texts="window")
    assert window(QUERY, long) == pytest.approx(max(expected, strict(QUERY, last)), rel=1e-5)
    # A query and a text that are both too long share the room.
    halves = truncate([" ".join("c" * 20)], [" ".join("d" * 20)])
    np.testing.assert_allclose(halves, strict(" ".join("c" * 6), [" ".join("d" * 7)]), rtol=1e-5)


TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"
OF_CLASS = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None}


def modules(*names):
    return [{"path": "", "type": name} for name in names]


FOLDERS = {
    "sigmoid": (
        {"config": {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1"}}},
        "sigmoid",
    ),
    "identity": ({"config": {"sentence_transformers": {"activation_fn": IDENTITY}}}, "linear"),
    "legacy": ({"config": {"sbert_ce_default_activation_function": IDENTITY}}, "linear"),
    "modules": (
        {
            "config_sentence_transformers": {**OF_CLASS, "activation_fn": IDENTITY},
            "modules": modules(TRANSFORMER),
            "sentence_bert_config": {
                "transformer_task": "sequence-classification",
                "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
                "module_output_name": "scores",
            },
        },
        "linear",
    ),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", FOLDERS)
def test_cross_encoders_are_recognised_by_their_files(model, logits, name, tmp_path):
    changes, activation = FOLDERS[name]
    folder = write(model, tmp_path / "it", tokenizer_config={"model_max_length": 12}, **changes)
    rerank = pipelines.from_hugging_face(folder)
    assert type(rerank) is pipelines.Reranking
    assert (rerank.activation, rerank.long_texts, rerank.max_length) == (activation, "refuse", 12)
    expected = logits if activation == "linear" else sigmoid(logits)
    np.testing.assert_allclose(rerank(QUERY, TEXTS), expected, **CLOSE)  # with special tokens in texts


@pytest.mark.slow
def test_a_regression_is_a_reranker_on_request(model, logits, tmp_path):
    folder = write(model, tmp_path / "bge")
    assert type(pipelines.from_hugging_face(folder)) is pipelines.TextClassification
    rerank = pipelines.from_hugging_face(folder, pipeline=pipelines.Reranking)
    np.testing.assert_allclose(rerank(QUERY, TEXTS), sigmoid(logits), **CLOSE)
    rerank.save(tmp_path / "saved")
    np.testing.assert_allclose(pipelines.load(tmp_path / "saved")(QUERY, TEXTS), sigmoid(logits), **CLOSE)


def test_several_labels_are_a_classifier(tmp_path):
    activation = {"sbert_ce_default_activation_function": IDENTITY}
    folder = write(new_model(3), tmp_path / "nli", activation)
    assert type(pipelines.from_hugging_face(folder)) is pipelines.TextClassification
    with pytest.raises(ValueError, match="`model` must have one class. Received: num_classes=3"):
        pipelines.from_hugging_face(folder, pipeline=pipelines.Reranking)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"config": {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}},
            "must have an activation among .*Received: activation_fn='torch.nn.modules.activation.Tanh'",
        ),
        (
            {"config_sentence_transformers": {**OF_CLASS, "prompts": {"query": "q: "}}},
            "Received: prompts={'query': 'q: '}",
        ),
        (
            {"config_sentence_transformers": OF_CLASS, "modules": modules(TRANSFORMER, "my.LogitScore")},
            "must list only the module Transformer .*Received: Transformer, my.LogitScore",
        ),
        (
            {
                "config_sentence_transformers": OF_CLASS,
                "modules": modules(TRANSFORMER),
                "sentence_bert_config": {"transformer_task": "feature-extraction"},
            },
            "must have transformer_task='sequence-classification'",
        ),
    ],
)
def test_unsupported_cross_encoders_are_rejected_by_name(model, changes, message, tmp_path):
    folder = write(model, tmp_path / "it", **changes)
    with pytest.raises(ValueError, match=message):
        pipelines.from_hugging_face(folder)
