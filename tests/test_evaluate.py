"""`recipes.evaluate`: metrics of pipelines that do not generate, on files."""

import types

import numpy as np
import pytest

from keras_transformer import pipelines, recipes
from keras_transformer_cli import commands
from keras_transformer_options.arguments import ArgumentError


def fake(name, answer, problem_type=None):
    """A pipeline of a class of this name."""

    def call(self, *columns, **_):
        return answer(*columns)

    model = types.SimpleNamespace(problem_type=problem_type)
    attributes = {"__call__": call, "generates": False, "labels": ["no", "yes"], "model": model}
    return type(name, (), attributes)()


def table(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def reviews(tmp_path):
    return table(tmp_path / "reviews.tsv", [("good", "yes"), ("bad", "no"), ("fine", "yes"), ("poor", "no")])


def classifier():
    return fake("TextClassification", lambda texts: ["no" if text == "bad" else "yes" for text in texts])


def test_classifications_have_accuracy_and_f1(reviews):
    metrics = recipes.evaluate(classifier(), [reviews])
    # F1 of "yes": precision 2/3, recall 1; of "no": precision 1, recall 1/2.
    assert metrics["accuracy"] == 0.75
    assert metrics["macro_f1"] == pytest.approx((0.8 + 2 / 3) / 2)


def test_several_labels_need_their_separator(tmp_path, caplog):
    path = table(tmp_path / "reviews.tsv", [("good", "yes;no"), ("bad", "no"), ("odd", ";")])
    several = fake(
        "TextClassification",
        lambda texts: [{"good": ["no", "yes"], "bad": ["yes"], "odd": []}[text] for text in texts],
        "multi_label_classification",
    )
    metrics = recipes.evaluate(several, [path], label_separator=";")
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["macro_f1"] == pytest.approx(2 / 3)  # of each label: precision or recall 1/2, the other 1
    assert not caplog.messages
    recipes.evaluate(several, [path], label_separator="|")
    assert "Labels that the classifier does not have: ;, yes;no" in caplog.messages
    with pytest.raises(ArgumentError, match="`label_separator` must be what separates .* Received: .*None"):
        recipes.evaluate(several, [path])
    with pytest.raises(ArgumentError, match="`label_separator` must be None for a pipeline of one label"):
        recipes.evaluate(classifier(), [path], label_separator=";")
    with pytest.raises(ArgumentError, match="must be a classifier, not a regression"):
        recipes.evaluate(fake("TextClassification", list, "regression"), [path])


def test_answers_have_exact_match_and_tags_an_accuracy(tmp_path):
    (tmp_path / "tags.conll").write_text("Ana PER\nruns O\n\nLima LOC\n")
    tagged = types.SimpleNamespace
    words = {"Ana runs": [("Ana", 0, 3, "PER"), ("runs", 4, 8, "PER")], "Lima": [("Lima", 0, 4, "LOC")]}
    fields = ("word", "start", "end", "label")
    tagger = fake(
        "TokenClassification",
        lambda texts: [
            [tagged(**dict(zip(fields, word, strict=True)), score=1.0) for word in words[t]] for t in texts
        ],
    )
    assert recipes.evaluate(tagger, [str(tmp_path / "tags.conll")])["accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(ArgumentError, match="`format` must be None for the files of a TokenClassification"):
        recipes.evaluate(tagger, [str(tmp_path / "tags.conll")], format="tsv")


def test_embeddings_have_spearmans_correlation(tmp_path):
    angles = {"a": 0.0, "b": 0.3, "c": 1.0, "d": 2.0}
    embedding = fake(
        "Embedding", lambda texts: np.array([[np.cos(angles[t]), 2 * np.sin(angles[t])] for t in texts])
    )
    # The ranks of similarities are 2, 3, 1, those of cosines 3, 2, 1.
    rows = [("a", "b", "3"), ("a", "c", "5"), ("a", "d", "1")]
    assert recipes.evaluate(embedding, [table(tmp_path / "pairs.tsv", rows)]) == {
        "spearman": pytest.approx(0.5)
    }
    with pytest.raises(ArgumentError, match="`data` must have a number, the similarity, .*Received: 'much'"):
        recipes.evaluate(embedding, [table(tmp_path / "words.tsv", [("a", "b", "much")])])
    with pytest.raises(ArgumentError, match="`label_separator` must be None for the files of a Embedding"):
        recipes.evaluate(embedding, [table(tmp_path / "pairs.tsv", rows)], label_separator=",")


def test_the_command_prints_the_metrics(reviews, tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    monkeypatch.setattr(pipelines, "load", lambda path: classifier())
    arguments = ["evaluate", str(tmp_path / "run")]
    assert commands.main([*arguments, "--data", reviews]) == 0
    assert capsys.readouterr().out == "accuracy 0.75\nmacro_f1 0.7333\n"
    for options, message in (
        ([], "`--data` must name files of examples for a TextClassification"),
        (["--data", reviews, "--metrics", "bleu"], "`--metrics` must be None for a TextClassification"),
        (["--data", str(tmp_path)], "`--data` must"),
    ):
        assert commands.main([*arguments, *options]) == 2
        assert message in capsys.readouterr().err


def test_a_folder_raises_an_error_with_the_pattern_of_its_files(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text")
    folder = str(tmp_path / "texts")
    assert (
        commands.main(["train", "language-model", "--data", folder, "--output", str(tmp_path / "run")]) == 2
    )
    assert f"'{folder}', a directory; pass {folder}/*.txt" in capsys.readouterr().err
