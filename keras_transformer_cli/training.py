"""The command `train`, whose options are the fields of each task's class in `keras_transformer_options`."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import logging
import os
import pathlib
import shlex
import sys
import typing
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from keras_transformer_cli.output import add_quiet, flag_of, note, say, suggest, verbosity
from keras_transformer_cli.quiet import load_libraries, quiet_start
from keras_transformer_options.arguments import Message
from keras_transformer_options.config_files import read_config
from keras_transformer_options.task_options import TaskOptions, flags_of, types_of
from keras_transformer_options.tasks import TASKS

BACKENDS = ("tensorflow", "jax")
FILE_FORMAT = ("format", "encoding", "delimiter", "header")
"""The fields of `TableOptions` that say how files are read."""
_PACKAGES = "keras_transformer.tasks"  # the entry points of other packages


def add_tasks(train: argparse.ArgumentParser, arguments: Sequence[str] = ()) -> None:
    """Add a command for each task, whose options are the fields of its class.

    Args:
        train: the command `train`.
        arguments: the arguments of the command line. If they name a task of another package, its entry point is
            imported, which imports TensorFlow.

    Raises:
        ValueError: if the entry point does not define a recipe of this task.
    """
    tasks = train.add_subparsers(required=True, metavar="task")
    others = [
        entry_point
        for entry_point in importlib.metadata.entry_points(group=_PACKAGES)
        if entry_point.name not in TASKS
    ]
    for other in others:
        if other.name in arguments[1:2]:
            _import_task(other, arguments)
    for options in TASKS.values():
        _add_task(tasks, options)
    for other in others:
        if other.name not in TASKS:
            tasks.add_parser(other.name, help=f"a task of {other.value.partition('.')[0]}")


def _import_task(entry_point: importlib.metadata.EntryPoint, arguments: Sequence[str]) -> None:
    """Import the recipe of another package, which registers itself, with the backend of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--backend", choices=BACKENDS)
    set_backend(parser.parse_known_args(arguments)[0].backend)
    load_libraries()
    with quiet_start():
        entry_point.load()
    if entry_point.name not in TASKS:
        raise ValueError(
            f"The entry point `{entry_point.name}` must define a recipe of this task. Received: {entry_point.value}"
        )


def set_backend(backend: str | None) -> None:
    """Set Keras' backend to the option `--backend` before Keras is imported.

    Raises:
        ValueError: if Keras was imported with another backend.
    """
    if backend is None:
        return
    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() != backend:
        raise ValueError(
            f"`--backend` must be {keras.backend.backend()}, with which Keras was imported. Received: {backend}"
        )
    os.environ["KERAS_BACKEND"] = backend


def train(options: argparse.Namespace) -> int:
    """Train a recipe, in all processes that a launcher has started.

    Options and files are checked before TensorFlow is imported.

    Returns:
        0, or 128 and the number of the signal that stopped training.

    Raises:
        OSError: in several processes, instead of a RuntimeError, if another process ended, failed or did not answer.
    """
    set_backend(options.backend)
    values = values_of(options)
    checked = options.task(**values)
    output = pathlib.Path(options.output or _default_output(options.task.task, values))
    if output.exists() and not options.resume:
        raise FileExistsError(
            f"`--output` must be new. Received: {output}, which exists and is not changed; --resume continues an "
            "interrupted run"
        )
    if not output.exists():  # the files of a complete run may have been removed
        checked.check_files()
    with all_processes():
        return run(options, values, output)


def values_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a task's class that the file `--config` and the command line have."""
    values = {} if options.config is None else read_config(options.config, options.task)
    given = given_fields(options, [field.name for field in dataclasses.fields(options.task)])
    if given.keys() & {"data", "dataset"}:  # the command line names other data than the file
        values = {name: value for name, value in values.items() if name not in ("data", "dataset")}
    values |= given
    if "validation" in given:
        values["validation"] = _validation(values["validation"])
    return values


@contextlib.contextmanager
def all_processes() -> Iterator[None]:
    """Load the libraries, and connect the processes that a launcher has started."""
    load_libraries()
    from keras_transformer import processes, training

    try:
        with quiet_start():
            process = training.initialize_distributed()
        if not process.is_main:
            # Process 0 prints the same warnings.
            logging.getLogger("keras_transformer").setLevel(logging.ERROR)
        with processes.shared_errors():
            yield
    except RuntimeError as error:  # of JAX or `processes.exchange`, about another process
        if processes.current().count == 1:
            raise
        raise OSError(str(error)) from error


