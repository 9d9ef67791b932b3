"""Lines of text files, plain or compressed by gzip."""

import codecs
import gzip
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

# The format of a file by its suffix, without ".gz".
FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".txt": "text"}


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that a path's suffix names, `None` if it names none of `FORMATS`."""
    path = pathlib.Path(path)
    return FORMATS.get((path.with_suffix("") if _is_compressed(path) else path).suffix.lower())


def checked_file(path: str | os.PathLike[str], argument: str) -> pathlib.Path:
    """Return the path of a file.

    Args:
        path: the file.
        argument: the argument that the path is given as, for error messages.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the path is a directory.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise ValueError(f"`{argument}` must name files. Received: the directory {os.fspath(path)!r}")
    if not path.exists():
        raise FileNotFoundError(f"`{argument}` must name files that exist. Received: {os.fspath(path)!r}")
    return path


def file_lines(
    path: str | os.PathLike[str], argument: str, opened: Callable[[BinaryIO], None] | None = None
) -> Iterator[bytes]:
    r"""Read the lines of a file, without a byte order mark and with their line ends.

    Args:
        path: the file; if its name ends in ".gz", it is decompressed.
        argument: the argument that the path is given as, for error messages.
        opened: a function that is called with the file, compressed or not, once it is open.

    Returns:
        An iterator of the lines, which are delimited by "\n".

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the path is a directory or, while lines are read, if the file is not compressed by gzip as its
            name says.
    """
    return _lines(checked_file(path, argument), argument, opened)


def _lines(path: pathlib.Path, argument: str, opened: Callable[[BinaryIO], None] | None) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            if opened is not None:
                opened(file)
            lines = gzip.GzipFile(fileobj=file) if _is_compressed(path) else file
            for number, line in enumerate(lines):
                yield line if number else line.removeprefix(codecs.BOM_UTF8)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"`{argument}` must name whole gzip files where they end in '.gz'. "
            f"Received: {os.fspath(path)!r} ({error})"
        ) from None


def _is_compressed(path: pathlib.Path) -> bool:
    return path.suffix.lower() == ".gz"
