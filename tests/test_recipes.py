import collections
import dataclasses
import html.parser
import json
import logging
import random
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import data, export, pipelines, recipes
from keras_transformer.datasets import phrasebook
from keras_transformer.recipes import pages, pretrained, quickstarts, scores, stopping

TINY = {
    "layers": 1,
    "heads": 2,
    "model_dim": 16,
    "vocabulary_size": 336,
    "max_length": 32,
    "jit_compile": False,
}
SMALL = {**TINY, "batch_tokens": 128, "max_new_tokens": 8, "learning_rate": 0.01}
NUMBERS = ("one", "two", "three", "four", "five", "six")


@pytest.fixture
def tiny(monkeypatch, sentence_pairs):
    monkeypatch.setattr(
        phrasebook, "load_data", lambda: (sentence_pairs * 4, sentence_pairs[:3], sentence_pairs[:5])
    )
    monkeypatch.setattr(quickstarts, "PHRASEBOOK", {**SMALL, "dataset": "phrasebook"})


def never(*_, **__):
    raise AssertionError("this must not run")


def earlier(folder):
    """Create files with the names of an earlier quickstart."""
    for name in ("pipeline", "export"):
        (folder / name).mkdir(parents=True)
    (folder / "pipeline" / "config.json").write_text('{"pipeline": "TextToText"}')
    (folder / "export" / "manifest.json").write_text('{"files": {}}')
    (folder / "report.json").write_text('{"exact_match": 0.5}')


def sentences(count, words=4):
    """Return random sentences of the words NUMBERS."""
    drawn = random.Random(0)
    return [" ".join(drawn.choices(NUMBERS, k=words)) for _ in range(count)]


def toy_examples(task):
    """Return examples of a rule that a tiny model learns."""
    texts = sentences(300)
    if task == "translate":
        return [(text, text.upper()) for text in texts]
    if task == "summarize":  # the first word of a document that is longer than the model's inputs
        return [(f"{text} " * 5, text.split()[0]) for text in texts]
    if task in ("language-model", "masked-language-model"):
        return [
            " ".join((NUMBERS * 9)[start : start + length]) for start in range(6) for length in range(6, 46)
        ]
    if task == "tag":
        return [(text.split(), ["B-N" if word == "one" else "O" for word in text.split()]) for text in texts]
    if task == "answer":
        names, drawn = ("ada", "bob", "eve"), random.Random(0)
        found = []
        for number, text in enumerate(texts):
            words, name = text.split(), drawn.choice(names)
            words.insert(drawn.randrange(len(words) + 1), name)
            context = " ".join(words)
            found.append(data.Question("who is it", context, (name,), (context.index(name),), str(number)))
        return found
    if task == "rerank":  # relevance does not depend on the query
        queries = sentences(300, words=1)
        return [
            (query, text, float(text.startswith("one"))) for query, text in zip(queries, texts, strict=True)
        ]
    return [(text, "yes" if text.startswith("one") else "no") for text in texts]


