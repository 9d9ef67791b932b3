"""Exports with a shortlist of the output vocabulary."""

import json

import numpy as np
import onnx
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, models, pipelines
from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.generation import ForcedLastToken, VocabularyShortlist
from keras_transformer.text import ByteTokenizer
from keras_transformer_cli import commands

BYTES = ByteTokenizer()
PRECISIONS = ("float32", "float16", "int8")
LOOP = "generate_greedy.onnx"


@pytest.fixture(scope="module")
def translator():
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
    model = models.Transformer(BYTES.vocabulary_size, **sizes)
    return pipelines.TextToText(model, BYTES, max_new_tokens=8, constraints=[ForcedLastToken([BYTES.end_id])])


def test_the_shortlist_of_texts_has_their_tokens_and_the_ids_of_constraints(translator, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("abba\ncab\n", encoding="utf-8")
    (a,), (b,), (c,) = BYTES.tokenize(["a", "b", "c"]).to_list()
    assert export.vocabulary_shortlist(translator, path) == sorted([BYTES.end_id, a, b, c])
    assert export.vocabulary_shortlist(translator, ["abba", "cab"], size=2) == sorted([BYTES.end_id, a, b])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["", ""]}, "`texts` must have at least one token"),
        ({"texts": ["a"], "size": 0}, "`size` must be a positive integer"),
    ],
)
def test_invalid_arguments_raise(translator, arguments, message):
    with pytest.raises(ValueError, match=message):
        export.vocabulary_shortlist(translator, **arguments)


def test_other_pipelines_have_no_shortlist(tmp_path):
    encoder = models.BERT(BYTES.vocabulary_size, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
    embedding = pipelines.Embedding(encoder, BYTES)
    with pytest.raises(ValueError, match=r"`vocabulary_shortlist` requires .* Received: a Embedding"):
        export.bundle(embedding, tmp_path / "export", vocabulary_shortlist=[3])
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_exports_generate_the_tokens_of_the_shortlist(translator, tmp_path):
    ids = export.vocabulary_shortlist(translator, ["the house is blue"])
    texts = ["la casa", "el perro come", "azul"]
    options = {"precisions": PRECISIONS, "texts": texts, "vocabulary_shortlist": ids}
    folder = export.bundle(translator, tmp_path / "export", **options)
    limited = translator.with_settings(constraints=[*translator.constraints, VocabularyShortlist(ids)])
    assert serving.load(folder)(texts) == limited(texts)
    assert {*np.unique(limited.generate(texts).ids)} <= {*ids, BYTES.pad_id}
    for precision in PRECISIONS:
        part = folder / "onnx" / ("" if precision == "float32" else precision)
        graphs = list(graph_traversal.graphs(onnx.load(part / LOOP).graph))
        widths = {tensor.dims[1] for graph in graphs for tensor in graph.initializer if len(tensor.dims) == 2}
        assert BYTES.vocabulary_size not in widths
    for report in json.loads((folder / "parity.json").read_text()).values():
        whole = translator(texts)
        same = sum(one == other for one, other in zip(whole, limited(texts), strict=True))
        assert report["vocabulary_shortlist"] == {"outputs": 3, "identical": same}
    assert f"{same} of 3 outputs are the same" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_the_command_line_takes_texts(translator, tmp_path):
    translator.save(tmp_path / "pipeline")
    (tmp_path / "texts.txt").write_text("the house\n", encoding="utf-8")
    arguments = ["--formats", "onnx", "--vocabulary-shortlist", str(tmp_path / "texts.txt")]
    commands.main(["export", str(tmp_path / "pipeline"), str(tmp_path / "export"), *arguments])
    settings = json.loads((tmp_path / "export" / "config.json").read_text())
    shortlist = settings["constraints"][-1]
    assert shortlist["constraint"] == "VocabularyShortlist"
    assert shortlist["token_ids"] == export.vocabulary_shortlist(translator, ["the house"])
