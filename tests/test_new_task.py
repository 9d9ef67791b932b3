"""A complete task in one file, without changes to the package: rate a text on a scale.

It has a declaration, a pipeline, a class that serves its export, and a recipe; the package has head and batches.
"""

import dataclasses
import json
import sys
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf
from served_exports import json_call, run

import keras_transformer_serving as serving
from keras_transformer import data, models, pipelines, recipes
from keras_transformer.pipelines.texts import TextPipeline
from keras_transformer.recipes.language_model import BERT_ARGUMENTS, new_encoder
from keras_transformer.recipes.recipe import read_rows
from keras_transformer_cli import commands
from keras_transformer_options.task_options import TASKS, TableOptions, option
from keras_transformer_options.tasks import BERT_SIZES, WORD_PIECE
from keras_transformer_serving.pipelines import texts as served_texts
from keras_transformer_serving.pipelines.texts import TextTask
from keras_transformer_serving.tasks import ExportedPipeline, Tensor


class RatingTask(TextTask):
    """Shared by the pipeline and its export: the output, its line of text and, by default, the input "text"."""

    @classmethod
    def outputs(cls, config):
        return (Tensor("rating", "float32"),)

    @staticmethod
    def text(answer):
        return f"{answer:.2f}"


class Rating(RatingTask, TextPipeline):
    """A pipeline of a model with one output x; the rating is low + (high - low) sigmoid(x)."""

    def __init__(self, model, tokenizer, scale=(1.0, 5.0), long_texts="window"):
        super().__init__(model, tokenizer, long_texts)
        self.scale = list(scale)

    def postprocess(self, outputs, batch):
        (low, high), owner = self.scale, batch.state["owner"]
        mean = tf.math.unsorted_segment_mean(outputs["logits"][:, 0], owner, tf.size(batch.error))
        return {"rating": low + (high - low) * tf.sigmoid(mean)}


class ServedRating(RatingTask, served_texts.TextPipeline, pipeline="Rating"):
    """An exported `Rating`."""

    def postprocess(self, outputs, windows, state):
        low, high = self.config["scale"]
        return {"rating": float(low + (high - low) / (1 + np.exp(-outputs["logits"].mean())))}


@dataclasses.dataclass(frozen=True)
class Rate(TableOptions, recipes.Recipe):
    """Train a model to rate texts."""

    low: float = option(1.0, "The lowest rating.")
    high: float = option(5.0, "The highest rating.")

    task: ClassVar[str] = "rate"
    summary: ClassVar[str] = "train a model to rate texts: TSV, CSV or JSONL"
    tokenizers: ClassVar = WORD_PIECE
    model_sizes: ClassVar = BERT_SIZES
    size_arguments: ClassVar = BERT_ARGUMENTS
    column_names: ClassVar = "the columns of the text and the rating"
    column_counts: ClassVar = (2,)

    def read(self, paths):
        return [(text, float(rating)) for text, rating in read_rows(self, paths)]

    def new_pipeline(self, train):
        tokenizer = self.new_tokenizer(text for text, _ in train)
        model = models.SequenceClassifier(new_encoder(self, tokenizer), 1, "mean", dtype=self.precision)
        return Rating(model, tokenizer, (self.low, self.high))

    def batches(self, examples, pipeline, shuffle):
        shares = [(rating - self.low) / (self.high - self.low) for _, rating in examples]
        texts = [text for text, _ in examples]
        return data.classification(
            texts, shares, pipeline.tokenizer, max_length=self.max_length, **self.batching(shuffle)
        )

    def loss(self, pipeline):
        return keras.losses.BinaryCrossentropy(from_logits=True), []

    def evaluate(self, pipeline, examples):
        answers = pipeline([text for text, _ in examples])
        rows = [
            {"input": text, "reference": rating, "answer": round(answer, 2)}
            for (text, rating), answer in zip(examples, answers, strict=True)
        ]
        errors = [abs(row["reference"] - row["answer"]) for row in rows]
        return {"mean_absolute_error": float(np.mean(errors)), "examples": rows[:10]}


