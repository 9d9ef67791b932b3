"""The command `train`: a task's options are the fields of its recipe."""

import argparse
import dataclasses
import inspect
import logging
import os
import pathlib
import re
import shlex
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from keras_transformer_cli.output import say
from keras_transformer_cli.quiet import load_libraries, quiet_start

BACKENDS = ("tensorflow", "jax")


def add_tasks(train: argparse.ArgumentParser) -> None:
    """Add a command for each task, whose options are the fields of its recipe; imports TensorFlow."""
    load_libraries()
    tasks = train.add_subparsers(required=True, metavar="task")
    for recipe in recipes():
        _add_task(tasks, recipe)


def set_backend(arguments: Sequence[str]) -> None:
    """Set the backend of Keras to that of the option `--backend`, before Keras is imported.

    Raises:
        ValueError: if Keras was imported with another backend.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--backend", choices=BACKENDS)
    backend = options.parse_known_args(arguments)[0].backend
    if backend is None:
        return
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != backend:
        raise ValueError(
            f"`--backend` must be the one that Keras was imported with, {keras.backend.backend()}. Received: {backend}"
        )
    os.environ["KERAS_BACKEND"] = backend


def recipes() -> list[Any]:
    """Return the classes of recipes."""
    from keras_transformer import recipes as found

    return [
        found.Translate,
        found.LanguageModel,
        found.MaskedLanguageModel,
        found.Classify,
        found.Tag,
        found.Answer,
    ]


def train(options: argparse.Namespace) -> int:
    """Train a recipe, in all processes that a launcher has started.

    Returns:
        0, or 128 and the number of the signal that stopped training.

    Raises:
        OSError: in several processes, in place of a RuntimeError: another process ended, failed or did not answer.
    """
    from keras_transformer import processes, training

    try:
        with quiet_start():
            process = training.initialize_distributed()
        if not process.is_main:
            # Process 0 prints the same warnings.
            logging.getLogger("keras_transformer").setLevel(logging.ERROR)
        with processes.shared_errors():
            return _train(options)
    except RuntimeError as error:  # of JAX or `processes.exchange`, about another process
        if processes.current().count == 1:
            raise
        raise OSError(str(error)) from error


def _train(options: argparse.Namespace) -> int:
    import signal

    from keras_transformer import recipes as found

    given = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options.recipe)
        if hasattr(options, field.name)
    }
    if "validation" in given:
        given["validation"] = _validation(given["validation"])
    output = options.output or _default_output(options.recipe.task, given)
    if pathlib.Path(output).exists() and not options.resume:
        raise FileExistsError(
            f"`--output` must be new. Received: {output}, which exists and is not changed; --resume continues an "
            "interrupted run"
        )
    recipe = _quiet(options.recipe)(**given)
    command = ["keras-transformer", *(one for one in options.arguments if one != "--resume")]
    report = found.run(recipe, output, resume=options.resume, command=shlex.join(command), say=say)
    return 128 + signal.Signals[report["signal"]] if report["signal"] else 0


def _quiet(recipe: Any) -> Any:
    """Return a recipe whose steps before and after `fit` omit the lines of libraries that start."""

    def quietly(step: str) -> Any:
        def method(*arguments: Any, **options: Any) -> Any:
            with quiet_start():
                return getattr(recipe, step)(*arguments, **options)

        return method

    steps = ("new_pipeline", "batches", "evaluate")
    return type(recipe.__name__, (recipe,), {step: quietly(step) for step in steps})


def _add_task(tasks: Any, recipe: Any) -> None:
    parser = tasks.add_parser(recipe.task, help=recipe.summary, description=recipe.summary)
    texts, hints = descriptions(recipe), typing.get_type_hints(recipe)
    for field in dataclasses.fields(recipe):
        if field.name == "dataset" and not recipe.datasets:
            continue
        text = texts[field.name]
        if field.default is not None and not isinstance(field.default, bool):
            text += f" Default: {field.default}."
        arguments = {**_arguments(hints[field.name]), **field.metadata}
        for name, values in (
            ("dataset", recipe.datasets),
            ("model_size", recipe.model_sizes),
        ):
            if field.name == name:
                arguments["choices"] = list(values)
        if field.name == "columns":
            arguments["type"] = _column
        if field.name in ("data", "test"):
            arguments["type"] = pathlib.Path
        if field.name == "tokenizer":
            text += f" Kinds: {', '.join(recipe.tokenizers)}."
        flag = "--" + field.name.rstrip("_").replace("_", "-")
        help_text = text.replace("%", "%%")
        parser.add_argument(flag, dest=field.name, help=help_text, default=argparse.SUPPRESS, **arguments)
    parser.add_argument("--output", metavar="FOLDER", help="a new folder; default: runs/TASK-DATA")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in the output folder where it was interrupted, with the same options; begin it if there "
        "is none",
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="the backend of Keras; default: KERAS_BACKEND, or Keras' own"
    )
    parser.set_defaults(recipe=recipe, also_options={"folder": "--output"})


def descriptions(recipe: Any) -> dict[str, str]:
    """Return the description of each field in the docstrings of a recipe and its base classes."""
    found: dict[str, str] = {}
    for each in reversed(recipe.__mro__):
        _, _, attributes = (inspect.cleandoc(each.__doc__ or "")).partition("Attributes:\n")
        section = re.split(r"\n\n", attributes)[0]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section, re.MULTILINE):
            text = " ".join(text.split())
            found[name] = text[0].upper() + text[1:]
    return found


def _arguments(hint: Any) -> dict[str, Any]:
    """Return the arguments of `argparse` for a type."""
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": list(typing.get_args(hint))}
    possible = [one for one in typing.get_args(hint) if one is not types.NoneType] or [hint]
    if bool in possible:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": next((one for one in possible if one in (int, float)), str)}


def _column(text: str) -> str | int:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _validation(values: list[str]) -> Any:
    """Return a share, or paths."""
    try:
        (share,) = values
        return float(share)
    except ValueError:
        return [pathlib.Path(value) for value in values]


def _default_output(task: str, given: dict[str, Any]) -> str:
    source = given.get("dataset") or os.path.basename(os.path.normpath(given.get("data", ["data"])[0]))
    return f"runs/{task}-{source.split('.')[0]}"
