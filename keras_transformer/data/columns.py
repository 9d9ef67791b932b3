"""The columns of examples in the records of a file."""

import os
import re
from collections.abc import Callable, Sequence

from keras_transformer.data.records import Record
from keras_transformer_options.arguments import is_integer

Columns = Sequence[int | str] | int | str | None
Pick = Callable[[Record], tuple[str, ...] | None]

_NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?\s*")
_NAMES = re.compile(
    r"\s*(id|idx|(text|sentence|question)_?[12ab]?|review|tweet|comment|title|body|document|labels?|class|category"
    r"|sentiment|score|tags?|source|target|src|tgt|input|output|premise|hypothesis|context|answers?"
    r"|english|german|french|spanish|italian|portuguese)\s*",
    re.IGNORECASE,
)


class MalformedRecordError(Exception):
    """A record that is no example, with the reason."""


class ColumnPicker:
    """The columns that make an example, in all files of a call.

    Args:
        columns: indices from 0 or names; `None` for all columns.
        count: the number of columns of an example; by default that of `columns` or, without them, of the first record.

    Raises:
        ValueError: if `columns` are neither indices nor names, or not as many as `count`.
    """

    def __init__(self, columns: Columns = None, count: int | None = None) -> None:
        one = isinstance(columns, int | str)
        self.columns = None if columns is None else (columns,) if one else tuple(columns)
        valid = self.columns is None or all(
            isinstance(column, str) or (is_integer(column) and column >= 0) for column in self.columns
        )
        if not valid or self.columns == ():
            raise ValueError(f"`columns` must be indices from 0, or names. Received: columns={columns!r}")
        if count is not None and self.columns is not None and len(self.columns) != count:
            raise ValueError(f"`columns` must be {count}. Received: columns={columns!r}")
        self.count = count if self.columns is None else len(self.columns)
        self.used = False

    @property
    def named(self) -> bool:
        """True if a column is given by its name."""
        return self.columns is not None and any(isinstance(column, str) for column in self.columns)

    def for_file(self, path: str | os.PathLike[str], file_format: str, first: Sequence[Record]) -> Pick:
        """Return the function from a file's record to an example, or to `None` for the header.

        It raises a `MalformedRecordError` for a record that is no example.

        Args:
            path: the file.
            file_format: its format.
            first: its first records.

        Raises:
            ValueError: if the file lacks a column.
        """
        self.used = True
        valid = [record for record in first if not record.error]
        if file_format == "jsonl":
            return _Objects(self, path).pick
        return _Table(self, path, file_format, valid).pick

    def position(self, column: int | str, names: Sequence[str], path: str | os.PathLike[str]) -> int:
        """Return the index of a column among the `names` of a file's columns.

        Raises:
            ValueError: if there is no such column.
        """
        if isinstance(column, str) and column in names:
            return names.index(column)
        if isinstance(column, str) or column >= len(names):
            raise ValueError(
                f"`columns` must be columns of the files. Received: columns={self.columns!r}, where "
                f"{os.fspath(path)!r} has {names[:20]}"
            )
        return column

    def check_used(self, argument: str) -> None:
        """Raise a ValueError if `columns` are given, but no file in which to pick them."""
        if self.columns is not None and not self.used:
            raise ValueError(
                f"`columns` must be None unless `{argument}` names files. Received: columns={self.columns!r}"
            )

    def check_count(self, found: int, expected: int | None) -> None:
        """Raise a `MalformedRecordError` unless as many columns are found as expected."""
        if found != expected:
            raise MalformedRecordError(f"{found} column{'s' * (found != 1)} instead of {expected}")


class _Table:
    """The rows of a TSV, CSV or text file."""

    def __init__(
        self, picker: ColumnPicker, path: str | os.PathLike[str], file_format: str, valid: Sequence[Record]
    ) -> None:
        self.picker, self.path = picker, path
        self.exact = file_format != "tsv" or picker.columns is None or picker.named
        self.width: int | None = None
        self.indices: list[int] | None = None
        self.header: tuple[int, tuple[str, ...]] | None = None
        if picker.named:
            return
        rows = []
        for record in valid:
            try:
                rows.append((record, self.pick(record)))
            except MalformedRecordError:
                continue
        if file_format != "text" and rows and _is_header(*(row for _, row in rows)):
            self.header = (rows[0][0].number, rows[0][1])

    def pick(self, record: Record) -> tuple[str, ...] | None:
        """Return the example of a record."""
        picker, fields = self.picker, record.fields
        if picker.named and self.indices is None:
            self.indices = [picker.position(column, fields, self.path) for column in picker.columns]
            self.width = len(fields)
            return None
        if self.header is not None and record.number == self.header[0]:
            raise MalformedRecordError(f"a header; to use it, pass columns={self.header[1]!r}")
        if picker.columns is None:
            picker.count = picker.count or len(fields)
            picker.check_count(len(fields), picker.count)
            chosen = fields
        else:
            if self.exact:
                self.width = self.width or len(fields)
                picker.check_count(len(fields), self.width)
            indices = picker.columns if self.indices is None else self.indices
            if max(indices) >= len(fields):
                raise MalformedRecordError(f"{len(fields)} columns instead of at least {max(indices) + 1}")
            chosen = [fields[index] for index in indices]
        return _checked(chosen)


class _Objects:
    """The objects of a JSONL file."""

    def __init__(self, picker: ColumnPicker, path: str | os.PathLike[str]) -> None:
        self.picker, self.path = picker, path
        self.keys: list[str] = []

    def pick(self, record: Record) -> tuple[str, ...]:
        """Return the example of a record."""
        picker, names = self.picker, list(record.fields)
        if not self.keys:
            columns = range(len(names)) if picker.columns is None else picker.columns
            self.keys = [names[picker.position(column, names, self.path)] for column in columns]
        for key in self.keys:
            if key not in record.fields:
                raise MalformedRecordError(f"no key {key!r}")
        if picker.columns is None:
            picker.count = picker.count or len(names)
            picker.check_count(len(names), picker.count)
        return _checked([record.fields[key] for key in self.keys])


def _checked(values: Sequence[object]) -> tuple[str, ...]:
    """Return the columns of an example if they are text."""
    for value in values:
        if not isinstance(value, str):
            raise MalformedRecordError(f"{str(value)[:50]} where a string or a number is expected")
        if not value.strip():
            raise MalformedRecordError("an empty field")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise MalformedRecordError("a lone surrogate") from None
    return tuple(values)


def _is_header(first: tuple[str, ...], *rest: tuple[str, ...]) -> bool:
    """Return whether a file's first row names its columns; see `read_examples`."""
    if all(map(_NAMES.fullmatch, first)):
        return True
    return len(rest) > 1 and any(
        not _NUMBER.fullmatch(name) and all(_NUMBER.fullmatch(row[column]) for row in rest)
        for column, name in enumerate(first)
    )
