"""Checks of folders and files of a command, before it imports TensorFlow."""

import os
import pathlib
from collections.abc import Iterable

_CONFIG, _EXPORT = "config.json", "manifest.json"


def check_pipelines(argument: str, folders: Iterable[str | None], exports: bool = False) -> None:
    """Check that folders are pipelines or runs, as far as the names of their files tell.

    Args:
        argument: the argument that they are given as, for the error.
        folders: the folders; None is ignored.
        exports: whether they may be exports.

    Raises:
        FileNotFoundError: if one is none of these.
    """
    for folder in folders:
        if folder is None:
            continue
        path = pathlib.Path(folder)
        is_export = (path / _EXPORT).is_file()
        has_config = any((each / _CONFIG).is_file() for each in (path, path / "pipeline"))
        if not has_config or (is_export and not exports):
            expected = "a saved pipeline or an export" if exports else "a saved pipeline"
            found = "which is no folder"
            if path.is_dir():
                found = "an export" if is_export else f"which has no {_CONFIG}"
            raise FileNotFoundError(f"`{argument}` must be {expected}. Received: {folder}, {found}")


def check_export(argument: str, folder: str) -> None:
    """Check that a folder is an export.

    Raises:
        FileNotFoundError: if it has no manifest.
    """
    if not os.path.isfile(os.path.join(folder, _EXPORT)):
        received = f"which has no {_EXPORT}" if os.path.isdir(folder) else "which is no folder"
        raise FileNotFoundError(f"`{argument}` must be an export. Received: {folder}, {received}")


def check_new(argument: str, path: str | None) -> None:
    """Check that a path to write to is new.

    Raises:
        FileExistsError: if it exists.
    """
    if path is not None and os.path.exists(path):
        raise FileExistsError(f"`{argument}` must be new. Received: {path}, which exists and is not changed")


def check_new_file(argument: str, path: str | None) -> None:
    """Check that a file to write is new and in a folder that exists.

    Raises:
        FileExistsError: if it exists.
        FileNotFoundError: if its folder does not.
    """
    check_new(argument, path)
    if path is not None and not pathlib.Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"`{argument}` must be in a folder that exists. Received: {path}")
