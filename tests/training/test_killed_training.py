"""Recipes that are killed repeatedly end with the weights and the history of an uninterrupted run."""

import json
import multiprocessing
import os
import random
import signal

import numpy as np
import pytest

NUMBERS = ("one", "two", "three", "four", "five", "six")
TIMINGS = {"tokens_per_second"}
TINY = {"layers": 1, "heads": 2, "model_dim": 16, "jit_compile": False, "dropout": 0.1, "learning_rate": 0.01}
# Class and options of a recipe, and the minimum number of kills.
CASES = {
    "translate": ("Translate", {"batch_tokens": 128, "vocabulary_size": 300, "epochs": 6}, 20),
    "accumulate": (
        "Translate",
        {"batch_tokens": 256, "vocabulary_size": 300, "epochs": 8, "accumulate": 3},
        5,
    ),
    "language-model": ("LanguageModel", {"tokenizer": "byte", "max_length": 64, "epochs": 3}, 5),
    "masked-language-model": (
        "MaskedLanguageModel",
        {"max_length": 16, "vocabulary_size": 40, "epochs": 3},
        5,
    ),
    "classify": ("Classify", {"max_length": 16, "vocabulary_size": 40, "epochs": 4, "patience": 1}, 5),
}


def recipe_of(case):
    from keras_transformer import recipes

    name, options, _ = CASES[case]
    drawn = random.Random(0)
    texts = [" ".join(drawn.choices(NUMBERS, k=4)) for _ in range(120)]
    examples = {
        "Translate": [(text, text.upper()) for text in texts],
        "Classify": [(text, "yes" if text.startswith("one") else "no") for text in texts],
    }.get(name, texts)
    return getattr(recipes, name)(
        examples, **{**TINY, "batch_size": None if "batch_tokens" in options else 8, **options}
    )


def run(case, folder, kill_after=None, at_epoch_end=False, save_freq=1):
    """Run a recipe; kill the process after a number of batches, or at the end of an earlier epoch."""
    from keras_transformer import recipes, training
    from keras_transformer.recipes import interrupted

    class Killing(training.ExactResume):
        left = kill_after or -1

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            if at_epoch_end:
                os.kill(os.getpid(), signal.SIGKILL)

    trained = []
    train = recipes.Recipe.train

    def training_of(*arguments, **options):
        trained[:] = train(*arguments, **options)
        return trained

    interrupted.ExactResume = lambda states, _, **options: Killing(states, save_freq, **options)
    recipes.Recipe.train = training_of
    recipes.run(recipe_of(case), folder, resume=True, say=lambda _: None, verbose=0)
    np.savez(folder / "weights.npz", *trained[0].model.get_weights())


@pytest.mark.slow
@pytest.mark.backend_neutral
@pytest.mark.parametrize("case", CASES)
def test_killed_runs_equal_an_uninterrupted_run(case, tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["keras_transformer.recipes"])  # imports the libraries once

    def status(*arguments):
        process = processes.Process(target=run, args=(case, *arguments))
        process.start()
        process.join()
        return process.exitcode

    def results(folder):
        report = json.loads((folder / "report.json").read_text())
        with np.load(folder / "weights.npz") as weights:
            # Measured speeds differ between runs.
            history = {name: values for name, values in report["history"].items() if name not in TIMINGS}
            return history, [weights[name] for name in weights.files]

    assert status(tmp_path / "uninterrupted") == 0
    drawn, killed = random.Random(0), 0
    while True:
        found = status(tmp_path / "killed", drawn.randint(1, 4), drawn.random() < 0.3, drawn.randint(1, 3))
        if found == 0:
            break
        assert found == -signal.SIGKILL
        killed += 1
        assert killed < 100
    assert killed >= CASES[case][2]
    expected, got = results(tmp_path / "uninterrupted"), results(tmp_path / "killed")
    assert got[0] == expected[0]
    assert all(map(np.array_equal, got[1], expected[1]))
