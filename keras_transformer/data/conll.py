"""Tagged sentences from files in the formats of CoNLL."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer_options.arguments import ArgumentError, is_integer
from keras_transformer_options.files import Paths, check_encoding, checked_paths, file_lines
from keras_transformer_options.malformed import Malformed
from keras_transformer_options.records import line_error

_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile(r"#(\s|\S*$)")
_UNIVERSAL_COLUMNS = 10
_RANGE = re.compile(r"\d+[-.]\d+")  # "3-4", a token of several words, and "3.1", an empty node of CoNLL-U


class TaggedSentence(NamedTuple):
    """A sentence of n words, and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(
    paths: Paths,
    columns: tuple[int, int] = (0, -1),
    *,
    encoding: str | None = None,
    on_error: str = "raise",
) -> list[TaggedSentence]:
    """Read tagged sentences, one word on a line, with empty lines between sentences.

    The columns of a line are separated by tabs or, if it has none, by spaces. Lines that start with "-DOCSTART-" and
    comments ("# …") are ignored; in files of ten columns (CoNLL-U), so are tokens of several words ("3-4") and empty
    nodes ("3.1").

    Args:
        paths: the path of a file, plain or compressed by gzip (".gz"), or several.
        columns: the columns of word and tag, from 0 or, if negative, from the end; for CoNLL-U (1, 3).
        encoding: the encoding of the files, by default UTF-8.
        on_error: "raise" to raise an error for malformed lines, or "skip" to skip their sentences with one warning of
            the logger "keras_transformer". A line is malformed if it is not UTF-8, has another number of columns than
            the first line of its file, or has an empty column.

    Returns:
        The sentences in order, tuples `(words, tags)`.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a line is malformed and `on_error` is "raise", there is no sentence, or `columns` are not two
            integers.

    Example:
        >>> kt.data.read_conll("train.txt")[0]  # doctest: +SKIP
        TaggedSentence(words=('EU', 'rejects'), tags=('B-ORG', 'O'))
    """
    if len(columns) != 2 or not all(map(is_integer, columns)):
        raise ArgumentError("{columns} must be two integers, for word and tag", columns=columns)
    check_encoding(encoding=encoding)
    malformed = Malformed("paths", on_error, has_options=True)
    paths = checked_paths(paths)
    sentences = [sentence for path in paths for sentence in _sentences(path, columns, malformed, encoding)]
    malformed.report()
    if not sentences:
        raise ArgumentError("{paths} must hold at least one sentence", paths=list(map(os.fspath, paths)))
    return sentences


def _sentences(
    path: str | os.PathLike[str], columns: tuple[int, int], malformed: Malformed, encoding: str | None
) -> Iterator[TaggedSentence]:
    words: list[tuple[str, str]] = []
    width, valid = 0, True
    lines = file_lines(path, "paths", encoding=encoding, has_encoding=True)
    for number, line in enumerate(lines, start=1):
        text = line.decode(errors="replace").strip("\r\n")
        if not text.strip() or text.startswith(_DOCUMENT):
            if words and valid:
                yield TaggedSentence(*zip(*words, strict=True))
            words, valid = [], True
            continue
        fields = text.split("\t") if "\t" in text else text.split(" ")
        fields = fields if "\t" in text else [field for field in fields if field]
        if "\t" not in text and _COMMENT.match(text) and len(fields) != width:
            continue
        if len(fields) == _UNIVERSAL_COLUMNS and _RANGE.fullmatch(fields[0]):
            continue
        width = width or len(fields)
        malformed.total += 1
        if error := line_error(line) or _error(fields, columns, width):
            malformed.add(path, f"line {number}", error, line)
            valid = False
        else:
            words.append((fields[columns[0]], fields[columns[1]]))
    if words and valid:
        yield TaggedSentence(*zip(*words, strict=True))


def _error(fields: list[str], columns: tuple[int, int], width: int) -> str:
    """Return the reason why a line is malformed, "" if it is not."""
    needed = max(2, *(column + 1 if column >= 0 else -column for column in columns))
    if len(fields) < needed:
        return f"{len(fields)} column{'s' * (len(fields) != 1)} instead of at least {needed}"
    if len(fields) != width:
        return f"{len(fields)} columns instead of {width}"
    return "" if all(fields[column].strip() for column in columns) else "an empty column"
