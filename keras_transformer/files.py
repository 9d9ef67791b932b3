"""Files and folders that are either there in whole or not at all. Standard library only."""

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
    """A folder to fill, which takes its name only once the block has ended without an error.

    Args:
        path: the name; its parents are made.
        overwrite: whether a folder of that name may be replaced.

    Yields:
        A temporary folder. After an error it is removed, and what stood at `path` is untouched.

    Raises:
        FileExistsError: where `path` exists and `overwrite` is False.
    """
    path = pathlib.Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"`{path}` exists already and is left as it is. Choose another folder, or pass overwrite=True "
            "where that is offered."
        )
    # In the nearest folder that exists, so that a failure leaves no empty parents behind.
    beside = next(parent for parent in path.absolute().parents if parent.is_dir())
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=beside))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp makes it private; a server runs as another user
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            replaced = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=beside))
            os.replace(path, replaced)
            os.replace(temporary, path)
            shutil.rmtree(replaced)
        else:
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write `content` as JSON, in one step."""
    write_bytes(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: where it is damaged.
    """
    text = pathlib.Path(path).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"`{path}` must be JSON. Received: {error}") from error


def sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 digest of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
