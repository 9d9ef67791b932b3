"""Checks of folders and files of a command, before it imports TensorFlow."""

import os
import pathlib
from collections.abc import Iterable

_CONFIG, _EXPORT = "config.json", "manifest.json"


def check_pipelines(argument: str, folders: Iterable[str | None], exports: bool = False) -> None:
    """Check by the names of their files that folders are pipelines or training runs.

    Args:
        argument: the name of the argument, for the error.
        folders: the folders; None is ignored.
        exports: whether they may be exports.

    Raises:
        FileNotFoundError: if a folder is neither.
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


def check_export(argument: str, folder: str) -> None:
    """Check that a folder is an export.

    Raises:
        FileNotFoundError: if it has no manifest.
    """
    if not os.path.isfile(os.path.join(folder, _EXPORT)):
        received = f"which has no {_EXPORT}" if os.path.isdir(folder) else "which is not a folder"
        raise FileNotFoundError(f"`{argument}` must be an export. Received: {folder}, {received}")


def check_new(argument: str, path: str | None) -> None:
    """Check that a path to write to is new.

    Raises:
        FileExistsError: if it exists.
    """
    if path is not None and os.path.exists(path):
        raise FileExistsError(f"`{argument}` must be new. Received: {path}, which exists and is not changed")


def check_new_file(argument: str, path: str | None) -> None:
    """Check that a file to write is new and its folder exists.

    Raises:
        FileExistsError: if it exists.
        FileNotFoundError: if its folder does not exist.
    """
    check_new(argument, path)
    if path is not None and not pathlib.Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"`{argument}` must be in an existing folder. Received: {path}")
