"""Checks of folders and files of a command, before it imports TensorFlow."""

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from keras_transformer_options.files import is_hub_id

_CONFIG, _EXPORT, _MODULES = "config.json", "manifest.json", "modules.json"
_GENERATION = "generation_config.json"  # of pipelines that generate, and of their exports


def check_pipelines(argument: str, folders: Iterable[str | None], exports: bool = False) -> None:
    """Check by the names of their files that folders are pipelines or training runs.

    Args:
        argument: the name of the argument, for the error.
        folders: the folders; None is ignored.
        exports: whether they may be exports.
    """
    for folder in folders:
        if folder is None:
            continue
        path = pathlib.Path(folder)
        is_export = (path / _EXPORT).is_file()
        has_config = any((parent / _CONFIG).is_file() for parent in (path, path / "pipeline"))
        if not has_config or (is_export and not exports):
            expected = "a saved pipeline or an export" if exports else "a saved pipeline"
            reason = "which is not a folder"
            if path.is_dir():
                reason = "an export" if is_export else f"which has no {_CONFIG}"
            raise FileNotFoundError(f"`{argument}` must be {expected}. Received: {folder}, {reason}")


def pipeline_of(folder: str) -> tuple[str | None, bool]:
    """Return the class of a pipeline, run or export by its files, None if they do not say, and whether it generates."""
    path = pathlib.Path(folder)
    path = path if (path / _CONFIG).is_file() else path / "pipeline"
    name = _config(path).get("pipeline")
    return (name if isinstance(name, str) else None), (path / _GENERATION).is_file()


def check_export(argument: str, folder: str) -> None:
    """Check that a folder is an export."""
    if not os.path.isfile(os.path.join(folder, _EXPORT)):
        received = f"which has no {_EXPORT}" if os.path.isdir(folder) else "which is not a folder"
        raise FileNotFoundError(f"`{argument}` must be an export. Received: {folder}, {received}")


def is_published(source: str) -> bool:
    """Return whether a path may be the id of a model of the hub, or is a folder of `transformers`."""
    if not os.path.isdir(source):
        return is_hub_id(source)
    path = pathlib.Path(source)
    has_model = (path / _CONFIG).is_file() or (path / _MODULES).is_file()
    return has_model and not (path / _EXPORT).is_file() and not _is_pipeline(path)


def check_published(argument: str, source: str) -> None:
    """Check that a path is a folder of `transformers`, by its files, or may be the id of a model of the hub."""
    if is_published(source):
        return
    path = pathlib.Path(source)
    reason = f"which has no {_CONFIG}"
    if not path.is_dir():
        reason = "which is neither a folder nor an id"
    elif (path / _EXPORT).is_file():
        reason = "an export"
    elif any(map(_is_pipeline, (path, path / "pipeline"))):
        reason = "a saved pipeline, which `keras-transformer export` writes"
    raise FileNotFoundError(
        f"`{argument}` must be the id of a model of the Hugging Face Hub, or a folder of `transformers` or "
        f"`sentence-transformers`. Received: {source}, {reason}"
    )


def check_outside(argument: str, path: str | os.PathLike[str], folder: str) -> None:
    """Check that a path to write to is not in a folder that is read."""
    if pathlib.Path(path).resolve().is_relative_to(pathlib.Path(folder).resolve()) and os.path.isdir(folder):
        raise ValueError(f"`{argument}` must be outside of {folder}, which is read. Received: {path}")


def _is_pipeline(path: pathlib.Path) -> bool:
    """Return whether a folder is a saved pipeline, by its `config.json`."""
    return "pipeline" in _config(path)


def _config(path: pathlib.Path) -> dict[str, Any]:
    """Return the `config.json` of a folder, without fields if there is none, or it is damaged."""
    try:
        config = json.loads((path / _CONFIG).read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def check_new(argument: str, path: str | None) -> None:
    """Check that a path to write to is new."""
    if path is not None and os.path.exists(path):
        raise FileExistsError(f"`{argument}` must be new. Received: {path}, which exists and is not changed")


def check_new_file(argument: str, path: str | None) -> None:
    """Check that a file to write is new and its folder exists."""
    check_new(argument, path)
    if path is not None and not pathlib.Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"`{argument}` must be in an existing folder. Received: {path}")
