"""Errors of rows: raised, or returned in place of the answers to their rows."""

import contextlib
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

Errors = Literal["raise", "return"]
Kind = Literal["value", "length", "encoding"]


class InvalidInputError(ValueError):
    """A text that is invalid.

    Args:
        argument: the name of the argument that the text is given as.
        message: the reason.
        kind: what is wrong: the text is too long ("length"), is not UTF-8 ("encoding"), or else ("value").
    """

    def __init__(self, argument: str, message: str, kind: Kind = "value") -> None:
        super().__init__(message)
        self.argument, self.kind = argument, kind

    @property
    def message(self) -> "ErrorMessage":
        """The reason, with its kind."""
        return ErrorMessage(str(self), self.kind)


class ErrorMessage(str):
    """The output "error" of an invalid row, with the kind of the error, from which protocols choose a status."""

    kind: Kind

    def __new__(cls, message: str, kind: Kind) -> Self:
        """Return a string with a kind."""
        text = super().__new__(cls, message)
        text.kind = kind
        return text


class RowErrors:
    """The errors of the rows of a call, at most one for each.

    Args:
        errors: "raise" an error when it is found, or "return" it in place of the answer to its row.

    Example:
        >>> errors = RowErrors("return")
        >>> with errors.catching(1):
        ...     check_string("texts", 1, None)
        >>> errors.merge({0: "good", 2: "fine"})
        ['good', TypeError('`texts` must be strings. Received: texts[1]=None'), 'fine']
    """

    def __init__(self, errors: Errors = "raise") -> None:
        if errors not in ("raise", "return"):
            raise ValueError(f"`errors` must be 'raise' or 'return'. Received: errors={errors!r}")
        self._raises = errors == "raise"
        self._errors: dict[int, Exception] = {}

    def __contains__(self, row: int) -> bool:
        """Return whether a row has an error."""
        return row in self._errors

    def add(self, row: int, error: Exception) -> None:
        """Raise the error of a row, or keep it if it is the row's first."""
        if self._raises:
            raise error from None
        # A traceback refers to the variables of its functions, such as all texts.
        self._errors.setdefault(row, error.with_traceback(None))

    @contextlib.contextmanager
    def catching(self, row: int) -> Iterator[None]:
        """Add an error that is raised in the block, a check of a row."""
        try:
            yield
        except (TypeError, ValueError) as error:
            self.catch(row, error)

    def catch(self, row: int, error: Exception) -> None:
        """Add an error that was raised, with the place of the row if it is of an invalid input."""
        if isinstance(error, InvalidInputError):
            error = ValueError(f"{error} in {error.argument}[{row}]")
        self.add(row, error)

    def accepted(self, count: int) -> list[int]:
        """Return the indices of those of `count` rows that have no error."""
        return [row for row in range(count) if row not in self]

    def merge(self, answers: Mapping[int, Any]) -> list[Any]:
        """Return the answers to accepted rows, by index, and the errors of the others, in order."""
        merged = {**answers, **self._errors}
        return [merged[row] for row in sorted(merged)]


def as_list(name: str, values: Any) -> list[Any]:
    """Return texts as a list, or raise a TypeError if they are a single one or no list; `check_string` checks each.

    Bytes are decoded as UTF-8, and those that are not valid become surrogates, which `check_string` refuses.
    """
    is_one = isinstance(values, str | bytes | Mapping) or getattr(values, "ndim", 1) == 0
    if is_one or not isinstance(values, Iterable):
        raise TypeError(f"`{name}` must be a list of strings. Received: {name}={repr(values)[:80]}")
    return [value.decode(errors="surrogateescape") if isinstance(value, bytes) else value for value in values]


def check_batch_size(batch_size: Any) -> None:
    """Raise a ValueError unless the number of rows in a batch is a positive integer."""
    check_positive_integer("batch_size", batch_size)


def check_positive_integer(name: str, value: Any) -> None:
    """Raise a ValueError unless the value of the argument `name` is a positive integer."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value!r}")


def check_string(name: str, row: int, text: Any) -> None:
    """Raise a TypeError or ValueError unless a text, the argument `name` at index `row`, is valid Unicode."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be strings. Received: {name}[{row}]={text!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{name}` must be text without lone surrogates. Received: {name}[{row}]={text!r}, "
            f"with {text[error.start : error.end]!r} at character {error.start}"
        ) from None


def check_truncate(truncate: Any) -> None:
    """Raise a TypeError unless `truncate` is a boolean."""
    if not isinstance(truncate, bool):
        raise TypeError(f"`truncate` must be True or False. Received: truncate={truncate!r}")
