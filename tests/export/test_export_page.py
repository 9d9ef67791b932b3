"""Check each cell of the table of pipelines in docs/export.md."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import pipelines, text
from keras_transformer.export.to_onnx import optimum
from keras_transformer.models import (
    BERT,
    CTC,
    GAT,
    GPT,
    MaskedLanguageModel,
    SequenceClassifier,
    SpanClassifier,
    SpeechEncoder,
    TokenClassifier,
    Transformer,
    Unlimiformer,
    ViT,
)

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "export.md"
BYTES = text.ByteTokenizer()
SMALL = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
IDS = {"pad_id": BYTES.pad_id, "end_id": BYTES.end_id}
LIMITS = {"max_new_tokens": 4, "max_source_tokens": 20}


def bert(head=lambda encoder: encoder, tokenizer=BYTES):
    return head(BERT(tokenizer.vocabulary_size, **SMALL, max_length=20))


def fill_mask():
    tokenizer = text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    return pipelines.FillMask(bert(MaskedLanguageModel, tokenizer), tokenizer)


def zero_shot():
    model = bert(lambda encoder: SequenceClassifier(encoder, 2))
    labels = ["entailment", "contradiction"]
    return pipelines.ZeroShotClassification(model, BYTES, labels, hypothesis_template="{}")


def translator(make):
    model = make(BYTES.vocabulary_size, **SMALL, **IDS, start_id=BYTES.start_id)
    return pipelines.TextToText(model, BYTES, **LIMITS)


def recognizer():
    return pipelines.SpeechToText(CTC(SpeechEncoder(**SMALL), BYTES.vocabulary_size), BYTES)


def writer():
    model = GPT(BYTES.vocabulary_size, **SMALL, **IDS, max_length=32)
    return pipelines.TextGeneration(model, BYTES, **LIMITS)


PIPELINES = {
    "`TextToText`": lambda: translator(Transformer),
    "`TextToText` of `Unlimiformer`": lambda: translator(
        lambda *sizes, **options: Unlimiformer(Transformer(*sizes, **options), top_k=2, chunk_length=8)
    ),
    "`TextGeneration`": writer,
    "`TextClassification`": lambda: pipelines.TextClassification(
        bert(lambda encoder: SequenceClassifier(encoder, 2)), BYTES
    ),
    "`TokenClassification`": lambda: pipelines.TokenClassification(
        bert(lambda encoder: TokenClassifier(encoder, 2)), BYTES
    ),
    "`QuestionAnswering`": lambda: pipelines.QuestionAnswering(bert(SpanClassifier), BYTES),
    "`FillMask`": fill_mask,
    "`Embedding`": lambda: pipelines.Embedding(bert(), BYTES),
    "`Reranking`": lambda: pipelines.Reranking(bert(lambda encoder: SequenceClassifier(encoder, 1)), BYTES),
    "`ZeroShotClassification`": zero_shot,
    "`ImageClassification`": lambda: pipelines.ImageClassification(ViT(8, 4, num_classes=2, **SMALL)),
    "`SpeechToText`": recognizer,
    "`NodeClassification`": lambda: pipelines.NodeClassification(GAT(5, 2, num_heads=(2, 1), head_dim=4)),
}
TEXTS = {"too long": b"[MASK] b " * 50, "not UTF-8": b"[MASK] \xff", "empty": b""}
INVALID = {
    "`QuestionAnswering`": {
        "too long": (b"a", TEXTS["too long"]),
        "not UTF-8": (b"a", TEXTS["not UTF-8"]),
        "no word": (b"a", b" "),
    },
    "`Reranking`": {reason: (b"a", text) for reason, text in TEXTS.items()},
    "`FillMask`": {**TEXTS, "no mask": b"a"},
    "`ZeroShotClassification`": {
        **{reason: (text, [b"a"]) for reason, text in TEXTS.items()},
        "no label": (b"a", [b""]),
    },
    "`ImageClassification`": {"out of range": np.full((8, 8, 3), 300.0)},
    "`SpeechToText`": {
        "not finite": (np.full(2000, np.nan), np.array(2000)),
        "empty": (np.zeros(2000), np.array(0)),
    },
    "`NodeClassification`": {"missing node": (np.zeros((2, 5)), np.array([[0, 7]]))},
}


def rows():
    section = PAGE.read_text(encoding="utf-8").split("\n## Every pipeline\n")[1].split("\n## ")[0]
    lines = section.splitlines()
    table = [line.strip("| ").split("|") for line in lines if line.startswith("| `")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in table}


def listed(cell):
    return {each.strip("`") for each in cell.split(", ")}


def test_the_table_has_every_pipeline():
    assert list(rows()) == list(PIPELINES)
    classes = {name.split("`")[1] for name in rows()}
    known = {name for name, each in vars(pipelines).items() if isinstance(each, type)}
    assert classes == known & set(pipelines.pipeline.Pipeline.classes)


@pytest.mark.parametrize("name", PIPELINES)
def test_rows_of_the_table_equal_the_exports(name):
    signatures, graphs, for_optimum, without_tensorflow, invalid = rows()[name]
    pipeline = PIPELINES[name]()
    assert set(pipeline.signatures()) == listed(signatures)
    assert {each.replace("_greedy", "_<sampler>") for each in pipeline.onnx_graphs()} == listed(graphs)
    assert (optimum.configurations(pipeline) is not None) == (for_optimum == "yes")
    assert serving.reads_text(pipeline.export_config()) == (without_tensorflow == "yes")
    found = set()
    for reason, row in INVALID.get(name, TEXTS).items():
        inputs = row if isinstance(row, tuple) else (row,)
        is_array = isinstance(inputs[0], np.ndarray)
        dtypes = ["float32", "int64"] if is_array else ["string"] * 2
        tensors = (tf.constant([each], dtype) for each, dtype in zip(inputs, dtypes, strict=False))
        if pipeline.preprocess(*tensors).error.numpy()[0]:
            found.add(reason)
    if name == "`FillMask`":
        found.discard("empty")  # has no mask token
    assert found == listed(invalid)
