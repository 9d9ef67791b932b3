"""Examples from users' files: TSV, CSV, JSONL and plain text."""

import glob
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from keras_transformer.data.columns import ColumnPicker, Columns, MalformedRecordError
from keras_transformer.data.malformed import Malformed
from keras_transformer.data.records import (
    csv_records,
    jsonl_records,
    text_records,
    tsv_records,
)
from keras_transformer.text.training.files import FORMATS, checked_file, file_lines, format_of
from keras_transformer_options.arguments import check_one_of

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

ADVICE = ", `columns` to pick columns"
_RECORDS = {"tsv": tsv_records, "csv": csv_records, "jsonl": jsonl_records, "text": text_records}
_SAMPLE = 20  # records in which a header is looked for


def read_examples(
    paths: Paths,
    columns: Columns = None,
    *,
    format: str | None = None,  # noqa: A002
    on_error: str = "raise",
) -> list[tuple[str, ...]]:
    """Read examples from files of UTF-8 text, plain or compressed by gzip (".gz"), into memory.

    | format | suffix | an example |
    |---|---|---|
    | "tsv" | .tsv | a line, split at tabs, without quoting |
    | "csv" | .csv | a record of Python's `csv`, whose fields in quotes may contain line ends |
    | "jsonl" | .jsonl | the values of a JSON object on a line: strings, or numbers, which become strings |
    | "text" | .txt | a line that is not empty |

    The columns of a CSV file are separated by commas, or by semicolons if its first line has semicolons but no commas
    outside of quotes.

    The first row of a TSV or CSV file is its header if `columns` are names, and an example otherwise. It is refused as
    malformed, rather than taken for an example, if all of its columns are usual names such as "text" and "label", or if
    one of its columns is a number in every following row but not there.

    Args:
        paths: the path of a file, or several; each may be a pattern such as "reviews-*.csv.gz", for the files that
            match it in alphabetical order.
        columns: the columns of an example: indices from 0, or names in the header of a TSV or CSV file or keys of the
            JSON objects; by default all columns. A TSV row may have more columns than the ones chosen by index; the
            rows of a CSV file must all have as many columns as the first.
        format: the format of all files, by default that of each file's suffix.
        on_error: "raise" to refuse malformed lines, or "skip" to leave them out with one warning of the logger
            "keras_transformer", which has their number and the first three. A line is malformed if it is empty, has
            another number of columns, an empty field or a missing key, or is not valid UTF-8, CSV or JSON.

    Returns:
        The examples in order, each a tuple of one string for each column.

    Raises:
        FileNotFoundError: if a file does not exist.
        TypeError: if `paths` are not paths.
        ValueError: if a line is malformed and `on_error` is "raise", a file lacks one of `columns`, no example is left,
            the format is unknown, or a path is a directory.

    Example:
        >>> kt.data.read_examples("reviews.csv", columns=("text", "label"), on_error="skip")  # doctest: +SKIP
        [('A fine film.', 'positive'), ...]
    """
    return list(stream_examples(paths, columns, format=format, on_error=on_error))


def stream_examples(
    paths: Paths,
    columns: Columns = None,
    *,
    format: str | None = None,  # noqa: A002
    on_error: str = "raise",
) -> Iterator[tuple[str, ...]]:
    """Read examples from files as `read_examples` does, but one by one, for files that are larger than memory.

    Args:
        paths: see `read_examples`.
        columns: see `read_examples`.
        format: see `read_examples`.
        on_error: see `read_examples`. Malformed lines are reported after the last example.

    Yields:
        The examples in order, each a tuple of one string for each column.

    Raises:
        FileNotFoundError: as `read_examples`, when the first example is read.
        TypeError: see `FileNotFoundError`.
        ValueError: see `FileNotFoundError`.

    Example:
        >>> texts = (text for text, _ in kt.data.stream_examples("reviews-*.csv.gz"))  # doctest: +SKIP
    """
    malformed = Malformed("paths", on_error, ADVICE)
    picker = ColumnPicker(columns)
    paths = checked_paths(paths)
    found = False
    for path in paths:
        for example in file_examples(path, "paths", picker, malformed, format=format):
            found = True
            yield example
    malformed.report()
    if not found:
        raise ValueError(
            f"`paths` must hold at least one example. Received: paths={list(map(os.fspath, paths))}"
        )


def matching(path: str | os.PathLike[str], argument: str) -> list[str | os.PathLike[str]]:
    """Return the files that match a pattern, in alphabetical order, or the file that a path names.

    Args:
        path: the path or pattern.
        argument: the argument that it is given as, for the error.

    Raises:
        FileNotFoundError: if no file matches, or there is no such file.
        ValueError: if the path is a directory.
    """
    pattern = os.fspath(path)
    if not set(pattern) & set("*?[") or os.path.exists(pattern):
        checked_file(path, argument)
        return [path]
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise FileNotFoundError(
            f"`{argument}` must name files that exist. Received: {pattern!r}, a pattern that no file matches"
        )
    return found if isinstance(path, str) else [pathlib.Path(file) for file in found]


def checked_paths(paths: Any) -> list[str | os.PathLike[str]]:
    """Return paths as a list, with the files that match patterns in their place.

    Raises:
        TypeError: if one is not a path.
        ValueError: if there are none.
    """
    found = (
        [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    )
    if not found:
        raise ValueError(f"`paths` must hold at least one path. Received: paths={paths!r}")
    for path in found:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"`paths` must be a path or a list of paths. Received: paths={paths!r}")
    return [file for path in found for file in matching(path, "paths")]


def file_examples(
    path: str | os.PathLike[str],
    argument: str,
    picker: ColumnPicker,
    malformed: Malformed,
    *,
    format: str | None = None,  # noqa: A002
    opened: Callable[[BinaryIO], None] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Read the examples of one file, and record its malformed lines.

    Args:
        path: the file.
        argument: the argument that the path is given as, for error messages.
        picker: the columns of an example.
        malformed: the collected malformed lines; to be reported by the caller.
        format: the format, by default that of the suffix.
        opened: see `file_lines`.

    Yields:
        The examples.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the format is unknown, the path is a directory, the file is empty, or it lacks a column.
    """
    lines = file_lines(path, argument, opened)
    if format is not None:
        check_one_of(tuple(_RECORDS), format=format)
    format = format or format_of(path)  # noqa: A001
    if format is None:
        raise ValueError(
            f"`{argument}` must end in {', '.join(FORMATS)} or one of them and .gz, unless `format` is given. "
            f"Received: {os.fspath(path)!r}"
        )
    records = _RECORDS[format](lines)
    first = list(itertools.islice(records, _SAMPLE))
    if not first:
        raise ValueError(f"`{argument}` must name files that are not empty. Received: {os.fspath(path)!r}")
    pick = picker.for_file(path, format, first)
    for record in itertools.chain(first, records):
        try:
            if record.error:
                raise MalformedRecordError(record.error)
            if (example := pick(record)) is not None:
                yield example
        except MalformedRecordError as error:
            malformed.add(path, f"line {record.number}", str(error), record.line)
