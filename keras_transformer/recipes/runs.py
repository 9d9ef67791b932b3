"""Training runs: train a recipe, save the pipeline, evaluate it and write a report."""

import contextlib
import datetime
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer import processes
from keras_transformer.recipes import distributed
from keras_transformer.recipes.interrupted import ResumableRun
from keras_transformer.recipes.pages import page
from keras_transformer.recipes.recipe import AroundSteps, Recipe, monitored
from keras_transformer.recipes.stopping import outcome
from keras_transformer_options.config_files import to_toml
from keras_transformer_serving import files


def run(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    command: str | None = None,
    say: Callable[[str], None] = print,
    verbose: int | str = "auto",
    around_steps: AroundSteps = contextlib.nullcontext,
) -> dict[str, Any]:
    """Train a recipe, save the pipeline, evaluate it and write a report.

    SIGINT (Ctrl-C) or SIGTERM during `fit` stops it after the current batch; the pipeline is saved and evaluated as
    usual. A second signal aborts. A run that was interrupted, killed or crashed can be resumed with the same result as
    an uninterrupted run: until it is complete, its folder has `training/` with states of `training.ExactResume`.

    With several processes of `training.initialize_distributed`, all of them call it with the same recipe. Each trains
    on its shard of every batch; process 0 trains the tokenizer, writes the folder, prints and evaluates.

    Args:
        recipe: the options.
        folder: a new folder, for `pipeline/`, `report.json`, `report.html`, `command.txt` and, if the examples are in
            files or of a public dataset, `config.toml` with the options.
        resume: whether to resume the run in `folder`, or start it if there is none. A complete run is not repeated.
        command: the command that reproduces the run, by default the recipe in Python.
        say: a function that prints a line of progress.
        verbose: see `keras.Model.fit`.
        around_steps: a function that returns a context manager, in which each step before and after `fit` runs, for
            instance one that hides the output of libraries when they start.

    Returns:
        The content of `report.json`: "metrics" of the examples "evaluated_on" ("test", or "validation" without test
        examples), "history" of `fit`, "options", "counts" of examples, "classes" with those of each
        class for training, "updates" of the weights, "seconds", "examples"
        with answers, "signal", the signal that stopped training, or None.

    Raises:
        BlockingIOError: if another process trains into `folder`.
        FileExistsError: if `folder` exists, and is neither a run to resume nor empty with `resume`.
        FileNotFoundError: if the states or the pipeline of a run to resume are missing.
        ValueError: if the data is malformed, a run to resume has another recipe or other data, or processes differ.

    Example:
        >>> report = run(recipes.Classify("reviews.csv"), "runs/reviews")  # doctest: +SKIP
        >>> report["metrics"]["macro_f1"]  # doctest: +SKIP
        0.91
    """
    if not processes.current().is_main:
        say, verbose = _silent, 0
    folder = pathlib.Path(folder)
    with processes.shared_errors(), ResumableRun(folder, recipe).locked():
        return _run(recipe, folder, resume, command, say, verbose, around_steps)


