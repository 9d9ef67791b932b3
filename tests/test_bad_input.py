"""The errors of a careless user's arguments: each names the argument, what is expected and what was received."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from keras_transformer import data, export, generation, layers, models, pipelines, text, training
from keras_transformer.generation import Beam, generate

V, T = 260, 16
IDS = np.full((2, 5), 7, "int32")
SIZES = {"vocabulary_size": 50, "num_layers": 1, "num_heads": 2, "model_dim": 16}


class Objects:
    """Tiny models and pipelines, made on first use."""

    tokenizer = text.ByteTokenizer()

    @functools.cached_property
    def translator(self):
        return models.Transformer(V, 1, 2, 8, 8)

    @functools.cached_property
    def gpt(self):
        return models.GPT(V, 1, 2, 8, max_length=T)

    @functools.cached_property
    def bert(self):
        return models.BERT(V, 1, 2, 8, max_length=T)

    @functools.cached_property
    def classifier(self):
        return models.SequenceClassifier(self.bert, 3)

    @functools.cached_property
    def pipeline(self):
        return pipelines.TextGeneration(self.gpt, self.tokenizer, max_new_tokens=2)

    @functools.cached_property
    def classification(self):
        return pipelines.TextClassification(self.classifier, self.tokenizer)


@pytest.fixture(scope="module")
def objects():
    return Objects()


def positive_integer(name, value):
    return ValueError, rf"`{name}` must be a positive integer. Received: {name}={value}"


def gpt_of(**sizes):
    return lambda _: models.GPT(**{**SIZES, **sizes})


@dataclasses.dataclass
class Unbounded:
    """A tokenizer whose vocabulary is smaller than its ids."""

    tokenizer: text.ByteTokenizer
    vocabulary_size: int = 60

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


LAYERS_AND_MODELS = {
    "num_heads='4'": (lambda _: layers.MultiHeadAttention("4", 8), *positive_integer("num_heads", "'4'")),
    "num_heads=2.5": (gpt_of(num_heads=2.5), *positive_integer("num_heads", "2.5")),
    "num_heads=None": (
        lambda _: models.Transformer(50, 1, None, 16),
        *positive_integer("num_heads", "None"),
    ),
    "num_heads=True": (lambda _: layers.MultiHeadAttention(True, 8), *positive_integer("num_heads", "True")),
    "model_dim='16'": (
        lambda _: models.Transformer(50, 1, 2, "16"),
        *positive_integer("model_dim", "'16'"),
    ),
    "model_dim=None": (gpt_of(model_dim=None), *positive_integer("model_dim", "None")),
    "vocabulary_size=50.0": (gpt_of(vocabulary_size=50.0), *positive_integer("vocabulary_size", "50.0")),
    "vocabulary_size=None": (
        lambda _: models.BERT(None, 1, 2, 16),
        *positive_integer("vocabulary_size", "None"),
    ),
    "num_layers='1'": (lambda _: models.T5(50, "1"), *positive_integer("num_layers", "'1'")),
    "max_length='16'": (gpt_of(max_length="16"), *positive_integer("max_length", "'16'")),
    "hidden_dim='8'": (lambda _: layers.FeedForward("8"), *positive_integer("hidden_dim", "'8'")),
    "num_classes='3'": (
        lambda o: models.SequenceClassifier(o.bert, "3"),
        *positive_integer("num_classes", "'3'"),
    ),
    "rotary positions, odd key_dim": (
        gpt_of(model_dim=10, position_encoding="rotary"),
        ValueError,
        "`key_dim` must be even for rotary positions. Received: key_dim=5",
    ),
    "rotary layer, odd key_dim": (
        lambda _: layers.MultiHeadAttention(2, 5, position_encoding=layers.RotaryPositions()),
        ValueError,
        "`key_dim` must be even for rotary positions. Received: key_dim=5",
    ),
    "pad_id='0'": (
        gpt_of(pad_id="0"),
        ValueError,
        r"`pad_id` must be in \[0, 50\). Received: pad_id='0'",
    ),
    "dropout='0.1'": (
        gpt_of(dropout="0.1"),
        ValueError,
        r"`dropout` must be in \[0, 1\). Received: dropout='0.1'",
    ),
    "num_heads of GAT": (
        lambda _: models.GAT(5, 3, num_heads=8),
        ValueError,
        "`num_heads` must be a list .*Received: num_heads=8",
    ),
    "encoder=None": (
        lambda _: models.SequenceClassifier(None, 3),
        TypeError,
        "`encoder` must be an encoder .*Received: a NoneType",
    ),
    "GPT as encoder": (
        lambda o: models.MaskedLanguageModel(o.gpt),
        TypeError,
        "`encoder` must be an encoder .*Received: a GPT",
    ),
    "BERT as decoder": (
        lambda o: models.GPTClassifier(o.bert, 3),
        TypeError,
        "`decoder` must be a `models.GPT`. Received: a BERT",
    ),
}

GENERATION = {
    "max_new_tokens=10**9": (
        lambda o: generate(o.translator, IDS, max_new_tokens=10**9),
        ValueError,
        "`max_new_tokens` must be at most 1048576. Received: max_new_tokens=1000000000",
    ),
    "max_new_tokens=10**9 for each row": (
        lambda o: generate(o.translator, IDS, max_new_tokens=[4, 10**9]),
        ValueError,
        r"`max_new_tokens` must be in \[1, 1048576\]",
    ),
    "max_new_tokens=10**9 of a pipeline": (
        lambda o: pipelines.TextToText(o.translator, o.tokenizer, max_new_tokens=10**9),
        ValueError,
        "`max_new_tokens` must be at most 1048576. Received: max_new_tokens=1000000000",
    ),
    "Beam(10**6)": (
        lambda o: generate(o.translator, IDS, Beam(10**6), max_new_tokens=4),
        ValueError,
        r"`sampler` must have at most 16384 hypotheses. Received: sampler=Beam\(num_beams=1000000",
    ),
    "Beam as a class": (
        lambda o: generate(o.translator, IDS, Beam, max_new_tokens=4),
        ValueError,
        "`sampler` must be one of .*Received: sampler=<class",
    ),
    "source_ids of strings": (
        lambda o: generate(o.translator, ["hola"]),
        ValueError,
        r"`source_ids` must be integers of shape \(batch, length\)",
    ),
    "seed=-1": (
        lambda _: generation.Sample(seed=-1),
        ValueError,
        r"`seed` must be an integer in \[0, 2\*\*32\). Received: seed=-1",
    ),
    "no seed in a graph": (
        lambda o: generation.generate_ids(o.gpt, IDS, 2, sampler=generation.Sample()),
        ValueError,
        r"`seed` or `noise` must be given .*Received: sampler=Sample\(",
    ),
}

PIPELINES = {
    "dictionary": (
        lambda o: o.pipeline({"a": 1}),
        TypeError,
        "`texts` must be a list of strings. Received: texts={'a': 1}",
    ),
    "bytes": (
        lambda o: o.pipeline(b"ab"),
        TypeError,
        "`texts` must be a list of strings. Received: texts=",
    ),
    "dictionary of a classifier": (
        lambda o: o.classification({"a": 1}),
        TypeError,
        "`text` must be a list of strings. Received: text=",
    ),
    "a number": (lambda o: o.classification(5), TypeError, "`text` must be a list of strings"),
    "TextClassification(Transformer)": (
        lambda o: pipelines.TextClassification(o.translator, o.tokenizer),
        TypeError,
        "`model` must be an encoder.* Received: a Transformer without max_length",
    ),
    "TextClassification(BERT)": (
        lambda o: pipelines.TextClassification(o.bert, o.tokenizer),
        TypeError,
        "`model` must be a classifier of texts.* Received: a BERT without num_classes",
    ),
    "TokenClassification(SequenceClassifier)": (
        lambda o: pipelines.TokenClassification(o.classifier, o.tokenizer),
        TypeError,
        "`model` must be a classifier of tokens.* Received: a SequenceClassifier",
    ),
    "QuestionAnswering(SequenceClassifier)": (
        lambda o: pipelines.QuestionAnswering(o.classifier, o.tokenizer),
        TypeError,
        "`model` must be a span classifier.* Received: a SequenceClassifier",
    ),
    "ImageClassification(SequenceClassifier)": (
        lambda o: pipelines.ImageClassification(o.classifier),
        TypeError,
        "`model` must be a classifier of images.* Received: a SequenceClassifier without image_size",
    ),
    "NodeClassification(SequenceClassifier)": (
        lambda o: pipelines.NodeClassification(o.classifier),
        TypeError,
        "`model` must be a classifier of nodes.* Received: a SequenceClassifier without num_features",
    ),
    "model=None": (
        lambda o: pipelines.TextClassification(None, o.tokenizer),
        TypeError,
        "`model` must be .*Received: a NoneType",
    ),
    "TextToText(model, None)": (
        lambda o: pipelines.TextToText(o.translator, None),
        TypeError,
        "`tokenizer` must be one of keras_transformer.text.*Received: tokenizer=None",
    ),
    "TextClassification(model, None)": (
        lambda o: pipelines.TextClassification(o.classifier, None),
        TypeError,
        "`tokenizer` must be one of keras_transformer.text.*Received: tokenizer=None",
    ),
    "labels='abc'": (
        lambda o: pipelines.TextClassification(o.classifier, o.tokenizer, labels="abc"),
        TypeError,
        "`labels` must be a list of strings. Received: labels='abc'",
    ),
    "pairs of evaluate as strings": (
        lambda o: pipelines.evaluate(o.pipeline, ["ab", "cd"]),
        ValueError,
        r"`pairs` must be pairs of strings, \(source, target\). Received: pairs\[0\]='ab'",
    ),
    "save('')": (
        lambda o: o.pipeline.save(""),
        ValueError,
        "`folder` must not be empty. Received: folder=''",
    ),
    "save(None)": (
        lambda o: o.pipeline.save(None),
        TypeError,
        "`folder` must be a path. Received: folder=None",
    ),
    "load(None)": (
        lambda _: pipelines.load(None),
        TypeError,
        "`folder` must be a path. Received: folder=None",
    ),
}

FILES_AND_DATA = {
    "texts='Hola' of an export": (
        lambda o: export.saved_model(o.pipeline, "never-written", texts="Hola"),
        TypeError,
        "`texts` must be a list of texts. Received: texts='Hola'",
    ),
    "folder='' of an export": (
        lambda o: export.bundle(o.pipeline, ""),
        ValueError,
        "`folder` must not be empty. Received: folder=''",
    ),
    "folder=None of an export": (
        lambda o: export.onnx(o.pipeline, None),
        TypeError,
        "`folder` must be a path. Received: folder=None",
    ),
    "name=5 of an export": (
        lambda o: export.saved_model(o.pipeline, "never-written", name=5),
        ValueError,
        "`name` must be a plain folder name. Received: name=5",
    ),
    "missing checkpoint": (
        lambda o: training.average_checkpoints(o.gpt, ["nope.h5"]),
        FileNotFoundError,
        r"`files` must be files that exist. Received: files\[0\]='nope.h5'",
    ),
    "folder as checkpoint": (
        lambda o: training.average_checkpoints(o.gpt, ["."]),
        FileNotFoundError,
        r"`files` must be files that exist. Received: files\[0\]='.'",
    ),
    "labels of another length": (
        lambda _: training.LabelSmoothedCrossentropy()(IDS, np.ones((2, 4, 9), "float32")),
        ValueError,
        r"`y_true` must be labels .*Received: y_true.shape=\(2, 5\), y_pred.shape=\(2, 4, 9\)",
    ),
    "labels of another rank in a metric": (
        lambda _: training.TokenAccuracy()(IDS[0], np.ones((2, 5, 9), "float32")),
        ValueError,
        r"`y_true` must be labels .*Received: y_true.shape=\(5,\)",
    ),
    "smoothing='0.1'": (
        lambda _: training.LabelSmoothedCrossentropy("0.1"),
        ValueError,
        r"`smoothing` must be in \[0, 1\). Received: smoothing='0.1'",
    ),
    "model_dim='16' of a schedule": (
        lambda _: training.TransformerSchedule("16"),
        ValueError,
        "`model_dim` must be positive. Received: model_dim='16'",
    ),
    "ids outside the tokenizer's vocabulary": (
        lambda o: data.language_modeling(["ab", "b\u00f1"], Unbounded(o.tokenizer), length=4),
        ValueError,
        r"`tokenizer` must have ids in \[0, 60\), its vocabulary. Received: 101 at row 0, column 0",
    ),
    "ids of pairs outside the tokenizer's vocabulary": (
        lambda o: data.translation_pairs([("!", "ab")], Unbounded(o.tokenizer)),
        ValueError,
        r"`tokenizer` must have ids in \[0, 60\), its vocabulary. Received: 101 at row 0, column 0",
    ),
    "NaN labels of images": (
        lambda _: data.image_batches(np.zeros((2, 4, 4, 1)), np.array([0, np.nan])),
        ValueError,
        "`labels` must be finite. Received: nan at row 1",
    ),
}

CASES = {**LAYERS_AND_MODELS, **GENERATION, **PIPELINES, **FILES_AND_DATA}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_by_name(objects, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, error, message = CASES[case]
    with pytest.raises(error, match=message):
        call(objects)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [2, None])
def test_a_pipeline_or_tokenizer_of_another_format_is_refused(objects, tmp_path, number):
    objects.classification.save(tmp_path / "pipeline")
    assert pipelines.load(tmp_path / "pipeline").settings() == objects.classification.settings()
    for name, key, load in (
        ("tokenizer/tokenizer.json", "format_version", text.load),
        ("config.json", "format", pipelines.load),
    ):
        file = tmp_path / "pipeline" / name
        content = json.loads(file.read_text())
        assert content[key] == 1
        file.write_text(json.dumps({**content, key: number}))
        with pytest.raises(
            ValueError, match=rf"{file.name}` must be of format 1; a newer.*Received: {number}"
        ):
            load(file.parent)
