"""`recipes.evaluate`: metrics of pipelines that do not generate, on files."""

import json
import pathlib
import tarfile
import types

import keras
import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import pipelines, recipes
from keras_transformer.recipes import scores
from keras_transformer_cli import commands
from keras_transformer_options.arguments import ArgumentError
from tests.audio import RATE, wav
from tests.test_saved_files import FOLDER


def fake(name, answer, problem_type=None, **config):
    """A pipeline of this name."""

    class Fake:
        def __init__(self):
            self.generates = False
            self.config = {"pipeline": name, "labels": ["no", "yes"], "problem_type": problem_type, **config}

        def __call__(self, *columns, **options):
            self.options = options
            return answer(*columns)

    return Fake()


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


def test_labels_that_are_numbers_equal_their_texts_in_files(tmp_path, caplog):
    path = table(tmp_path / "reviews.tsv", [("good", "1"), ("bad", "0")])
    numbers = fake("TextClassification", lambda texts: [int(text == "good") for text in texts], labels=[0, 1])
    assert recipes.evaluate(numbers, [path])["accuracy"] == 1
    assert not caplog.messages


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
    tagger.config["aggregation"] = "first"
    with pytest.raises(
        ValueError, match="`pipeline` must have aggregation=None.*Received: .*aggregation='first'"
    ):
        recipes.evaluate(tagger, [str(tmp_path / "tags.conll")])


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