def run(options: argparse.Namespace, values: dict[str, Any], output: pathlib.Path) -> int:
    """Train a recipe with these values of its fields, and return the exit status."""
    import signal

    from keras_transformer import processes, recipes
    from keras_transformer.recipes.runs import summary

    recipe: Any = recipes.TASKS[options.task.task](**values)
    command = shlex.join(
        ["keras-transformer", *(argument for argument in options.arguments if argument != "--resume")]
    )
    report = recipes.run(
        recipe,
        output,
        resume=options.resume,
        command=command,
        say=note,
        verbose=verbosity(),
        around_steps=quiet_start,
    )
    if verbosity() == 0 and processes.current().is_main:
        say(summary(report))
        say(f"Report: {output / 'report.html'}")
    return 128 + signal.Signals[report["signal"]] if report["signal"] else 0


def _add_task(tasks: Any, options: type[TaskOptions]) -> None:
    parser = tasks.add_parser(options.task, help=options.summary, description=options.summary)
    add_options(parser, options)
    parser.add_argument("--output", metavar="FOLDER", help="a new folder; default: runs/TASK-DATA")
    add_quiet(parser)
    parser.set_defaults(also_options={"folder": "--output"})


def add_options(
    parser: argparse.ArgumentParser, options: type[TaskOptions], without: Collection[str] = ()
) -> None:
    """Add the options of a task's class, `--config`, `--resume` and `--backend`.

    Args:
        parser: the parser.
        options: the class.
        without: the fields to leave out.
    """
    no_dataset = () if options.datasets else ("dataset",)
    names = [field.name for field in dataclasses.fields(options)]
    add_fields(parser, options, [name for name in names if name not in (*without, *no_dataset)])
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file with options, such as config.toml of a run; those of the command line override it",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="resume the interrupted run in the output folder with the same options, or start it if there is none",
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, help="the backend of Keras; default: KERAS_BACKEND, or Keras' own"
    )
    parser.set_defaults(task=options)


def add_fields(parser: argparse.ArgumentParser, options: type[TaskOptions], names: Collection[str]) -> None:
    """Add the fields of a class of options with these names; an option that is not given has no attribute."""
    hints, flag_arguments = types_of(options), flags_of(options)
    flags = {field.name: flag_of(field.name) for field in dataclasses.fields(options)}
    choices = {"dataset": options.datasets, "model_size": options.model_sizes}
    known = {"tokenizer": options.tokenizers, "monitor": ("loss", *getattr(options, "metrics", ()))}
    for field in dataclasses.fields(options):
        if field.name not in names:
            continue
        arguments = {**_arguments(hints[field.name]), **flag_arguments[field.name]}
        text = Message(arguments.pop("help", "")).shown(flags)
        if field.default is not None and not isinstance(field.default, bool):
            text += f" Default: {field.default}."
        if field.name in choices:
            arguments["choices"] = choices[field.name]
        if field.name == "tokenizer":
            text += f" Types: {', '.join(options.tokenizers)}."
        action = parser.add_argument(
            flags[field.name],
            dest=field.name,
            help=text.replace("%", "%%"),
            default=argparse.SUPPRESS,
            **arguments,
        )
        if field.name in known:
            suggest(action, known[field.name])


def given_fields(options: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Return the values of the fields that the command line has, by name."""
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def _arguments(hints: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of `argparse` for the types of a field."""
    if typing.get_origin(hints[0]) is typing.Literal:
        return {"choices": list(typing.get_args(hints[0]))}
    if bool in hints:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": next((type_ for type_ in hints if type_ in (int, float)), str)}


def _validation(values: list[str]) -> Any:
    """Return a fraction, or paths."""
    try:
        (fraction,) = values
        return float(fraction)
    except ValueError:
        return [pathlib.Path(value) for value in values]


def _default_output(task: str, values: dict[str, Any]) -> str:
    source = values.get("dataset") or os.path.basename(os.path.normpath(values.get("data", ["data"])[0]))
    return f"runs/{task}-{source.split('.')[0]}"
