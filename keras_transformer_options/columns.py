"""The columns of examples in the records of a file."""

import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer_options.arguments import ArgumentError, check, is_integer
from keras_transformer_options.headers import is_header
from keras_transformer_options.records import Record

_IDS = ("id", "_id", "idx", "index", "guid", "uuid")

Columns = Sequence[int | str] | int | str | None
Pick = Callable[[Record], tuple[str, ...] | None]


class MalformedRecordError(Exception):
    """The reason why a record is not an example."""


class ColumnPicker:
    """The columns of an example, in all files of a call.

    Args:
        columns: indices from 0 or names; `None` for all columns.
        count: the number of columns of an example; by default the number of `columns` or, without them, of the first
            record's columns.
        known: names of columns, of which a file's are chosen without `columns` if it has all of them, instead of all.
    """

    def __init__(
        self, columns: Columns = None, count: int | None = None, known: Sequence[tuple[str, ...]] = ()
    ) -> None:
        self.columns: tuple[Any, ...] | None = None
        if columns is not None:
            self.columns = (columns,) if isinstance(columns, int | str) else tuple(columns)
        valid = self.columns is None or all(
            isinstance(column, str) or (is_integer(column) and column >= 0) for column in self.columns
        )
        check(valid and self.columns != (), "be indices from 0, or names", columns=columns)
        check(
            count is None or self.columns is None or len(self.columns) == count,
            f"have {count} item{'s' * (count != 1)}",
            columns=columns,
        )
        self.count = count if self.columns is None else len(self.columns)
        self.known = known if columns is None else ()
        self.used = False

    @property
    def named(self) -> bool:
        """True if a column is chosen by its name."""
        return self.columns is not None and any(isinstance(column, str) for column in self.columns)

    def for_file(
        self,
        path: str | os.PathLike[str],
        file_format: str,
        first: Sequence[Record],
        header: bool | None = None,
        on_header: Callable[[Sequence[str]], None] | None = None,
    ) -> Pick:
        """Return the function from a file's record to an example, or to `None` for the header.

        It raises a `MalformedRecordError` for a record that is not an example.

        Args:
            path: the file.
            file_format: its format.
            first: its first records.
            header: whether the first row of a TSV or CSV file is its header, see `FileFormat`.
            on_header: a function that is called with the fields of a header that was recognised.
        """
        self.used = True
        for columns in self.known:
            if {*columns}.issubset(first[0].fields):
                return ColumnPicker(columns).for_file(path, file_format, first, header, on_header)
        if isinstance(first[0].fields, dict):
            return _Objects(self, path).pick
        table = _Table(self, path, file_format)
        if file_format != "text":
            table.set_header([record for record in first if not record.error], header, on_header)
        return table.pick

    def with_ids(self, first: Sequence[Record]) -> list[str]:
        """Return the columns of a file if all are used, although the first one has ids or row numbers; else none."""
        fields = [record.fields for record in first if not record.error]
        if self.columns is not None or not fields or len(fields[0]) < 2:
            return []
        if any({*names}.issubset(fields[0]) for names in self.known):
            return []
        rows = [[*map(str, each.values() if isinstance(each, dict) else each)] for each in fields]
        names = [*fields[0]] if isinstance(fields[0], dict) else rows[0]
        ids = [row[0].strip() for row in rows[0 if isinstance(fields[0], dict) else 1 :]]
        numbers = [int(each) for each in ids if each.isdecimal()]
        are_numbers = len(ids) > 1 and len(numbers) == len(ids) and numbers == sorted(set(numbers))
        is_named = names[0].strip().casefold() in _IDS and len(set(ids)) == len(ids)
        return names if are_numbers or is_named else []

    def position(self, column: int | str, names: Sequence[str], path: str | os.PathLike[str]) -> int:
        """Return the index of a column among the `names` of a file's columns."""
        if isinstance(column, str):
            # Some programs write accents as characters of their own.
            for given, name in ((names, column), (list(map(_composed, names)), _composed(column))):
                if name in given:
                    return given.index(name)
        if isinstance(column, str) or column >= len(names):
            raise ArgumentError(
                "{columns} must be columns of the files. Received: {columns=}, where {path!r} has {names!s}",
                columns=self.columns,
                path=os.fspath(path),
                names=names[:20],
            )
        return column

    def check_used(self, argument: str) -> None:
        """Raise a ValueError if there are `columns` but no file."""
        if self.columns is not None and not self.used:
            raise ArgumentError(
                "{columns} must be None unless {} names files", argument, columns=self.columns
            )

    def check_count(self, count: int, expected: int | None) -> None:
        """Raise a `MalformedRecordError` unless the number of columns is as expected."""
        if count != expected:
            raise MalformedRecordError(f"{count} column{'s' * (count != 1)} instead of {expected}")


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


class _Table:
    """The rows of a TSV, CSV or text file."""

    def __init__(self, picker: ColumnPicker, path: str | os.PathLike[str], file_format: str) -> None:
        self.picker, self.path = picker, path
        self.exact = file_format != "tsv" or picker.columns is None or picker.named
        self.width: int | None = None
        self.indices: Sequence[int] | None = None
        self.header: int | None = None  # the number of its line

    def set_header(
        self,
        valid: Sequence[Record],
        header: bool | None,
        on_header: Callable[[Sequence[str]], None] | None,
    ) -> None:
        """Set the line of the header, if any, unless columns are chosen by name, for which `pick` reads the header."""
        expectation = "not be False with names of columns, which are in the header"
        check(
            not self.picker.named or header is not False,
            expectation,
            header=header,
            columns=self.picker.columns,
        )
        if self.picker.named or not valid:
            return
        number, fields = valid[0].number, list(valid[0].fields)
        rest = [list(record.fields) for record in valid[1:] if len(record.fields) == len(fields)]
        if header or (header is None and is_header(fields, rest)):
            self.header = number
            if header is None and on_header is not None:
                on_header(fields)

    def pick(self, record: Record) -> tuple[str, ...] | None:
        """Return the example of a record."""
        picker, fields = self.picker, list(record.fields)
        if picker.columns is not None and picker.named and self.indices is None:
            self.indices = [picker.position(column, fields, self.path) for column in picker.columns]
            self.width = len(fields)
            return None
        if record.number == self.header:
            return None
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
    """The objects of a JSONL file, or the document of a file with one."""

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
        fields: Any = record.fields  # by name
        return _checked([fields[key] for key in self.keys])


def _checked(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the columns of an example, or raise a `MalformedRecordError` if they are not text."""
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
