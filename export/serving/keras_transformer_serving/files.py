"""Atomic writing of files and folders, and digests. Standard library only."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Create a folder atomically: it takes its name when the block ends without an error.

    Args:
        path: the name; its parents are created.
        overwrite: whether to replace an existing folder.

    Yields:
        A temporary folder to write into. After an error it is removed, and `path` is unchanged.

    Raises:
        FileExistsError: if `path` is a file, or a folder that is not empty and `overwrite` is False.
        NotADirectoryError: if `path` is below a file.
    """
    path = pathlib.Path(path).absolute()
    _check_free(path, overwrite)
    beside = nearest_folder(path)  # a failure leaves no empty parents
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=beside))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp makes it private; a server runs as another user
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_free(path, overwrite)
        if path.exists():
            _replace(path, temporary, beside)
        else:
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def nearest_folder(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return the nearest existing folder above `path`.

    Raises:
        NotADirectoryError: if `path` is below a file.
    """
    path = pathlib.Path(path).absolute()
    nearest = next(parent for parent in path.parents if parent.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"`{path}` must be below a folder. Received: {nearest}, which is a file")
    return nearest


def _check_free(path: pathlib.Path, overwrite: bool) -> None:
    if path.is_dir() and (overwrite or not any(path.iterdir())):
        return
    if path.exists():
        raise FileExistsError(
            f"`{path}` exists already and is left as it is. Choose another folder, or pass overwrite=True "
            "where that is offered."
        )


def _replace(path: pathlib.Path, new: pathlib.Path, beside: pathlib.Path) -> None:
    """Replace a folder by `new`, or restore it if that fails."""
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=beside))
    try:
        os.replace(path, aside / "old")
        try:
            os.replace(new, path)
        except OSError:
            os.replace(aside / "old", path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new one, never a part."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write `content` as JSON, atomically."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: if it is damaged.
    """
    content = pathlib.Path(path).read_bytes()
    try:
        return json.loads(content)
    except ValueError as error:  # bad JSON or bad UTF-8
        raise ValueError(f"`{path}` must be JSON. Received: {error}") from error


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
