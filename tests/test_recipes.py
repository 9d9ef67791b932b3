import dataclasses
import json

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, pipelines, recipes
from keras_transformer.datasets import phrasebook

SMALL = recipes.TranslatorRecipe(
    vocabulary_size=336,
    num_layers=1,
    num_heads=2,
    model_dim=16,
    hidden_dim=32,
    batch_tokens=128,
    max_new_tokens=8,
    peak_rate=0.01,
)


@pytest.fixture
def tiny(monkeypatch, sentence_pairs):
    monkeypatch.setattr(
        phrasebook, "load_data", lambda: (sentence_pairs * 4, sentence_pairs[:3], sentence_pairs[:5])
    )
    monkeypatch.setattr(recipes, "PHRASEBOOK", SMALL)


def never(*_, **__):
    raise AssertionError("this must not run")


def earlier(folder):
    """An earlier quickstart's folder, as far as names go."""
    for name in ("pipeline", "export"):
        (folder / name).mkdir(parents=True)
    (folder / "pipeline" / "config.json").write_text('{"pipeline": "TextToText"}')
    (folder / "export" / "manifest.json").write_text('{"files": {}}')
    (folder / "report.json").write_text('{"exact_match": 0.5}')


@pytest.mark.slow
def test_quickstart_trains_evaluates_exports_and_verifies(tiny, tmp_path):
    folder = tmp_path / "a" / "quick"
    earlier(folder)
    said = []
    report = recipes.quickstart(folder, epochs=1, say=said.append, verbose=0)
    assert json.loads((folder / "report.json").read_text()) == report
    assert set(report) == {"exact_match", "bleu", "parity", "seconds"}
    assert set(report["seconds"]) == {"train", "evaluate", "export", "verify"}
    assert set(report["parity"]) == {"onnx", "saved_model/es-en/1"}
    assert {entry.name for entry in folder.iterdir()} == {"pipeline", "export", "report.json"}
    assert sum(line.startswith("\n[") for line in said) == 4
    pipeline = pipelines.load(folder / "pipeline")
    assert serving.load(folder / "export")(["uno dos"]) == pipeline(["uno dos"])
    export.verify(folder / "export", pipeline, ["hoy llueve"])


@pytest.mark.slow
def test_a_recipe_trains_for_epochs_and_ends_at_a_rate_of_zero(tiny, sentence_pairs):
    pipeline, history = SMALL.train(sentence_pairs[:2] * 24, sentence_pairs[:1], epochs=2, verbose=0)
    assert len(history.epoch) == 2
    assert {"loss", "val_loss", "token_accuracy"} <= set(history.history)
    assert history.history["loss"][1] < history.history["loss"][0]
    assert float(pipeline.model.optimizer.learning_rate) == pytest.approx(0, abs=1e-6)
    assert pipeline.max_new_tokens == SMALL.max_new_tokens
    assert pipeline.model.optimizer.beta_2 == 0.98


def test_equal_seeds_give_equal_weights(sentence_pairs):
    tokenizer = SMALL.tokenizer(sentence_pairs)
    models = [dataclasses.replace(SMALL, seed=seed).model(tokenizer, 0.1).get_weights() for seed in (0, 0, 1)]
    assert all(np.array_equal(a, b) for a, b in zip(models[0], models[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(models[0], models[2], strict=True))


def test_the_schedule_rises_to_the_peak_then_falls_to_zero():
    schedule = SMALL._schedule(100)
    rates = [float(schedule(step)) for step in range(101)]
    assert rates[0] == 0
    assert max(rates) == pytest.approx(SMALL.peak_rate)
    assert rates.index(max(rates)) == 10
    assert rates[100] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_a_very_short_training_has_a_schedule_too(steps):
    rates = [float(SMALL._schedule(steps)(step)) for step in range(steps)]
    assert all(0 < rate <= SMALL.peak_rate * 1.0001 for rate in rates)


def test_an_earlier_quickstart_is_kept_until_the_new_one_is_complete(tiny, tmp_path, monkeypatch):
    earlier(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(recipes.TranslatorRecipe, "train", never)
    with pytest.raises(AssertionError, match="must not run"):
        recipes.quickstart(tmp_path, say=lambda _: None)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("stray", ["thesis.txt", "thesis", ".git"])
def test_quickstart_refuses_a_folder_of_something_else(tiny, tmp_path, monkeypatch, stray):
    monkeypatch.setattr(recipes.TranslatorRecipe, "train", never)
    earlier(tmp_path)
    (tmp_path / stray).mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=f"`folder` must be new or an earlier quickstart.*{stray}"):
        recipes.quickstart(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["export", "pipeline"])
def test_quickstart_deletes_only_its_own_files(tiny, tmp_path, monkeypatch, name):
    """A folder that holds someone's own export/ is no earlier quickstart (this repository has one)."""
    monkeypatch.setattr(recipes.TranslatorRecipe, "train", never)
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="`folder` must"):
        recipes.quickstart(tmp_path)
    assert (tmp_path / name / "thesis.txt").read_text() == "years of work"


def test_quickstart_refuses_a_file(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes.TranslatorRecipe, "train", never)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="`folder` must be new or an earlier quickstart"):
        recipes.quickstart(tmp_path / "file")


@pytest.mark.parametrize("epochs", [0, -1])
def test_wrong_epochs_are_refused_before_an_earlier_run_is_removed(tiny, tmp_path, epochs):
    earlier(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="`epochs` must"):
        recipes.quickstart(tmp_path, epochs=epochs, say=lambda _: None, verbose=0)
    assert sorted(tmp_path.rglob("*")) == before