def squad(path, answers):
    """Write questions about the digits of one context, each with its answers."""
    context = " ".join(answers)
    questions = [
        {"id": str(i), "question": f"which {i}?", "answers": [{"text": a, "answer_start": context.index(a)}]}
        for i, a in enumerate(answers)
    ]
    content = {"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(content))
    return str(path)


def test_questions_have_exact_match_and_f1_of_words(tmp_path):
    path = squad(tmp_path / "questions.json", ["the red fox", "two", "a cat"])
    found = iter(["Red fox!", "two dogs", "owl"])
    answerer = fake(
        "QuestionAnswering", lambda q, _: [types.SimpleNamespace(text=text) for text in list(found)[: len(q)]]
    )
    # Articles, case and punctuation do not count; of "two dogs" precision is 1/2, recall 1.
    expected = {"exact_match": 1 / 3, "f1": (1 + 2 / 3 + 0) / 3}
    assert recipes.evaluate(answerer, [path]) == pytest.approx(expected)


def test_questions_without_an_answer_have_the_best_thresholds():
    references = [["a b"], [], ["c"], [], ["d"]]
    best, no_answer = ["a", "x", "c", "y", "e"], [0.5, 2.0, -1.0, -0.5, 1.0]
    found = scores.thresholds(references, best, no_answer)
    by_threshold = {
        threshold: scores.spans(
            references,
            ["" if score > threshold else text for text, score in zip(best, no_answer, strict=True)],
        )
        for threshold in (-2.0, *no_answer)
    }
    for name in ("exact_match", "f1"):
        values = {threshold: metrics[name] for threshold, metrics in by_threshold.items()}
        assert found[f"best_{name}"] == pytest.approx(max(values.values()))
        assert values[found[f"best_{name}_threshold"]] == found[f"best_{name}"]
    never = scores.thresholds([[], []], ["x", "y"], [3.0, 4.0])
    assert (never["best_f1"], never["best_f1_threshold"]) == (1, 2)


def test_questions_without_an_answer_are_evaluated_with_and_without_the_threshold(tmp_path):
    path = squad(tmp_path / "questions.json", ["one", "two", "owl"])
    content = json.loads(pathlib.Path(path).read_text())
    content["data"][0]["paragraphs"][0]["qas"][1] |= {"answers": [], "is_impossible": True}
    pathlib.Path(path).write_text(json.dumps(content))
    spans = [serving.pipelines.question_answering.Span(text, 0, 3, 0.5, score) for text, score in (
        ("one", -3.0), ("one", 2.0), ("owl", 1.0),
    )]  # fmt: skip
    answerer = fake("QuestionAnswering", lambda q, _: spans, no_answer_threshold=0.0)
    metrics = recipes.evaluate(answerer, [path])
    assert metrics == pytest.approx(
        {
            "exact_match": 2 / 3,
            "f1": 2 / 3,
            "has_answer_exact_match": 1 / 2,
            "has_answer_f1": 1 / 2,
            "no_answer_exact_match": 1,
            "no_answer_f1": 1,
            "best_exact_match": 1,
            "best_exact_match_threshold": 1,
            "best_f1": 1,
            "best_f1_threshold": 1,
        }
    )
    assert answerer.options["no_answer_threshold"] > 1e30
    always = recipes.evaluate(fake("QuestionAnswering", lambda q, _: spans), [path])
    assert always["no_answer_f1"] == 0
    assert "best_f1" not in always


def test_rerankers_have_the_mean_reciprocal_rank(tmp_path):
    rows = [("q", "a", "1"), ("q", "b", "0"), ("r", "c", " 0"), ("r", "d", "0"), ("r", "e", "1")]
    scores = {"a": 0.9, "b": 0.2, "c": 0.8, "d": 0.1, "e": 0.6}
    path = table(tmp_path / "judgements.tsv", rows)
    for activation, of_probability in (("sigmoid", lambda p: p), ("linear", lambda p: np.log(p / (1 - p)))):
        reranker = fake(
            "Reranking",
            lambda _, texts: of_probability(np.array([scores[text] for text in texts])),  # noqa: B023
            activation=activation,
        )
        metrics = recipes.evaluate(reranker, [path])
        assert metrics == pytest.approx({"mean_reciprocal_rank": (1 + 1 / 2) / 2, "accuracy": 0.8})


def test_speech_has_the_word_error_rate_and_resamples(tmp_path):
    for number, rate in enumerate((RATE, RATE, 8000)):
        (tmp_path / f"{number}.wav").write_bytes(wav(np.zeros(rate), rate))
    heard = ["go left", ValueError("`audio` is too short"), "stop"]
    speech = fake("SpeechToText", lambda audio: heard[: len(audio)], sample_rate=RATE)
    path = table(tmp_path / "clips.tsv", [("0.wav", "go right"), ("1.wav", "stop")])
    assert recipes.evaluate(speech, [path]) == {"word_error_rate": pytest.approx(2 / 3)}
    assert not speech.options["resample"]
    path = table(tmp_path / "clips.tsv", [("0.wav", "go right"), ("1.wav", "stop"), ("2.wav", "stop")])
    with pytest.raises(ArgumentError, match=r"must have 16000 .* or resample=True"):
        recipes.evaluate(speech, [path])
    assert recipes.evaluate(speech, [path], resample=True) == {"word_error_rate": pytest.approx(2 / 4)}
    assert speech.options["resample"]


def pictures(folder, sizes):
    """Write images of one colour, in folders by whether they are light."""
    for number, size in enumerate(sizes):
        name, value = (("no", 0), ("yes", 255))[number % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(folder / name / f"{number}.png", np.full((*size, 3), value), scale=False)
    return str(folder)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_have_accuracy_and_f1(tmp_path, channels):
    folder = pictures(tmp_path / "images", [(4, 4), (8, 5), (6, 6), (9, 9)])

    def answer(images):
        assert images.shape == (4, 4, 4, channels)
        return ["no" if image.mean() < 100 else "yes" for image in images]

    classifier = fake("ImageClassification", answer, image_size=(4, 4), num_channels=channels)
    assert recipes.evaluate(classifier, folder) == {"accuracy": 1.0, "macro_f1": 1.0}


def examples_of(name, folder):
    """Write examples for a task."""
    texts = ["a b", "casa ñ", "hound and house", "the dog"]
    folder.mkdir()
    if name == "TokenClassification":
        (folder / "tags.conll").write_text("a x\nb y\n\nhound z\n")
        return [str(folder / "tags.conll")]
    if name == "ImageClassification":
        return pictures(folder / "images", [(8, 8), (9, 12), (8, 8), (5, 6)])
    if name == "QuestionAnswering":
        return [squad(folder / "questions.json", ["a b", "casa"])]
    if name.startswith("SpeechToText"):
        for number in range(2):
            sound = np.sin(np.arange(4000) * (0.1 + number))
            (folder / f"{number}.wav").write_bytes(wav(sound, 8000))
        return [table(folder / "clips.tsv", [("0.wav", "a b"), ("1.wav", "c")])]
    columns = {
        "TextClassification": [texts, ["x", "y", "x", "y"]],
        "Reranking": [["q", "q", "r", "r"], texts, ["1", "0", "0", "1"]],
        "Embedding": [texts, texts[::-1], ["3", "1", "2", "5"]],
    }[name]
    return [table(folder / "rows.tsv", zip(*columns, strict=True))]


SAVED = [
    *recipes.evaluation.EVALUATED,
    pytest.param("SpeechToText_generating", marks=pytest.mark.slow),  # the same metric
]


def saved(name, folder):
    """Return the folder of an archive, the files of examples for it, and the options to read them."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(folder / "saved", filter="data")
    options = {"resample": True} if name.startswith("SpeechToText") else {}
    config = json.loads((folder / "saved" / "export" / "config.json").read_text())
    if config.get("problem_type") == "multi_label_classification":
        options["label_separator"] = "|"
    return folder / "saved", examples_of(name, folder / "data"), options


@pytest.mark.parametrize("name", SAVED)
def test_exports_are_evaluated_by_the_command(name, tmp_path, capsys):
    folder, paths, options = saved(name, tmp_path)
    metrics = recipes.evaluate(serving.load(folder / "export"), paths, **options)
    flags = ["--resample"] if "resample" in options else []
    flags += ["--label-separator", "|"] if "label_separator" in options else []
    data = [paths] if isinstance(paths, str) else paths
    assert commands.main(["evaluate", str(folder / "export"), "--data", *data, *flags]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert {metric: float(value) for metric, value in printed.items()} == pytest.approx(metrics, abs=1e-4)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", SAVED)
def test_exports_have_the_metrics_of_their_pipelines(name, tmp_path):
    folder, paths, options = saved(name, tmp_path)
    expected = recipes.evaluate(pipelines.load(folder / "pipeline"), paths, **options)
    assert recipes.evaluate(serving.load(folder / "export"), paths, **options) == pytest.approx(expected)


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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "FillMask",
            "--data x.tsv",
            "`path` must be a pipeline that generates, or one of TextClassification",
        ),
        ("Embedding", "", "`--data` must name files of examples for a Embedding"),
        ("Reranking", "--data x.tsv --metrics bleu", "`--metrics` must be None for a Reranking"),
    ],
)
def test_a_pipeline_that_is_not_evaluated_is_rejected_before_it_is_loaded(
    name, options, message, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "run" / "pipeline"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"pipeline": name}))
    monkeypatch.delattr(commands, "load_libraries")
    assert commands.main(["evaluate", str(tmp_path / "run"), *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_raises_an_error_with_the_pattern_of_its_files(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text")
    folder = str(tmp_path / "texts")
    assert (
        commands.main(["train", "language-model", "--data", folder, "--output", str(tmp_path / "run")]) == 2
    )
    assert f"'{folder}', a directory; pass {folder}/*.txt" in capsys.readouterr().err


def test_messages_about_files_name_options_of_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    monkeypatch.setattr(pipelines, "load", lambda path: classifier())
    path = tmp_path / "reviews.csv"
    path.write_text("text;label\ngood;yes\nbad\nfine;yes\n", encoding="utf-8")
    arguments = ["evaluate", str(tmp_path / "run"), "--data", str(path)]
    assert commands.main(arguments) == 2
    assert "pass --on-error skip to skip them" in capsys.readouterr().err
    assert commands.main([*arguments, "--on-error", "skip"]) == 0
    output = capsys.readouterr()
    assert output.out == "accuracy 1\nmacro_f1 1\n"
    assert "pass --no-header if it is an example" in output.err
    path.write_text("good;yes\nfine;yes\nbad;no\n", encoding="cp1252")
    assert commands.main([*arguments, "--no-header", "--delimiter", ";", "--encoding", "cp1252"]) == 0


def test_an_export_takes_images_in_batches_of_its_size(tmp_path):
    with tarfile.open(FOLDER / "ImageClassification.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    served = serving.load(tmp_path / "export")
    shape = (*served.config["image_size"], served.config["num_channels"])
    images = np.random.default_rng(0).uniform(*served.config["value_range"], (3, *shape))
    answers = served(images)
    assert [served(image) for image in images] == served(images, batch_size=2) == answers
    assert served([]) == []
    with pytest.raises(ValueError, match=r"`images` must each have the shape \(.*Received: "):
        served([images[0], images[0][:-1]])
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer. Received: batch_size=0"):
        served(images, 0)
