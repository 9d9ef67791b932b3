"""Training texts of tokenizers: strings, and the lines of files."""

import os
from collections.abc import Collection, Iterable, Iterator

from keras_transformer.text.tokenizers.strings import to_utf8
from keras_transformer_options.arguments import ArgumentError, Message
from keras_transformer_options.files import conversion, file_lines, format_of

_TABLES = ("tsv", "csv", "jsonl")

Texts = Iterable[str | bytes | os.PathLike[str]] | os.PathLike[str]


def read_texts(texts: Texts) -> Iterator[str]:
    """Read texts one by one.

    Args:
        texts: an iterable of texts and of paths of UTF-8 files, whose lines are the texts; or one path.

    Yields:
        The texts.

    Raises:
        FileNotFoundError: if a path does not exist.
        ValueError: if a text or a line is not valid Unicode, or a path is a directory or names a table.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(
            Message(
                "{texts} must be an iterable of texts, a pathlib.Path or a list of them, not one str: pass [text] to "
                "train on a text, pathlib.Path(name) to train on a file",
                texts=texts,
            )
        )
    if isinstance(texts, os.PathLike):
        texts = [texts]
    if not isinstance(texts, Iterable):
        raise TypeError(
            Message("{texts} must be an iterable of texts, a pathlib.Path or a list of them", texts=texts)
        )
    for row, item in enumerate(texts):
        if isinstance(item, os.PathLike):
            yield from read_lines(item)
        elif isinstance(item, str | bytes):
            yield to_utf8(item, "texts", row).decode()
        else:
            raise TypeError(
                Message(
                    "{texts} must hold str, UTF-8 bytes or pathlib.Path. "
                    f"Received: {{texts[{row}]=}} (of type {type(item).__name__})",
                    **{f"texts[{row}]": item},
                )
            )


def read_lines(path: os.PathLike[str], tables: Collection[str] = _TABLES) -> Iterator[str]:
    """Read the lines of a file without their ends.

    Args:
        path: a UTF-8 file.
        tables: the formats that are refused.

    Yields:
        The lines.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is not valid Unicode, or the path is a directory or names a table.
    """
    if format_of(path) in tables:
        raise ArgumentError(
            "{texts} must name text files, whose lines are the texts; read a column of a table with "
            "`keras_transformer.data.read_examples`. Received: {path!r}",
            path=os.fspath(path),
        )
    for number, line in enumerate(file_lines(path, "texts"), start=1):
        try:
            yield line.rstrip(b"\r\n").decode()
        except UnicodeDecodeError as error:
            raise ArgumentError(
                "{texts} must name UTF-8 files. Received: {path!r}, whose line {number!s} holds {wrong!r} at byte "
                "{start!s}: {line!r}; if it is in Windows-1252, {remedy!s}",
                path=os.fspath(path),
                number=number,
                wrong=line[error.start : error.end],
                start=error.start,
                line=line[:100],
                remedy=conversion(path, "cp1252", has_encoding=False),
            ) from None
