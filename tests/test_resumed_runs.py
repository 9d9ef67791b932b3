"""Interrupted and resumed runs, and gradient accumulation."""

import dataclasses
import os
import platform
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import data, recipes, training
from keras_transformer.data import epochs
from keras_transformer.recipes import accumulation, interrupted
from keras_transformer.training import states
from keras_transformer_serving import files

SMALL = {
    "layers": 1,
    "heads": 2,
    "model_dim": 16,
    "vocabulary_size": 336,
    "max_length": 32,
    "jit_compile": False,
    "batch_tokens": 128,
    "max_new_tokens": 8,
}


def never(*_, **__):
    raise AssertionError("this must not run")


class Crashing(training.ExactResume):
    """Save a state after each batch, and fail after the third."""

    def __init__(self, folder, save_freq, on_signal):
        super().__init__(folder, 1, on_signal)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if batch == 2:
            raise OSError("crash")


@pytest.mark.slow
def test_a_crashed_run_is_resumed_only_with_the_same_recipe(tmp_path, monkeypatch, sentence_pairs):
    folder, said = tmp_path / "run", []
    options = {**SMALL, "epochs": 2, "validation": 0.2, "batch_tokens": 32}
    first = recipes.Translate(sentence_pairs, **options)
    monkeypatch.setattr(interrupted, "ExactResume", Crashing)
    with pytest.raises(OSError, match="crash"):
        recipes.run(first, folder, resume=True, say=said.append, verbose=0)
    assert said[-1] == "Resume with resume=True"
    assert {path.name for path in folder.iterdir()} == {"training"}
    assert states.num_batches(folder / "training") == 3
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(recipes.Translate, "train", never)
    with pytest.raises(FileExistsError, match="interrupted run, which resume=True"):
        recipes.run(first, folder)
    for other, message in (
        (
            recipes.Translate(sentence_pairs, **{**options, "epochs": 3}),
            "`epochs` must be.*epochs=3, expected: epochs=2",
        ),
        (
            recipes.Translate(sentence_pairs, **options, accumulate=2),
            "`accumulate` must be.*expected: accumulate=the def",
        ),
        (recipes.Translate(sentence_pairs[:-1], **options), "`data` must have the same examples"),
        (recipes.Translate(sentence_pairs, **{**options, "validation": 0.3}), "`validation` must be"),
        (recipes.LanguageModel([text for text, _ in sentence_pairs]), "`task` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            recipes.run(other, folder, resume=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_complete_run_is_not_repeated(tmp_path, monkeypatch, sentence_pairs):
    recipe = recipes.Translate(sentence_pairs, **SMALL, epochs=2)
    files.write_json(tmp_path / "report.json", {"task": "translate", "options": recipe.options()})
    monkeypatch.setattr(recipes.Translate, "train", never)
    said = []
    assert recipes.run(recipe, tmp_path, resume=True, say=said.append)["task"] == "translate"
    assert said == [f"The run in {tmp_path} is complete"]
    with pytest.raises(ValueError, match="`epochs` must equal"):
        recipes.run(dataclasses.replace(recipe, epochs=5), tmp_path, resume=True)
    (tmp_path / "report.json").rename(tmp_path / "other.json")
    with pytest.raises(FileExistsError, match="without a run"):
        recipes.run(recipe, tmp_path, resume=True)


def test_a_stopped_run_without_its_states_is_not_complete(tmp_path, sentence_pairs):
    recipe = recipes.Translate(sentence_pairs, **SMALL)
    report = {"task": "translate", "options": recipe.options(), "signal": "SIGINT"}
    files.write_json(tmp_path / "report.json", report)
    with pytest.raises(FileNotFoundError, match="`folder` must have the states.*`from_`.*stopped by SIGINT"):
        recipes.run(recipe, tmp_path, resume=True)


@pytest.mark.parametrize("field", ["validation", "test"])
def test_replacing_a_default_or_fraction_by_examples_changes_the_recipe(tmp_path, sentence_pairs, field):
    recipe = recipes.Translate(sentence_pairs, **SMALL)
    files.write_json(tmp_path / "report.json", {"task": "translate", "options": recipe.options()})
    other = dataclasses.replace(recipe, **{field: sentence_pairs[:2]})
    with pytest.raises(ValueError, match=f"`{field}` must equal that.*expected: the default"):
        recipes.run(other, tmp_path, resume=True)


@pytest.mark.parametrize("content", [{"format": 1}, {"format": 1, "options": []}, []])
def test_damaged_files_of_a_run_are_rejected(tmp_path, sentence_pairs, content):
    recipe = recipes.Translate(sentence_pairs, **SMALL)
    (tmp_path / "training").mkdir()
    for path in (tmp_path / "report.json", tmp_path / "training" / "run.json"):
        files.write_json(path, content)
        with pytest.raises(ValueError, match=rf"{path.name}` must (contain an object with|be of format)"):
            recipes.run(recipe, tmp_path, resume=True)


def test_a_run_with_missing_files_or_states_is_rejected(tmp_path, sentence_pairs):
    recipe, said = recipes.Translate(sentence_pairs, **SMALL), []
    interrupted.ResumableRun(tmp_path, recipe).pipeline()
    for number in (1, 2):
        (tmp_path / "training" / f"state-{number:010d}.npz").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(ValueError, match="is damaged"):
        recipes.run(recipe, tmp_path, resume=True, say=said.append, verbose=0)
    for path in [path for path in (tmp_path / "training" / "pipeline").rglob("*") if path.is_file()]:
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError, match=f"`folder` must have all files.*without .*/{path.name}$"):
            recipes.run(recipe, tmp_path, resume=True, say=said.append)
        path.write_bytes(content)
    assert not [line for line in said if "Go on" in line]


def test_an_empty_folder_is_a_new_run(tmp_path, monkeypatch, sentence_pairs):
    monkeypatch.setattr(interrupted.ResumableRun, "pipeline", never)
    with pytest.raises(AssertionError, match="must not run"):
        recipes.run(recipes.Translate(sentence_pairs, **SMALL), tmp_path, resume=True, say=lambda _: None)


@pytest.mark.slow
def test_an_error_before_the_second_state_leaves_no_folder(tmp_path, monkeypatch, sentence_pairs):
    recipe = recipes.Translate(sentence_pairs, **SMALL, epochs=1, accumulate=1000)
    with pytest.raises(ValueError, match="`accumulate` must be at most the number of batches, [0-9]+. Rec"):
        recipes.run(recipe, tmp_path / "a" / "run", say=lambda _: None, verbose=0)
    assert not (tmp_path / "a" / "run").exists()


@pytest.mark.slow_variants
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_has_one_training_at_a_time(tmp_path, monkeypatch, sentence_pairs, resume):
    monkeypatch.setattr(recipes.Translate, "train", never)
    recipe = recipes.Translate(sentence_pairs, **SMALL)
    with (
        files.locked_folder(tmp_path / ".run.lock"),
        pytest.raises(
            BlockingIOError, match=rf"run, which process {os.getpid()} on {platform.node()} is writing"
        ),
    ):
        recipes.run(recipe, tmp_path / "run", resume=resume)
    assert list(tmp_path.iterdir()) == []


def test_another_process_locks_a_run_until_it_ends(tmp_path, monkeypatch, sentence_pairs):
    """However it ends."""
    monkeypatch.setattr(recipes.Translate, "train", never)
    recipe = recipes.Translate(sentence_pairs, **SMALL)
    program = (
        "import sys; from keras_transformer_serving import files\n"
        "with files.locked_folder(sys.argv[1]): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / ".run.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(
            BlockingIOError, match=f"run, which process {process.pid} on {platform.node()} is"
        ):
            recipes.run(recipe, tmp_path / "run", resume=True)
        process.kill()
    with pytest.raises(AssertionError, match="must not run"):
        recipes.run(recipe, tmp_path / "run", resume=True, say=lambda _: None)


def test_a_run_is_locked_while_it_trains(tmp_path, monkeypatch, sentence_pairs):
    def train(*_):
        (tmp_path / "link").symlink_to(tmp_path / "run")
        for name in ("run", "link"):
            with pytest.raises(BlockingIOError):
                recipes.run(recipe, tmp_path / name, resume=True)
        (tmp_path / "link").unlink()
        raise KeyError("trained")

    monkeypatch.setattr(recipes.Translate, "train", train)
    recipe = recipes.Translate(sentence_pairs, **SMALL)
    with pytest.raises(KeyError, match="trained"):
        recipes.run(recipe, tmp_path / "run", say=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_the_first_state_is_kept_when_the_disk_is_full(tmp_path, monkeypatch, sentence_pairs):
    folder, said, write = tmp_path / "run", [], states.write

    def full(path, batches, *content):
        if batches:
            with open("/dev/full", "w") as file:
                file.write("x")
        write(path, batches, *content)

    def train(self, callbacks, *_):
        states.write(callbacks[0].folder, 0, {}, {})
        states.write(callbacks[0].folder, 1, {}, {})

    monkeypatch.setattr(states, "write", full)
    monkeypatch.setattr(recipes.Translate, "train", train)
    with pytest.raises(OSError, match="No space left"):
        recipes.run(recipes.Translate(sentence_pairs, **SMALL), folder, say=said.append)
    assert [path.name for path in (folder / "training").glob("state*")] == ["state-0000000000.npz"]
    assert said[-1] == "Resume with resume=True"


def test_a_state_that_cannot_be_written_does_not_promise_earlier_ones(tmp_path):
    (tmp_path / "states").write_text("a file")
    with pytest.raises(OSError, match="must be a writable folder") as error:
        states.write(tmp_path / "states", 0, {}, {})
    assert "kept" not in str(error.value)


@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_the_learning_rate_does_not_depend_on_accumulation(accumulate):
    whole = recipes.Translate([], epochs=4).schedule(10)
    schedule = recipes.Translate([], epochs=4, accumulate=accumulate).schedule(10 * accumulate)
    for update in range(40):
        for batch in range(accumulate):
            assert float(schedule(update * accumulate + batch)) == pytest.approx(float(whole(update)))


@pytest.mark.parametrize("loss", ["tokens", "classes"])
def test_accumulated_gradients_equal_the_gradient_of_one_batch(loss):
    """Batches have different numbers of labels, and class weights."""
    drawn = np.random.default_rng(0)
    if loss == "tokens":
        labels = np.where(np.arange(5) < drawn.integers(1, 6, (12, 1)), drawn.integers(1, 7, (12, 5)), 0)
        logits, losses = drawn.normal(size=(12, 5, 7)), training.LabelSmoothedCrossentropy(0.1)
    else:
        labels, logits = drawn.integers(0, 7, 12), drawn.normal(size=(12, 7))
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dataset = tf.data.Dataset.from_tensor_slices((logits.astype("float32"), labels)).batch(
        5
    )  # 5, 5 and 2 rows
    dataset.epochs = epochs.Epochs(3, "")
    if loss == "classes":
        dataset = data.with_class_weight(dataset, {2: 3.0, 4: 0.5})
    batches = list(accumulation.weighted_by_labels(dataset, losses))
    mean = np.mean([float(losses(y, x, weights)) for x, y, weights in batches])
    ((x, y, *weights),) = dataset.unbatch().batch(12)
    assert mean == pytest.approx(float(losses(y, x, *weights)), rel=1e-6)