WORDS = ("bad", "poor", "fair", "good", "fine")
TEXTS = ["a fine film", "a bad film", "one fair day " * 20]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Train with the command line; one word determines the rating."""
    folder = tmp_path_factory.mktemp("rate")
    rows = [
        f"a {word} {noun}\t{rating}" for rating, word in enumerate(WORDS, 1) for noun in ("film", "day") * 8
    ]
    (folder / "ratings.tsv").write_text("\n".join(rows))
    sizes = "--layers 1 --heads 2 --model-dim 16 --vocabulary-size 60 --max-length 16 --no-jit-compile"
    learning = "--epochs 4 --learning-rate 0.03 --dropout 0 --batch-size 8"
    output = ["--data", str(folder / "ratings.tsv"), "--output", str(folder / "run")]
    assert commands.main(["train", "rate", *sizes.split(), *learning.split(), *output]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def pipeline(run_folder):
    """The pipeline of the run, which the tests share and do not change."""
    return pipelines.load(run_folder)


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_the_command_line_trains_and_predicts_a_new_task(run_folder, pipeline, capsys):
    report = json.loads((run_folder / "report.json").read_text())
    assert report["task"] == "rate"
    assert report["metrics"]["mean_absolute_error"] < 0.5
    ratings = pipeline(TEXTS)
    assert ratings[1] < 2 < 4 < ratings[0]
    capsys.readouterr()
    assert commands.main(["predict", str(run_folder), *TEXTS]) == 0
    assert lines(capsys) == [f"{rating:.2f}" for rating in ratings]


def test_options_of_a_new_task_are_flags_and_are_validated(capsys):
    with pytest.raises(SystemExit):
        commands.main(["train", "rate", "--help"])
    assert "The highest rating. Default: 5.0." in " ".join(capsys.readouterr().out.split())
    assert commands.main(["train", "rate", "--data", "x.tsv", "--tokenizer", "byte"]) == 2
    assert "`--tokenizer` must be a folder or one of ['wordpiece']" in capsys.readouterr().err


def test_a_new_task_is_exported_verified_and_served(run_folder, pipeline, tmp_path, capsys):
    folder = tmp_path / "export"
    assert commands.main(["export", str(run_folder), str(folder), "--formats", "onnx"]) == 0
    assert commands.main(["verify", str(folder)]) == 0
    served = serving.load(folder)
    assert type(served) is ServedRating
    rows = [*TEXTS, "", 5]  # the last is invalid
    answers, expected = served(rows, errors="return"), pipeline(rows, errors="return")
    signature = pipeline.signatures()["serving_default"].function(tf.constant(rows[:-1]))
    np.testing.assert_allclose(signature["rating"], expected[:-1], rtol=1e-4)
    np.testing.assert_allclose(answers[:-1], expected[:-1], rtol=1e-4)
    assert type(answers[-1]) is type(expected[-1]) is TypeError
    capsys.readouterr()
    assert commands.main(["predict", str(folder), *TEXTS]) == 0
    assert lines(capsys) == [f"{rating:.2f}" for rating in pipeline(TEXTS)]

    async def requests(app):
        _, documents = await json_call(app, "GET", "/openapi.json")
        assert "rating" in json.dumps(documents)
        return await json_call(app, "POST", "/v1/models/it:predict", {"instances": TEXTS})

    status, answer = run({"it": folder}, requests)
    assert status == 200
    found = [row["rating"] for row in answer["predictions"]]
    np.testing.assert_allclose(found, pipeline(TEXTS), rtol=1e-4)


PACKAGE = """
from keras_transformer import pipelines, recipes
import keras_transformer_serving as serving

class Stars(pipelines.TextClassification):
    pass

class ServedStars(serving.TextClassification, pipeline="Stars"):
    pass

class GiveStars(recipes.Tag):
    task, summary = "give-stars", "give stars"
"""
ENTRY_POINTS = """
[keras_transformer.tasks]
give-stars = stars
[keras_transformer.pipelines]
Stars = stars
[keras_transformer_serving.pipelines]
Stars = stars
"""


def test_a_task_of_another_package_is_imported_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "stars.py").write_text(PACKAGE)
    (tmp_path / "stars-1.0.dist-info").mkdir()
    (tmp_path / "stars-1.0.dist-info" / "METADATA").write_text("Name: stars\nVersion: 1.0\n")
    (tmp_path / "stars-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stars", raising=False)
    with pytest.raises(SystemExit):
        commands.main(["train", "--help"])
    assert "give-stars a task of stars" in " ".join(capsys.readouterr().out.split())
    assert "stars" not in sys.modules
    with pytest.raises(SystemExit):
        commands.main(["train", "give-stars", "--help"])
    assert "give stars" in capsys.readouterr().out
    assert (
        pipelines.Pipeline.named("Stars").__module__ == ExportedPipeline.named("Stars").__module__ == "stars"
    )
    assert pipelines.Pipeline.named("Moons") is ExportedPipeline.named("Moons") is None
    del TASKS["give-stars"]