def _run(
    recipe: Recipe,
    folder: pathlib.Path,
    resume: bool,
    command: str | None,
    say: Callable[[str], None],
    verbose: int | str,
    around_steps: AroundSteps,
) -> dict[str, Any]:
    distributed.check_options(recipe)
    resumable = ResumableRun.of(folder, recipe, resume)
    if resumable.is_complete:
        report: dict[str, Any] = files.read_json(folder / "report.json")
        say(f"The run in {folder} is complete")
        return report
    recipe.check_requirements()
    train, validation, test = recipe.splits
    counts = {"train": len(train), "validation": len(validation), "test": 0 if test is None else len(test)}
    say(f"Training on {counts['train']:,} examples, validating on {counts['validation']:,}")
    how_to_resume = f"Resume with: {command} --resume" if command else "Resume with resume=True"
    resuming = resumable.callback()
    try:
        untrained = resumable.pipeline(around_steps)
        pipeline, history = recipe.train([resuming], verbose, untrained, around_steps)
    except BaseException as error:
        would_recur = isinstance(error, FileNotFoundError | TypeError | ValueError)
        if processes.current().is_main and resumable.is_kept_after_error(error) and not would_recur:
            say(how_to_resume)
        raise
    seconds, updates = resuming.seconds, int(keras.ops.convert_to_numpy(history.model.optimizer.iterations))
    stopped = resuming.signal and signal.Signals(resuming.signal).name

    def finish() -> dict[str, Any]:
        evaluation_began, trained = time.monotonic(), distributed.local(pipeline)
        trained.save(folder / "pipeline", overwrite=True)
        if stopped:
            say(f"Stopped by {stopped} in epoch {len(history.epoch)}. {how_to_resume}")
        epochs = len(history.epoch)
        say(
            f"Updated the weights {updates:,} time{'s' * (updates != 1)} in {epochs} epoch{'s' * (epochs != 1)}"
        )
        minutes_left = history.history.get("minutes_left", [0])[-1]
        is_early = minutes_left > 0 if recipe.minutes is not None else epochs < recipe.epochs
        if not stopped:
            limits = {"early": is_early, "minutes": recipe.minutes}
            for line in outcome(history.history, **monitored(recipe.monitor), **limits):
                say(line)
        say(f"Saved {folder / 'pipeline'}")
        held_out, evaluated_on = (validation, "validation") if test is None else (test, "test")
        with around_steps():
            metrics = recipe.evaluate(trained, held_out)
        examples = metrics.pop("examples")
        report = {
            "task": recipe.task,
            "pipeline": type(trained).__name__,
            "command": command or _expression(recipe),
            "directory": str(pathlib.Path.cwd()),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "evaluated_on": evaluated_on,
            "metrics": metrics,
            "signal": stopped,
            "counts": counts,
            "classes": recipe.class_counts(train),
            "parameters": trained.model.count_params(),
            "updates": updates,
            "seconds": {
                "train": round(seconds, 1),
                "evaluate": round(time.monotonic() - evaluation_began, 1),
            },
            "options": recipe.options(),
            "versions": {"keras": keras.__version__, "backend": keras.backend.backend()},
            "history": history.history,
            "examples": examples,
        }
        files.write_json(folder / "report.json", report)
        files.write_bytes(folder / "report.html", page(report).encode())
        files.write_bytes(folder / "command.txt", f"{report['command']}\n".encode())
        if (config := to_toml(recipe)) is not None:
            files.write_bytes(folder / "config.toml", config.encode())
        if not stopped:
            resumable.remove()
        say(summary(report))
        say(f"Report: {folder / 'report.html'}")
        return report

    return processes.from_main("report", finish)


def _silent(line: str) -> None:
    """Print nothing."""


def _expression(recipe: Recipe) -> str:
    """Return a recipe as a Python expression, with descriptions in place of examples."""
    options = ", ".join(f"{name}={value!r}" for name, value in recipe.options().items())
    prefix = "kt.recipes." if type(recipe).__module__.startswith("keras_transformer.recipes.") else ""
    return f"{prefix}{type(recipe).__name__}({options})"


def summary(report: dict[str, Any]) -> str:
    """Return the scalar metrics of a report in one line."""
    return f"On the {report['evaluated_on']} examples: {_scores(report)}"


def quality_of(folder: str | os.PathLike[str]) -> str:
    """Return the scalar metrics of a complete training run, or "" for another folder, as `Pipeline.quality`."""
    file = pathlib.Path(folder) / "report.json"
    if not file.is_file():
        return ""
    report = files.read_json(file)
    count, split = report["counts"][report["evaluated_on"]], report["evaluated_on"]
    examples = f"{count:,} {split} example{'s' * (count != 1)}"
    return f"At the end of its training, its scores on {examples} were: {_scores(report)}."


def _scores(report: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" for name, value in report["metrics"].items() if isinstance(value, float)
    )