TASKS = {
    "translate": (recipes.Translate, pipelines.TextToText, "chrf", 60),
    "summarize": (recipes.Summarize, pipelines.TextToText, "rouge1", 90),
    "language-model": (recipes.LanguageModel, pipelines.TextGeneration, "perplexity", -3),
    "masked-language-model": (recipes.MaskedLanguageModel, pipelines.FillMask, "token_accuracy", 0.5),
    "classify": (recipes.Classify, pipelines.TextClassification, "macro_f1", 0.9),
    "tag": (recipes.Tag, pipelines.TokenClassification, "entity_f1", 0.9),
    "answer": (recipes.Answer, pipelines.QuestionAnswering, "exact_match", 0.9),
    "rerank": (recipes.Rerank, pipelines.Reranking, "mean_reciprocal_rank", 0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_each_recipe_learns_a_rule_and_writes_a_pipeline_and_a_report(task, tmp_path):
    recipe_class, pipeline_class, metric, least = TASKS[task]
    epochs = {"classify": 4, "answer": 8, "masked-language-model": 50}.get(task, 25)
    options = {"epochs": epochs, "learning_rate": 0.01, "dropout": 0.0, "patience": epochs, "batch_size": 16}
    recipe = recipe_class(toy_examples(task), **{**TINY, "max_length": 16}, **options)
    said = []
    report = recipes.run(recipe, tmp_path / "run", say=said.append, verbose=0)
    assert isinstance(pipelines.load(tmp_path / "run" / "pipeline"), pipeline_class)
    value = report["metrics"][metric]
    assert (-value if least < 0 else value) >= least, report["metrics"]
    assert json.loads((tmp_path / "run" / "report.json").read_text()) == json.loads(json.dumps(report))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("pipeline", "report.json", "report.html", "command.txt"),
    }
    assert len(report["history"]["val_loss"]) == len(report["history"]["loss"]) <= epochs
    assert report["evaluated_on"] == "validation"
    assert report["signal"] is None
    assert report["examples"]
    assert report["command"].startswith(f"kt.recipes.{recipe_class.__name__}(data=")
    assert len(report["command"]) < 300
    epochs = len(report["history"]["loss"])
    assert report["updates"] >= epochs
    assert report["updates"] % epochs == 0
    assert f"Updated the weights {report['updates']:,} times in {epochs} epochs" in said
    losses = report["history"]["val_loss"]
    assert any("train for more epochs" in line for line in said) == (losses.index(min(losses)) == epochs - 1)


def test_questions_without_an_answer_give_the_pipeline_a_threshold():
    answerable = toy_examples("answer")[:4]
    nothing = data.Question("who is it", "one two", (), (), "-")
    recipe = recipes.Answer(answerable, **TINY)
    assert recipe.new_pipeline(answerable).no_answer_threshold is None
    assert recipe.new_pipeline([*answerable, nothing]).no_answer_threshold == 0


@pytest.mark.slow
def test_a_folder_of_images_becomes_an_image_classifier(tmp_path):
    drawn = np.random.default_rng(0)
    for name, channel in (("red", 0), ("blue", 2)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            image = drawn.integers(0, 60, (10, 12, 3))
            image[..., channel] += 150
            keras.utils.save_img(tmp_path / "images" / name / f"{number}.png", image, scale=False)
    recipe = recipes.Classify(
        tmp_path / "images",
        layers=1,
        heads=2,
        model_dim=16,
        image_size=8,
        patch_size=4,
        epochs=8,
        learning_rate=0.01,
    )
    report = recipes.run(recipe, tmp_path / "run", say=lambda _: None, verbose=0)
    assert report["metrics"]["accuracy"] == 1
    assert report["pipeline"] == "ImageClassification"
    files = {f"{name}/{number}.png" for name in ("red", "blue") for number in range(20)}
    assert {example["input"] for example in report["examples"]} <= files
    assert any(file in (tmp_path / "run" / "report.html").read_text() for file in files)
    (tmp_path / "images" / "red" / "0.png").write_text("no image")
    with pytest.raises(ValueError, match=r"must be images in PNG, JPEG, GIF or BMP. Received: .*red/0.png"):
        recipe.read([tmp_path / "images"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "labels", [np.array([0, 1] * 8), np.array([False, True] * 8), np.array(["no", "sí"] * 8)]
)
def test_labels_of_numpy_are_trained_saved_and_reported(labels, tmp_path):
    examples = [(f"{'good' if row % 2 else 'bad'} text {row}", label) for row, label in enumerate(labels)]
    recipe = recipes.Classify(examples, validation=0.25, **TINY, epochs=1)
    report = recipes.run(recipe, tmp_path / "run", say=lambda _: None, verbose=0)
    pipeline = pipelines.load(tmp_path / "run" / "pipeline")
    expected = [str(label) for label in labels[:2]] if labels.dtype.kind == "U" else [0, 1]
    assert [*pipeline.labels] == expected
    assert pipeline("good text") in expected
    assert json.loads((tmp_path / "run" / "report.json").read_text())["metrics"] == report["metrics"]
    again = pipelines.TextClassification(pipeline.model, pipeline.tokenizer, labels[:2])
    again.save(tmp_path / "again")
    assert [*pipelines.load(tmp_path / "again").labels] == expected


@pytest.mark.slow
def test_the_best_weights_are_restored_and_training_stops_early(monkeypatch):
    monkeypatch.setattr(stopping, "LEAST_UPDATES", 1)
    train = [("one two " * 3, "yes"), ("three four " * 3, "no")] * 8
    recipe = recipes.Classify(
        train,
        validation=[("one four", "yes"), ("three two", "no"), ("five", "yes"), ("six", "no")],
        **TINY,
        epochs=40,
        patience=2,
        learning_rate=0.05,
        batch_size=4,
    )
    pipeline, history = recipe.train(verbose=0)
    losses = history.history["val_loss"]
    assert len(losses) < 40
    batches = recipe.batches(recipe.splits.validation, pipeline, shuffle=False)
    assert pipeline.model.evaluate(batches, verbose=0)[0] == pytest.approx(min(losses), rel=1e-4)
    assert losses[-1] > min(losses)


@pytest.mark.parametrize(
    ("batches", "accumulate", "warmup", "epochs"),
    [(1000, 1, 0, 3), (10, 1, 0, 11), (40, 4, 0, 11), (1000, 1, 4, 6), (10, 1, 4, 14)],
)
def test_patience_counts_updates_after_the_warm_up(batches, accumulate, warmup, epochs):
    """The loss is the best in the first epoch; patience is 2 epochs, or 100 updates."""
    callback = stopping.EarlyStopping("val_loss", "min", 2, accumulate)
    model = SimpleNamespace(
        stop_training=False, get_weights=list, set_weights=list, optimizer=SimpleNamespace(learning_rate=0.0)
    )
    callback.set_model(model)
    callback.set_params({"steps": batches})
    callback.on_train_begin()
    trained = 0
    while not model.stop_training:
        callback.on_epoch_begin(trained)
        model.optimizer.learning_rate += 1 if trained < warmup else -1
        callback.on_epoch_end(trained, {"loss": 1.0, "val_loss": 1.0 + min(trained, 1)})
        trained += 1
    assert trained == epochs


RESTORED = "Restored the weights of epoch {}, whose validation loss is the best"
KEPT = "Kept the weights of the last epoch, whose validation {} is the best: train for more {} to improve it"


@pytest.mark.parametrize(
    ("losses", "early", "minutes", "lines"),
    [
        (
            [1.0, 2.0, 2.0],
            True,
            1,
            ["Stopped early: the validation loss did not improve in 2 epochs (patience)", RESTORED.format(1)],
        ),
        ([2.0, 1.0, 2.0], False, None, [RESTORED.format(2)]),
        ([2.0, 1.0], False, None, [KEPT.format("loss", "epochs")]),
        ([2.0, 1.0], False, 1, ["Stopped after 1 minute, the time limit", KEPT.format("loss", "minutes")]),
        ([2.0, 1.0, 2.0], False, 0.5, ["Stopped after 0.5 minutes, the time limit", RESTORED.format(2)]),
        ([2.0, float("nan")], False, None, [RESTORED.format(1)]),
        ([float("nan")], True, None, []),
        ([float("nan")], False, 2, ["Stopped after 2 minutes, the time limit"]),
    ],
)
def test_the_end_of_training_is_explained(losses, early, minutes, lines):
    limits = {"early": early, "minutes": minutes}
    assert stopping.outcome({"val_loss": losses}, "val_loss", "min", **limits) == lines
    history = {"val_loss": losses, "val_bleu": [-loss for loss in losses]}
    lines = [line.replace("loss", "bleu") for line in lines]
    assert stopping.outcome(history, "val_bleu", "max", **limits) == lines


@pytest.mark.slow_variants
@pytest.mark.parametrize("task", ["translate", "summarize"])
def test_training_stops_by_the_score_of_generated_texts(task, monkeypatch):
    recipe_class = {"translate": recipes.Translate, "summarize": recipes.Summarize}[task]
    metric = recipe_class.metrics[0]
    scores = iter([5.0, 9.0, 8.0, 7.0, 6.0])
    evaluated = []

    def evaluate(answers, pairs, *, metrics):
        evaluated.append((pairs, metrics))
        return {metrics[0]: next(scores)}

    monkeypatch.setattr(pipelines, "evaluate", evaluate)
    monkeypatch.setattr(stopping, "LEAST_UPDATES", 1)  # so that patience counts these epochs
    options = {**TINY, "epochs": 5, "patience": 2, "max_length": 32, "monitor": metric}
    recipe = recipe_class(toy_examples(task)[:20], toy_examples(task)[:2], **options)
    _, history = recipe.train(verbose=0)
    assert history.history[f"val_{metric}"] == [5.0, 9.0, 8.0, 7.0]
    assert evaluated == [(recipe.splits.validation, [metric])] * 4


def test_an_unknown_score_to_monitor_is_named():
    with pytest.raises(ValueError, match=r"`monitor` must be one of .*'bleu', 'chrf'.* monitor='rouge1'"):
        recipes.Translate(toy_examples("translate"), monitor="rouge1")


def test_equal_seeds_give_equal_weights(sentence_pairs):
    def weights(seed):
        recipe = recipes.Translate(sentence_pairs, **SMALL, seed=seed)
        keras.utils.set_random_seed(seed)
        return recipe.new_pipeline(sentence_pairs).model.get_weights()

    first, second, other = weights(0), weights(0), weights(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("steps", [1, 3, 9, 100])
def test_the_schedule_warms_up_to_the_peak_and_decays_to_zero(steps):
    schedule = recipes.Translate([], epochs=1, learning_rate=0.01).schedule(steps)
    rates = [float(schedule(step)) for step in range(steps + 1)]
    assert max(rates) == pytest.approx(0.01)
    assert rates.index(max(rates)) == steps // 10
    assert rates[steps] == pytest.approx(0, abs=1e-8)
    assert all(0 < rate <= 0.01001 for rate in rates[1:steps])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`data` or `dataset` is required, but not both"),
        ({"data": "a.tsv", "dataset": "phrasebook"}, "`data` or `dataset` is required, but not both"),
        ({"dataset": "other"}, "`dataset` must be one of"),
        ({"data": "a.tsv", "precision": "float16"}, "`precision` must be one of"),
        ({"data": "a.tsv", "model_size": "huge"}, "`model_size` must be one of"),
        ({"data": "a.tsv", "validation": 1.5}, "`validation` must be"),
        ({"data": "a.tsv", "epochs": 0}, "`epochs` must be"),
        ({"data": "a.tsv", "accumulate": 0}, "`accumulate` must be a positive integer"),
        ({"data": "a.tsv", "minutes": float("nan")}, "`minutes` must be positive and finite"),
        ({"data": "a.tsv", "from_": "x", "layers": 2}, "`layers` must be None with `from_`"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        recipes.Translate(**options)


DOCUMENTS = [(f"{text} " * 9, text) for text in sentences(12)]


@pytest.fixture(scope="module")
def learned_positions(tmp_path_factory):
    """The folder of a pipeline of a model with 20 learned positions."""
    from keras_transformer import models, text

    tokenizer = text.SentencePieceTokenizer.train([text for pair in DOCUMENTS for text in pair], 300)
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 8, "max_length": 20}
    model = models.Transformer(tokenizer.vocabulary_size, position_encoding="learned", **sizes)
    folder = tmp_path_factory.mktemp("pipeline") / "it"
    pipelines.TextToText(model, tokenizer, max_new_tokens=7).save(folder)
    return folder


def test_documents_are_cut_off_at_the_maximum_length(learned_positions):
    recipe = recipes.Summarize(DOCUMENTS, from_=learned_positions, max_length=12, batch_size=4)
    pipeline = recipe.untrained()
    assert (pipeline.max_source_tokens, pipeline.max_new_tokens) == (12, 7)
    for inputs, labels in recipe.batches(DOCUMENTS, pipeline, shuffle=False):
        assert inputs["source_ids"].shape[1] == 12
        assert (labels.numpy() != pipeline.tokenizer.pad_id).sum(axis=1).max() == 7
    metrics = recipe.evaluate(pipeline, DOCUMENTS[:3])
    assert {"rouge1", "rouge2", "rougeL"} <= metrics["intervals"].keys()
    with pytest.raises(
        ValueError, match=r"`max_length` must be at most max_length=20\. Received: max_length=21"
    ):
        recipes.Summarize(DOCUMENTS, from_=learned_positions, max_length=21).untrained()


def test_the_number_of_new_tokens_is_an_option_of_loaded_pipelines(learned_positions, tmp_path):
    from keras_transformer import models, text

    tokenizer = text.ByteTokenizer()
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    model = models.GPT(
        tokenizer.vocabulary_size, num_layers=1, num_heads=2, model_dim=8, max_length=20, **ids
    )
    pipelines.TextGeneration(model, tokenizer, max_new_tokens=7).save(tmp_path / "gpt")
    folders = {
        "Translate": learned_positions,
        "Summarize": learned_positions,
        "LanguageModel": tmp_path / "gpt",
    }
    for name, folder in folders.items():
        for options, expected in (({}, 7), ({"max_new_tokens": 5}, 5)):
            examples = DOCUMENTS if name == "Summarize" else [(f"{letter} a", "b") for letter in "abcdefgh"]
            recipe = getattr(recipes, name)(examples, from_=folder, max_length=12, **options)
            assert recipe.untrained().max_new_tokens == expected


def test_an_unlimiformer_summarizes_documents_longer_than_the_positions(learned_positions):
    options = {"from_": learned_positions, "max_length": 64, "max_new_tokens": 5, "top_k": 4}
    pipeline = recipes.Summarize(DOCUMENTS, **options, chunk_length=16).untrained()
    assert (pipeline.model.top_k, pipeline.model.chunk_length, pipeline.max_source_tokens) == (4, 16, 64)
    with pytest.raises(ValueError, match="`chunk_length` must be at most 20, the model's `max_length`"):
        recipes.Summarize(DOCUMENTS, **options).untrained()


def test_lines_that_are_empty_or_have_missing_or_extra_columns_are_rejected_or_skipped(tmp_path, caplog):
    path = tmp_path / "pairs.tsv"
    path.write_text("one\tuno\tCC-BY\n\ntwo\tdos\tCC-BY\nthree\t\tCC-BY\n", encoding="utf-8")
    with pytest.raises(ValueError, match="skip"):
        recipes.Translate(path, columns=(0, 1)).read([path])
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        recipe = recipes.Translate(path, columns=(0, 1), on_error="skip", reverse=True, validation=0.5)
        assert sorted(recipe.splits.train + recipe.splits.validation) == [("dos", "two"), ("uno", "one")]
    assert "2" in caplog.text
    with pytest.raises(ValueError, match="`columns` must name the columns of sources and targets.*3 columns"):
        recipes.Translate(path, on_error="skip").read([path])


@pytest.mark.parametrize("tag", [None, float("nan"), 0.5, np.array(["X"]), ""])
def test_missing_tags_are_rejected(tag):
    sentences = [([f"a{row}", "b"], ["O", tag if row == 3 else "X"]) for row in range(8)]
    with pytest.raises(ValueError, match=r"`data\[3\]` must have labels that are .* in row 1"):
        recipes.Tag(sentences, validation=0.5).splits  # noqa: B018


def test_tags_may_be_integers_and_strings_of_numpy():
    tags = (np.int64(1), np.str_("X"), True, 2)
    sentences = [([f"a{row}", "b"], ["O", tags[row % 4]]) for row in range(8)]
    splits = recipes.Tag(sentences, validation=0.5).splits
    found = {tag for sentence in [*splits.train, *splits.validation] for tag in sentence[1]}
    assert found == {"O", "1", "X", "2"}


def test_lines_that_are_not_utf8_are_rejected_or_skipped(tmp_path, caplog):
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\r\ncaf\xe9\nTwo.\n")
    with pytest.raises(
        ValueError, match="must name files without malformed.*1 malformed line.*\n.*, line 2: not"
    ):
        recipes.LanguageModel(path).read([path])
    assert recipes.LanguageModel(path, on_error="skip").read([path]) == ["One.\nTwo.\n"]
    assert "Skipping 1 malformed line of 3 (33.3 %); if the file is in Windows-1252" in caplog.text
    assert recipes.LanguageModel(path, encoding="cp1252").read([path]) == ["One.\ncafé\nTwo.\n"]


def test_a_plain_text_file_is_one_text_or_one_per_line(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text("\ufeffOne.\r\n\nTwo.\rThree.\n", encoding="utf-8", newline="")
    assert recipes.LanguageModel(path).read([path]) == ["One.\n\nTwo.\nThree.\n"]
    assert recipes.LanguageModel(path, lines=True, on_error="skip").read([path]) == ["One.", "Two.", "Three."]
    train, validation = recipes.LanguageModel(path, validation=0.5).splits[:2]
    assert train + validation == ["One.\n\n", "Two.\nThree.\n"]


def test_recipes_train_tokenizers_that_normalize_except_language_models(tmp_path):
    pairs = [("uno é dos", "one"), ("tres", "three")]
    same = ["é dos", "e\u0301\u00a0dos"]

    def is_equal(recipe, **options):
        options = {"tokenizer": "unigram", "vocabulary_size": 300, **options}
        tokenizer = recipe(pairs, **options).new_tokenizer(["uno é dos", "tres"])
        first, second = tokenizer.tokenize(same).to_list()
        return first == second

    assert is_equal(recipes.Translate, tokenizer=None)
    assert all(map(is_equal, (recipes.Summarize, recipes.Classify, recipes.Rerank, recipes.Translate)))
    assert is_equal(recipes.Classify, tokenizer=None)  # WordPiece
    assert not is_equal(recipes.LanguageModel)
    assert is_equal(recipes.LanguageModel, normalization="nfkc")
    assert not is_equal(recipes.Translate, normalization="identity")
    for options in ({"tokenizer": "wordpiece"}, {"tokenizer": str(tmp_path)}):
        with pytest.raises(
            ValueError, match="`normalization` must be None for a `tokenizer` that is not one"
        ):
            recipes.Classify(pairs, normalization="nfkc", **options)
    with pytest.raises(ValueError, match="`normalization` must be None with `from_`"):
        recipes.Translate(pairs, normalization="nfkc", from_="x")


def test_two_column_files_for_a_language_model_are_prompts_and_completions(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text('{"id": 1, "prompt": "2+3=", "completion": "5"}\n', encoding="utf-8")
    recipe = recipes.LanguageModel(path, columns=("prompt", "completion"))
    assert recipe.read([path]) == [("2+3=", "5")]
    pairs = [("2+3=", "5"), ("1+1=", "2")]
    recipe = recipes.LanguageModel(
        pairs, tokenizer="byte", validation=pairs[:1], layers=1, heads=2, model_dim=16
    )
    pipeline = recipe.new_pipeline(recipe.splits.train)
    ((inputs, labels),) = recipe.batches(recipe.splits.train, pipeline, shuffle=False)
    assert inputs["segment_ids"].numpy().max() == 2
    assert np.count_nonzero(labels) == 4  # two digits, two end tokens


@pytest.mark.slow
def test_a_language_model_learns_to_answer_prompts(tmp_path):
    pairs = [(f"{number} is", " even" if number % 2 == 0 else " odd") for number in range(10, 90)]
    recipe = recipes.LanguageModel(
        pairs, tokenizer="byte", layers=1, heads=2, model_dim=32, max_length=16, epochs=40, learning_rate=0.01
    )
    report = recipes.run(recipe, tmp_path / "run", verbose=0)
    assert report["metrics"]["perplexity"] < 1.2  # everything except the parity of the number is constant
    assert len(report["examples"]) == 5
    assert sum(row["answer"] == row["reference"] for row in report["examples"]) >= 4


class Labelled:
    """The parts of a pipeline that class weights and metrics need; by default it answers with the first label."""

    def __init__(self, *labels, answer=None):
        self.labels, self.answer = labels, answer or (lambda text: labels[0])
        self.config = {"labels": labels}

    def __call__(self, texts):
        return [self.answer(text) for text in texts]


def labelled(**counts):
    """Return the given number of examples of each class."""
    return [(f"{label} {n}", label) for label, count in counts.items() for n in range(count)]


def test_unequal_classes_are_weighted_by_inverse_frequency(caplog):
    examples = labelled(x=9, y=3)
    recipe = recipes.Classify(examples, validation=examples)
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        assert recipe.class_weight(Labelled("x", "y")) == {0: 6 / 9, 1: 2.0}
    assert "x 9, y 3" in caplog.text
    assert dataclasses.replace(recipe, class_weights="none").class_weight(Labelled("x", "y")) is None
    equal = labelled(x=9, y=6)
    assert recipes.Classify(equal, validation=equal).class_weight(Labelled("x", "y")) is None


@pytest.mark.parametrize("class_weights", ["balanced", "none"])
def test_classes_of_one_or_two_examples_warn_and_are_not_upweighted(caplog, class_weights):
    examples = labelled(Etiqueta=1, no=9, tal=2, yes=3)
    recipe = recipes.Classify(examples, validation=examples, class_weights=class_weights)
    weights = recipe.class_weight(Labelled("Etiqueta", "no", "tal", "yes"))
    assert "Classes with one or two training examples" in caplog.messages[0]
    assert caplog.messages[0].endswith("Etiqueta 1, tal 2")
    assert weights == (None if class_weights == "none" else {0: 1.0, 1: 6 / 9, 2: 1.0, 3: 2.0})
    rare = labelled(a=1, b=2)
    assert recipes.Classify(rare, validation=rare).class_weight(Labelled("a", "b")) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_rare_tag_is_held_out(seed):
    sentences = [(["a", str(i)], ["O", "B-PER" if i % 3 else "O"]) for i in range(60)]
    sentences += [([f"b{i}", "c"], ["B-ORG", "B-PER"]) for i in range(4)]
    train, held_out = recipes.Tag("unused", validation=0.1, seed=seed).split(sentences)
    for part, count in ((train, 3), (held_out, 1)):
        assert sum("B-ORG" in tags for _, tags in part) == count
    assert len(held_out) == 7
    few = [(["a"], ["O", "X"]), (["b"], ["O", "X", "Y"]), (["c"], ["Y", "Z"])]
    assert len(recipes.Tag("unused", validation=0.4, seed=seed).split(few)[0]) < 4


@pytest.mark.parametrize("seed", range(5))
def test_every_label_remains_in_the_training_split(seed):
    examples = labelled(one=1, two=2, many=9)
    splits = recipes.Classify(examples, validation=0.5, seed=seed).splits
    assert {label for _, label in splits.train} == {"one", "two", "many"}
    assert sorted([*splits.train, *splits.validation]) == sorted(examples)
    sentences = [([text], [label]) for text, label in examples]
    tagged = recipes.Tag(sentences, validation=0.5, seed=seed).splits
    assert {tag for _, tags in tagged.train for tag in tags} == {"one", "two", "many"}
    assert tagged.validation


def test_labels_become_strings_or_integers(tmp_path):
    texts = [f"text {number}" for number in range(8)]
    for labels, expected in (
        (np.arange(8) % 2, {0, 1}),
        (np.arange(8) % 2 == 0, {0, 1}),
        (["good", "good ", "bad", " bad"] * 2, {"good", "bad"}),
        (np.array(["x", "y"] * 4), {"x", "y"}),
        ([1, "x"] * 4, {"1", "x"}),
        (np.array([0.0, 1.0] * 4), {0, 1}),
    ):
        splits = recipes.Classify([*zip(texts, labels, strict=True)], validation=0.5).splits
        found = [label for examples in splits[:2] for _, label in examples]
        assert set(found) == expected
        assert {type(label) for label in found} <= {str, int}
    for missing in (None, float("nan"), np.float32("nan"), ["x"]):
        with pytest.raises(ValueError, match=r"`data` must have labels .*Received: .* in row 1"):
            recipes.Classify([("a", 1), ("b", missing), ("c", 0)], validation=0.5).splits  # noqa: B018
    for spaces in ("", " \t"):
        with pytest.raises(ValueError, match=r"`data` must have labels that are not empty.* in row 1"):
            recipes.Classify([("a", "x"), ("b", spaces), ("c", "y")], validation=0.5).splits  # noqa: B018
    several = recipes.Classify([("a", "x"), ("b", ""), ("c", "y")], label_separator=",")
    assert [label for _, label in several.examples("data")] == [("x",), (), ("y",)]
    with pytest.raises(ValueError, match="`labels` must have labels"):
        pipelines.classification.check_labels([0, None], 2)
    assert pipelines.classification.check_labels(np.array([True, False]), 2) == [1, 0]


def test_texts_may_have_several_labels(tmp_path, capsys):
    file = tmp_path / "reviews.csv"
    labels = {
        "good food": "food",
        "bad waiters": "service",
        "good food, bad waiters": "service , food",
        "hm": ",",
    }
    file.write_text("".join(f'"{text} {i}","{label}"\n' for text, label in labels.items() for i in range(6)))
    options = {"vocabulary_size": 60, "epochs": 1, "layers": 1, "model_dim": 8, "heads": 2, "hidden_dim": 8}
    recipe = recipes.Classify(file, label_separator=",", validation=0.25, **options)
    assert {example[-1] for example in recipe.splits.train} == {
        (),
        ("food",),
        ("service",),
        ("food", "service"),
    }
    pipeline, history = recipe.train(verbose=0)
    assert pipeline.model.problem_type == "multi_label_classification"
    assert 0 <= history.history["val_accuracy"][0] <= 1
    answers = {
        text: [name for name in ("food", "service") if name in label] for text, label in labels.items()
    }
    pipeline = Labelled("food", "service", answer=lambda text: answers[text[:-2]])
    metrics = recipe.evaluate(pipeline, recipe.splits.train)
    assert metrics["accuracy"] == metrics["macro_f1"] == 1.0
    assert {row["reference"] for row in metrics["examples"]} <= {"", "food", "service", "food, service"}
    for images in (tmp_path, [(np.zeros((8, 8, 3), "uint8"), "food")] * 4):
        with pytest.raises(ValueError, match="`label_separator` must be None for images"):
            recipes.Classify(images, label_separator=",").splits  # noqa: B018
    with pytest.raises(ValueError, match="`label_separator` must be a string of at least one character"):
        recipes.Classify(file, label_separator="")
    with pytest.raises(ValueError, match="`label_separator` must be None with `dataset`"):
        recipes.Classify(dataset="sst2", label_separator=",")


def test_examples_of_every_class_are_held_out():
    splits = recipes.Classify(labelled(x=60, y=10, z=1), validation=0.2).splits
    counts = collections.Counter(label for _, label in splits.validation)
    assert counts == {"x": 12, "y": 2}  # z has one, which is for training


def test_classes_without_examples_remain_in_the_metrics(caplog):
    found = scores.classification(["a", "b"], ["a", "a"], ["a", "b", "c"])
    assert found["f1"] == {"a": pytest.approx(2 / 3), "b": 0.0, "c": None}
    assert found["support"] == {"a": 1, "b": 1, "c": 0}
    assert found["macro_f1"] == pytest.approx(1 / 3)
    pipeline = Labelled("a", "b", "c")
    recipe = recipes.Classify(labelled(a=3, b=3), validation=0.5)
    metrics = recipe.evaluate(pipeline, labelled(a=1, b=1))
    assert metrics["f1"]["c"] is None
    assert recipe.class_counts(labelled(b=3, a=2)) == {"a": 2, "b": 3}
    assert "Classes without an example to evaluate on: c" in caplog.text
    images = [(np.zeros((2, 2, 3), "uint8"), "a/1.png", "a"), (np.ones((2, 2, 3), "uint8"), "b/1.png", "b")]
    splits = recipes.Classify(images, validation=images).splits
    assert splits.train == images


def test_a_header_with_custom_names_is_not_an_example(tmp_path, caplog):
    path = tmp_path / "reviews.csv"
    rows = [f"La película número {n} me {verb}.;{verb}" for n in range(9) for verb in ("gusta", "aburre")]
    path.write_text("\n".join(["Opinión libre;Polaridad", *rows]), encoding="cp1252")
    recipe = recipes.Classify(path, encoding="cp1252")
    assert {label for _, label in recipe.splits.train} == {"gusta", "aburre"}
    assert "Skipping the first row" in caplog.text
    examples = dataclasses.replace(recipe, header=False).splits
    assert ("Opinión libre", "Polaridad") in [*examples.train, *examples.validation]


@pytest.mark.slow
def test_epochs_have_no_total_under_a_time_limit(capsys, caplog):
    examples = toy_examples("classify")[:32]
    recipe = recipes.Classify(examples, **TINY, minutes=0.02, epochs=1)
    _, history = recipe.train()
    assert len(history.epoch) > 1
    assert "Training for minutes=0.02, in as many epochs as fit; epochs=1 is not applied" in caplog.text
    printed = re.findall(r"^Epoch .*$", capsys.readouterr().out, re.MULTILINE)
    assert printed == [f"Epoch {epoch + 1}" for epoch in history.epoch]
    recipe.train(verbose=0)
    assert capsys.readouterr().out == ""


def test_an_unknown_label_of_the_validation_examples_is_rejected():
    with pytest.raises(ValueError, match="`data` must have every label.*Received: 'z' in example 1"):
        scores.class_ids(["x", "z"], ["x", "y"])
    assert sorted(["10", "9", "b", "-1", "a"], key=scores.label_order) == ["-1", "9", "10", "a", "b"]


def test_encoder_weights_are_reused_under_a_new_head_and_any_precision(tmp_path):
    texts = sentences(20)
    masked = recipes.MaskedLanguageModel(texts, **TINY).new_pipeline(texts)
    masked.save(tmp_path / "run" / "pipeline")
    examples = toy_examples("classify")
    options = {"from_": tmp_path / "run", "precision": "mixed_bfloat16"}
    classifier = recipes.Classify(examples, **options).new_pipeline(examples)
    assert classifier.model.dtype_policy.name == "mixed_bfloat16"
    assert classifier.model.encoder.compute_dtype == "bfloat16"
    assert classifier.tokenizer.sha256 == masked.tokenizer.sha256
    both = zip(classifier.model.encoder.get_weights(), masked.model.encoder.get_weights(), strict=True)
    assert all(np.array_equal(one, other) for one, other in both)
    whole = pretrained.with_precision(classifier, "float32")
    assert whole.model.encoder.compute_dtype == "float32"
    assert whole.labels == ["no", "yes"]
    both = zip(whole.model.get_weights(), classifier.model.get_weights(), strict=True)
    assert all(np.array_equal(one, other) for one, other in both)
    with pytest.raises(ValueError, match="`from_` must be a TextToText for this task. Received: a FillMask"):
        recipes.Translate(examples, from_=tmp_path / "run").new_pipeline(examples)


def test_metrics_equal_the_reference_libraries(sentence_pairs):
    from sklearn.metrics import f1_score

    references, answers = list("aabbccd"), list("abbbcad")
    found = scores.classification(references, answers)
    assert found["macro_f1"] == pytest.approx(f1_score(references, answers, average="macro"))
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert scores.entities([["B-P", "I-P", "O", "B-L"]], [["B-P", "I-P", "O", "O"]]) == {
        "entity_precision": 1.0,
        "entity_recall": 0.5,
        "entity_f1": pytest.approx(2 / 3),
    }
    spans = scores.spans([["the Ada Lovelace"], [], ["x"]], ["Lovelace, Ada", "", ""])
    assert spans == {
        "exact_match": pytest.approx(1 / 3),
        "f1": pytest.approx(2 / 3),
        "has_answer_exact_match": 0.0,
        "has_answer_f1": pytest.approx(1 / 2),
        "no_answer_exact_match": 1.0,
        "no_answer_f1": 1.0,
    }
    targets = [target for _, target in sentence_pairs]
    answers = [*targets[:-2], "no", "it rains"]
    evaluated = pipelines.evaluate(lambda texts: answers[: len(texts)], sentence_pairs, num_bootstrap=50)
    for name in ("bleu", "chrf"):
        low, high = evaluated["intervals"][name]
        assert 0 < low < evaluated[name] < high
    # Some bootstrap samples score 0.
    for answer, others in ((targets[-1], "no"), (targets[-1][:3], "")):
        wrong = pipelines.evaluate(
            lambda texts, answer=answer, others=others: [others] * (len(texts) - 1) + [answer],
            sentence_pairs,
            num_bootstrap=50,
        )
        assert all(low <= high for low, high in wrong["intervals"].values())


def test_the_html_report_is_one_well_formed_file_with_escaped_texts():
    report = {
        "task": "classify",
        "pipeline": "TextClassification",
        "command": "keras-transformer train classify --data '<a>.csv'",
        "directory": "/data",
        "date": "2026-01-01T00:00:00+00:00",
        "evaluated_on": "test",
        "metrics": {
            "accuracy": 0.5,
            "bleu": 30.0,
            "intervals": {"bleu": (28.0, 32.04), "accuracy": (0.2134, 0.2456)},
            "f1": {"<b>": 0.25},
            "support": {"<b>": 3},
        },
        "classes": {"<b>": 7_001},
        "signal": "SIGINT",
        "counts": {"train": 10_000, "validation": 2, "test": 3},
        "parameters": 123_456,
        "updates": 4_321,
        "seconds": {"train": 61.2, "evaluate": 1.0},
        "options": {"epochs": 3},
        "versions": {"keras": "3"},
        "history": {
            "loss": [2.0, float("nan"), 1.0],
            "val_loss": [2.5, 2.0],
            "learning_rate": [9.723e-4, 1e-5],
        },
        "examples": [{"input": "<script>", "reference": "x", "answer": "y"}],
    }
    content = pages.page(report)
    open_tags = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            assert not {"src", "href"} & {name for name, _ in attributes}
            if tag not in ("meta",):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Parser().feed(content)
    assert not open_tags
    assert content.count("<svg") == 2
    assert "<script>" not in content
    assert "nan" not in content
    for shown in (
        "&lt;script&gt;",
        "best validation loss, epoch 2",
        "28 to 32",
        "0.213 to 0.246",
        "4,321 updates",
        "<td>&lt;b&gt;</td><td>0.25</td><td>7,001</td><td>3</td>",
        "stopped by SIGINT",
        "10,000",
        "prefers-color-scheme: dark",
    ):
        assert shown in content
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)<', content)
    assert "0.000491" in dict(map(reversed, labels))
    assert all(float(right) >= 6.5 * len(label) for right, label in labels), "a label is cut off"


@pytest.mark.slow
def test_quickstart_trains_evaluates_exports_and_verifies(tiny, tmp_path):
    folder = tmp_path / "a" / "quick"
    earlier(folder)
    said = []
    report = recipes.quickstart(folder, epochs=4, say=said.append, verbose=0)
    assert json.loads((folder / "report.json").read_text()) == report
    assert set(report) == {"exact_match", "bleu", "parity", "seconds"}
    assert set(report["seconds"]) == {"train", "evaluate", "export", "verify"}
    assert set(report["parity"]) == {"onnx", "saved_model/es-en/1"}
    assert {entry.name for entry in folder.iterdir()} == {"pipeline", "export", "report.json"}
    assert sum(line.startswith("\n[") for line in said) == 4
    pipeline = pipelines.load(folder / "pipeline")
    assert serving.load(folder / "export")(["uno dos"]) == pipeline(["uno dos"])
    export.verify(folder / "export", pipeline, ["hoy llueve"])


def test_an_earlier_quickstart_is_kept_until_the_new_one_completes(tiny, tmp_path, monkeypatch):
    earlier(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(recipes.Translate, "train", never)
    with pytest.raises(AssertionError, match="must not run"):
        recipes.quickstart(tmp_path, say=lambda _: None)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("stray", ["thesis.txt", "thesis", ".git"])
def test_quickstart_rejects_a_folder_with_other_files(tiny, tmp_path, monkeypatch, stray):
    monkeypatch.setattr(recipes.Translate, "train", never)
    earlier(tmp_path)
    (tmp_path / stray).mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=f"`folder` must be new or an earlier quickstart.*{stray}"):
        recipes.quickstart(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["export", "pipeline"])
def test_quickstart_deletes_only_its_own_files(tiny, tmp_path, monkeypatch, name):
    """A folder that contains another export/ is not an earlier quickstart (this repository has one)."""
    monkeypatch.setattr(recipes.Translate, "train", never)
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="`folder` must"):
        recipes.quickstart(tmp_path)
    assert (tmp_path / name / "thesis.txt").read_text() == "years of work"


def test_quickstart_rejects_a_file(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes.Translate, "train", never)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="`folder` must be new or an earlier quickstart"):
        recipes.quickstart(tmp_path / "file")


@pytest.mark.parametrize("epochs", [0, -1])
def test_invalid_epochs_are_rejected_before_an_earlier_run_is_removed(tiny, tmp_path, epochs):
    earlier(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="`epochs` must"):
        recipes.quickstart(tmp_path, epochs=epochs, say=lambda _: None, verbose=0)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_reciprocal_rank_is_of_the_first_relevant_text():
    queries = ["a", "a", "a", "b", "b", "c"]
    relevant = [False, True, True, True, False, True]
    found = scores.ranking(queries, relevant, [0.9, 0.5, 0.1, 0.2, 0.1, 0.3])
    assert found == {"mean_reciprocal_rank": 0.75}  # "c" has no other text
    assert scores.ranking(queries[:2], relevant[:2], [0.5, 0.5]) == {"mean_reciprocal_rank": 0.5}
    assert scores.ranking(["a"], [True], [0.5]) == {}


def test_a_relevance_must_be_a_number_from_0_to_1(tmp_path):
    path = tmp_path / "rows.tsv"
    for value in ("yes", "1.5", "nan"):
        path.write_text(f"a\tb\t1\na\tc\t{value}\n")
        for name, fields in (
            ("data", {"data": path}),
            ("validation", {"data": [("a", "b", 1)], "validation": path}),
        ):
            message = f"`{name}` must have a relevance from 0 to 1 .*'{value}' in example 1"
            with pytest.raises(ValueError, match=message):
                _ = recipes.Rerank(**fields).splits
    grades = [(query, text, int(grade)) for query in "ab" for text, grade in (("x", 4), ("y", 0))]
    for examples in (grades, [("a", "x", None), ("b", "y", 1)]):
        with pytest.raises(ValueError, match="divide grades by the highest.* (4|None) in example 0"):
            _ = recipes.Rerank(examples, validation=0.5).splits
    scaled = [(query, text, np.float32(grade / 4)) for query, text, grade in grades]
    splits = recipes.Rerank(scaled, validation=0.5).splits
    assert sorted([*splits.train, *splits.validation]) == [
        (query, text, grade / 4) for query, text, grade in sorted(grades)
    ]
