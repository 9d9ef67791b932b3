"""Examples in users' files: TSV, CSV, JSONL, plain text, and documents with summaries."""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from keras_transformer_options.arguments import ArgumentError, Message, check, check_one_of
from keras_transformer_options.columns import ColumnPicker, MalformedRecordError
from keras_transformer_options.files import FORMATS, Path, check_encoding, file_lines, format_of, other_file
from keras_transformer_options.malformed import Malformed
from keras_transformer_options.records import csv_records, jsonl_records, text_records, tsv_records
from keras_transformer_options.summaries import report_records, story_records

ADVICE = Message(", {columns} to pick columns")
_RECORDS: dict[str, Callable[..., Any]] = {
    "tsv": tsv_records,
    "csv": csv_records,
    "jsonl": jsonl_records,
    "text": text_records,
    "story": story_records,
    "govreport": report_records,
}
FORMAT_NAMES = tuple(_RECORDS)
_QUOTED = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')  # with a doubled quote
_SAMPLE = 200  # records in which a header is recognised


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """The format of files.

    Attributes:
        format: "tsv", "csv", "jsonl", "text", "story" or "govreport", by default determined by each file's suffix.
        encoding: the encoding, such as "cp1252" (Windows-1252, with the letters of Latin-1) or "utf-16"; by default
            UTF-8.
        delimiter: the character between the columns of CSV files; by default a comma, or a semicolon if the first line
            has semicolons but no commas outside of quotes.
        header: whether the first row of TSV and CSV files is their header; by default it is recognised, see
            `is_header`.
    """

    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.format is not None:
            check_one_of(FORMAT_NAMES, format=self.format)
        check_encoding(encoding=self.encoding)
        delimiter = self.delimiter
        valid = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'
        expectation = "be one character, neither a quote nor a line end"
        check(delimiter is None or valid, expectation, delimiter=delimiter)
        check_one_of((None, True, False), header=self.header)

    def format_of(self, path: Path, argument: str) -> str:
        """Return the format of a file.

        Args:
            path: the file.
            argument: the name of the argument with the path, for error messages.
        """
        format_ = self.format or format_of(path)
        if format_ is None:
            raise ArgumentError(
                "{} must end in {suffixes!s} or one of them and .gz, unless {format} is set. Received: {path!r}",
                argument,
                suffixes=", ".join(FORMATS),
                path=os.fspath(path),
            )
        if self.delimiter is not None and format_ != "csv":
            raise ArgumentError(
                "{delimiter} must be None except for CSV files, or with {format='csv'}. "
                "Received: {delimiter=}, {path!r}",
                delimiter=self.delimiter,
                path=os.fspath(path),
            )
        return format_


def file_examples(
    path: Path,
    argument: str,
    picker: ColumnPicker,
    malformed: Malformed,
    file_format: FileFormat = FileFormat(),
    *,
    opened: Callable[[BinaryIO], None] | None = None,
    only_first: bool = False,
) -> Iterator[tuple[str, ...]]:
    """Read the examples of one file, and record its malformed lines.

    Args:
        path: the file.
        argument: the name of the argument with the path, for error messages.
        picker: the columns of an example.
        malformed: the collected malformed lines; to be reported by the caller.
        file_format: its format.
        opened: see `file_lines`.
        only_first: whether to read only the first examples, to check them.

    Yields:
        The examples.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the format is unknown, the path is a directory, the file is empty, or it lacks a column.
    """
    lines = file_lines(path, argument, opened, file_format.encoding, malformed.has_options)
    format_ = file_format.format_of(path, argument)
    delimiter = [file_format.delimiter] if format_ == "csv" else []
    records = _RECORDS[format_](lines, *delimiter)
    first = list(itertools.islice(records, _SAMPLE))
    if not first:
        raise ArgumentError(other_file(argument, path, "non-empty files"))

    def on_header(fields: Any) -> None:
        malformed.add_header(path, fields)

    if format_ != "text" and (names := picker.with_ids(first)):
        malformed.add_ids(path, names)
    pick = picker.for_file(path, format_, first, file_format.header, on_header)
    if only_first:
        malformed.is_partial |= next(records, None) is not None
        records = iter(())
    for record in itertools.chain(first, records):
        malformed.total += 1
        try:
            if record.error:
                raise MalformedRecordError(record.error)
            if (example := pick(record)) is not None:
                if format_ == "tsv":
                    for field in filter(_QUOTED.fullmatch, example):
                        malformed.add_quoted(path, record.number, field)
                yield example
        except MalformedRecordError as error:
            malformed.add(path, f"line {record.number}", str(error), record.line)
