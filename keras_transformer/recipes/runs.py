"""Runs of recipes: train, save, evaluate, report."""

import datetime
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.recipes.base import Recipe
from keras_transformer.recipes.interruption import Interruption
from keras_transformer.recipes.pages import page
from keras_transformer_serving import files


def run(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    command: str | None = None,
    say: Callable[[str], None] = print,
    verbose: int | str = "auto",
) -> dict[str, Any]:
    """Train a recipe, save the pipeline, evaluate it and write a report.

    SIGINT (Ctrl-C) or SIGTERM during `fit` stops it after the current batch; the pipeline is saved and evaluated as
    usual. A second signal aborts.

    Args:
        recipe: the options.
        folder: a new folder, for `pipeline/`, `report.json`, `report.html` and `command.txt`.
        command: the command that reproduces the run, by default the recipe in Python.
        say: a function that prints a line of progress.
        verbose: see `keras.Model.fit`.

    Returns:
        The content of `report.json`: "metrics" of the examples "evaluated_on" ("test", or "validation" without test
        examples), "history" of `fit`, "options", "counts" of examples, "seconds", "examples" with answers, "signal",
        the signal that stopped training, or None.

    Raises:
        FileExistsError: if `folder` exists.
        ValueError: if the data is malformed.

    Example:
        >>> report = run(recipes.Classify("reviews.csv"), "runs/reviews")  # doctest: +SKIP
        >>> report["metrics"]["macro_f1"]  # doctest: +SKIP
        0.91
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        raise FileExistsError(f"`folder` must be new. Received: {folder}, which exists and is not changed")
    files.nearest_folder(folder)
    recipe.check_requirements()
    train, validation, test = recipe.splits
    counts = {"train": len(train), "validation": len(validation), "test": 0 if test is None else len(test)}
    say(f"Training on {counts['train']:,} examples, validating on {counts['validation']:,}")
    began = time.monotonic()
    with Interruption() as interruption:
        pipeline, history = recipe.train([interruption], verbose)
    trained = time.monotonic()
    pipeline.save(folder / "pipeline")
    stopped = interruption.signal and signal.Signals(interruption.signal).name
    if stopped:
        say(f"Stopped by {stopped} in epoch {len(history.epoch)}. Go on with --from {folder}")
    say(f"Saved {folder / 'pipeline'}")
    held_out, evaluated_on = (validation, "validation") if test is None else (test, "test")
    metrics = recipe.evaluate(pipeline, held_out)
    examples = metrics.pop("examples")
    report = {
        "task": recipe.task,
        "pipeline": type(pipeline).__name__,
        "command": command or _expression(recipe),
        "directory": str(pathlib.Path.cwd()),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "evaluated_on": evaluated_on,
        "metrics": metrics,
        "signal": stopped,
        "counts": counts,
        "parameters": pipeline.model.count_params(),
        "seconds": {
            "train": round(trained - began, 1),
            "evaluate": round(time.monotonic() - trained, 1),
        },
        "options": recipe.options(),
        "versions": {"keras": keras.__version__, "backend": keras.backend.backend()},
        "history": history.history,
        "examples": examples,
    }
    files.write_json(folder / "report.json", report)
    files.write_bytes(folder / "report.html", page(report).encode())
    files.write_bytes(folder / "command.txt", f"{report['command']}\n".encode())
    say(summary(report))
    say(f"Report: {folder / 'report.html'}")
    return report


def _expression(recipe: Recipe) -> str:
    """Return a recipe as an expression, with descriptions in place of examples."""
    options = ", ".join(f"{name}={value!r}" for name, value in recipe.options().items())
    return f"kt.recipes.{type(recipe).__name__}({options})"


def summary(report: dict[str, Any]) -> str:
    """Return the scalar metrics of a report in a line."""
    shown = [f"{name} {value:.4g}" for name, value in report["metrics"].items() if isinstance(value, float)]
    return f"On the {report['evaluated_on']} examples: {', '.join(shown)}"
