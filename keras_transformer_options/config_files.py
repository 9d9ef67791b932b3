"""Options of a task in a TOML file."""

import dataclasses
import difflib
import json
import os
import pathlib
import tomllib
from collections.abc import Sequence
from typing import Any

from keras_transformer_options.arguments import ArgumentError, Message
from keras_transformer_options.task_options import TaskOptions, flags_of, types_of

_TASK = "task"
_TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


def read_config(path: str | os.PathLike[str], options: type[TaskOptions]) -> dict[str, Any]:
    r"""Read the options of a task from a TOML file.

    The keys are the fields of the class, and "task", its name. Paths are relative to the current folder, as on the
    command line.

    Returns:
        The options by name, as arguments of `options`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not TOML or is of another task, an option is unknown, or a value has another type.

    Example:
        >>> pathlib.Path("run.toml").write_text('data = ["pairs.tsv"]\nepochs = 3\n')  # doctest: +SKIP
        >>> recipes.Translate(**read_config("run.toml", recipes.Translate))  # doctest: +SKIP
    """
    try:
        content = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            Message("{config} must be a TOML file. Received: {path!s}, which does not exist", path=path)
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(
            "{config} must be a TOML file. Received: {path!s}: {error!s}", path=path, error=error
        ) from None
    task = content.pop(_TASK, options.task)
    if task != options.task:
        raise ArgumentError(
            "{config} must be of the task {expected!r}. Received: {path!s}, task = {task!r}",
            expected=options.task,
            path=path,
            task=task,
        )
    flags = flags_of(options)
    values = {}
    for key, value in content.items():
        received = {"path": path, "key": key, "value": value}
        name = next((name for name in flags if key.replace("-", "_") in (name, _key(name))), None)
        if name is None:
            close = difflib.get_close_matches(key, map(_key, flags), n=1)
            advice = f"; did you mean {close[0]}?" if close else ""
            raise ArgumentError(
                "{config} must have options of the task {task!r}. Received: {path!s}, {key!s} = {value!r}{advice!s}",
                task=options.task,
                advice=advice,
                **received,
            )
        types = _types(name, options)
        takes_several = flags[name].get("nargs") == "+"
        items = value if takes_several and isinstance(value, list) else [value]
        if not items or not all(_is_one_of(item, types) for item in items):
            expected = " or ".join(_TYPES[type_] for type_ in types)
            raise ArgumentError(
                "{key!s} in {config} must be {expected!s}. Received: {path!s}, {key!s} = {value!r}",
                expected=expected,
                **received,
            )
        if flags[name].get("type") is pathlib.Path or name == "validation":
            items = [pathlib.Path(item) if isinstance(item, str) else item for item in items]
        # As on the command line; a fraction is a number.
        values[name] = items if takes_several and not isinstance(items[0], float) else items[0]
    return values


def to_toml(options: TaskOptions) -> str | None:
    """Return the options that differ from their defaults as the content of a file, which `read_config` reads.

    Returns:
        The content; None if examples are in memory instead of files.
    """
    lines = [f"{_TASK} = {json.dumps(options.task)}\n"]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if value is None or value is field.default or value == field.default:
            continue
        if field.name in ("data", "validation", "test") and not isinstance(value, float):
            value = options.as_paths(value)
            if value is None:
                return None
        value = [_text(item) for item in value] if isinstance(value, list | tuple) else _text(value)
        # Texts, numbers, booleans and lists of JSON are TOML.
        lines.append(f"{_key(field.name)} = {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)


def _text(value: Any) -> Any:
    """Return a path as str."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _key(name: str) -> str:
    """Return the key of a field, whose name may be a word of Python with an underscore."""
    return name.rstrip("_")


def _types(name: str, options: type[TaskOptions]) -> Sequence[type]:
    """Return the types of the values of an option, or of the items of its lists."""
    types = {"columns": (str, int), "validation": (float, str)}.get(name) or types_of(options)[name]
    return [type_ for type_ in types if type_ in _TYPES] or [str]


def _is_one_of(value: Any, types: Sequence[type]) -> bool:
    """Return whether a value has one of the types; integers are numbers, booleans are not."""
    return type(value) in types or (type(value) is int and float in types)
