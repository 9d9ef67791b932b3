"""Records of TSV, CSV, JSONL and text files."""

import collections
import csv
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_OPEN_QUOTE = "a quote that is not closed"
_QUOTED = re.compile(rb'"[^"]*("|$)')


class Record(NamedTuple):
    """A record of a file.

    Attributes:
        number: the number of its first line.
        line: its content.
        fields: its columns, by name in JSONL files; empty if it is malformed.
        error: the reason why it is malformed, or "".
    """

    number: int
    line: bytes
    fields: list[str] | dict[str, object]
    error: str = ""


def text_records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Read each non-empty line as one field."""
    for record in tsv_records(lines):
        if record.error:
            if record.line.strip():
                yield record
        else:
            yield record._replace(fields=[record.line.rstrip(b"\r\n").decode()])


def tsv_records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Split each line at tabs."""
    for number, line in enumerate(lines, start=1):
        if error := line_error(line):
            yield Record(number, line, [], error)
        else:
            yield Record(number, line, line.rstrip(b"\r\n").decode().split("\t"))


def jsonl_records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Read each line as a JSON object; numbers become strings without change."""
    for number, line in enumerate(lines, start=1):
        error: str = line_error(line)
        value: Any = None
        if not error:
            try:
                value = json.loads(line, parse_int=str, parse_float=str)
            except (ValueError, RecursionError) as invalid:
                error = f"invalid JSON ({invalid})"
        if not error and not isinstance(value, dict):
            error = "not a JSON object"
        yield Record(number, line, {} if error else value, error)


def csv_records(lines: Iterator[bytes], delimiter: str | None = None) -> Iterator[Record]:
    """Split a CSV file into records, whose quoted fields may contain delimiters and line ends.

    A quote that is never closed makes only its own line malformed: the next line starts a new record.

    Args:
        lines: the lines of the file.
        delimiter: the delimiter; by default a comma, or a semicolon if the first line has semicolons but no commas
            outside of quotes.

    Yields:
        The records.
    """
    numbered = enumerate(lines, start=1)
    ahead: collections.deque[tuple[int, bytes]] = collections.deque()
    while entry := ahead.popleft() if ahead else next(numbered, None):
        number, line = entry
        delimiter = delimiter or _delimiter(line)
        continuation, fields, error = [], *_csv_fields(line, delimiter)
        while fields is None and not error:
            if (following := ahead.popleft() if ahead else next(numbered, None)) is None:
                break
            continuation.append(following)
            # A quoted field can only end in a line with an odd number of quotes.
            if following[1].count(b'"') % 2:
                fields, error = _csv_fields(
                    b"".join([line, *(content for _, content in continuation)]), delimiter
                )
        if fields is None:
            ahead.extendleft(reversed(continuation))
            yield Record(number, line, [], _OPEN_QUOTE if continuation or not error else error)
        else:
            yield Record(number, b"".join([line, *(content for _, content in continuation)]), fields)


def line_error(line: bytes) -> str:
    """Return the reason why a line cannot be read in any format, or ""."""
    try:
        return "" if line.decode().strip() else "an empty line"
    except UnicodeDecodeError:
        return "not UTF-8"


def _delimiter(line: bytes) -> str:
    """Detect the delimiter of a CSV file from a line; return "" for an empty line."""
    unquoted = _QUOTED.sub(b"", line)
    if not line.strip():
        return ""
    return ";" if b";" in unquoted and b"," not in unquoted else ","


def _csv_fields(text: bytes, delimiter: str) -> tuple[list[str] | None, str]:
    """Return the fields of a record and "", or `None` and an error; the error is "" if a quote is still open."""
    if error := line_error(text):
        return None, error
    limit = csv.field_size_limit(len(text))  # of characters; by default 131,072
    try:
        return next(csv.reader([text.decode()], delimiter=delimiter, strict=True)), ""
    except csv.Error as error:
        return None, "" if "unexpected end of data" in str(error) else str(error)
    finally:
        csv.field_size_limit(limit)
