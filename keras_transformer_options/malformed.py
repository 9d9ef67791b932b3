"""Malformed lines and headers of users' files, collected over all files and reported once."""

import logging
import os
from collections.abc import Sequence

from keras_transformer_options.arguments import ArgumentError, Message, check_one_of
from keras_transformer_options.files import conversion

ON_ERROR = ("raise", "skip")
_LISTED = 3
_LOGGER = logging.getLogger("keras_transformer")


class Malformed:
    """The malformed lines of files, which raise one error or are skipped with one warning, and their headers.

    Args:
        argument: the name of the argument with the files, for messages.
        on_error: "raise" to raise an error, "skip" to skip them with one warning of the logger "keras_transformer".
        advice: a remedy other than `on_error`, for the error.
        unit: the noun for a malformed item.
        has_options: whether the caller has the arguments `encoding` and `header`, which messages may recommend.

    Attributes:
        total: the number of lines that are read; to be increased by readers.
        is_partial: whether files have more lines than these; to be set by readers.
    """

    def __init__(
        self,
        argument: str,
        on_error: str,
        advice: Message | str = "",
        unit: str = "line",
        has_options: bool = False,
    ) -> None:
        check_one_of(ON_ERROR, on_error=on_error)
        self.argument, self.on_error, self.advice, self.unit = argument, on_error, advice, unit
        self.has_options = has_options
        self.count = self.total = 0
        self.is_partial = False
        self.first: list[str] = []
        self._headers: list[tuple[str | os.PathLike[str], Sequence[str]]] = []
        self._with_ids: list[tuple[str | os.PathLike[str], Sequence[str]]] = []
        self._not_utf8: str | os.PathLike[str] | None = None
        self._quoted, self._first_quoted = 0, ""

    def add(self, path: str | os.PathLike[str], place: str, reason: str, content: str | bytes = b"") -> None:
        """Record a malformed line.

        Args:
            path: its file.
            place: its place in the file, such as "line 3".
            reason: the reason why it is malformed.
            content: the line; shown in Windows-1252 if it is not UTF-8.
        """
        self.count += 1
        if isinstance(content, str):
            text = content
        else:
            try:
                text = content.decode()
            except UnicodeDecodeError:
                self._not_utf8 = self._not_utf8 or path
                reason += ", in Windows-1252"
                text = content.decode("cp1252", errors="replace")
        if len(self.first) < _LISTED:
            text = text.rstrip("\r\n")[:200]
            shown = f": {text!r}" if text else ""
            self.first.append(f"{os.fspath(path)}, {place}: {reason}{shown}")

    def add_header(self, path: str | os.PathLike[str], fields: Sequence[str]) -> None:
        """Record the first row of a file, if it is skipped because it was recognised as a header."""
        self._headers.append((path, fields))

    def add_ids(self, path: str | os.PathLike[str], names: Sequence[str]) -> None:
        """Record the columns of a file that are all used, although the first looks like ids."""
        self._with_ids.append((path, names))

    @property
    def has_ids(self) -> bool:
        """True if all columns of a file are used, although the first looks like ids."""
        return bool(self._with_ids)

    def add_quoted(self, path: str | os.PathLike[str], number: int, field: str) -> None:
        """Record a field of a TSV file with the quotes of CSV, and the number of its line."""
        self._quoted += 1
        self._first_quoted = self._first_quoted or f"{os.fspath(path)}, line {number}: {field[:200]}"

    def check(self) -> None:
        """Raise a ValueError if there is a malformed line and `on_error` is "raise"."""
        if self.count and self.on_error == "raise":
            raise ArgumentError(
                "{} must name files without malformed {unit!s}s; pass {on_error='skip'} to skip them{advice!s}. "
                "Received: {malformed!s}",
                self.argument,
                unit=self.unit,
                advice=self.advice,
                malformed=self._malformed(),
            )

    def report(self) -> None:
        """Raise an error or warn about malformed lines, with their number and the first ones; warn about headers."""
        self.check()
        if self.count:
            _LOGGER.warning(Message("Skipping {malformed!s}", malformed=self._malformed()))
        if self._headers:
            others = f", and of {len(self._headers) - 1} other files," if len(self._headers) > 1 else ""
            path, fields = self._headers[0]
            advice = "; pass {header=False} if it is an example, {header=True} if it is not"
            _LOGGER.warning(
                Message(
                    "Skipping the first row of {files!s} as a header: {fields!s}"
                    + (advice if self.has_options else ""),
                    files=os.fspath(path) + others,
                    fields=", ".join(map(repr, fields)),
                )
            )
        if self._with_ids:
            path, names = self._with_ids[0]
            _LOGGER.warning(
                Message(
                    "Using all columns of {files!s}, although the first looks like ids: {names!s}"
                    + (
                        f"; pass {{columns={(*range(1, len(names)),)}}} to leave it out"
                        if len(names) > 2
                        else ""
                    ),
                    files=os.fspath(path),
                    names=", ".join(map(repr, names)),
                )
            )
        if self._quoted:
            _LOGGER.warning(
                Message(
                    "Keeping the quotes of {fields!s} in TSV files. If the files have the quotes of CSV, pass "
                    "{format='csv'} and {delimiter=}. The first: {first!s}",
                    fields=f"{self._quoted:,} field{'s' * (self._quoted > 1)}",
                    delimiter="\t",
                    first=self._first_quoted,
                )
            )

    def _malformed(self) -> Message:
        """Return the number of malformed lines and the first ones."""
        percentage = f" ({100 * self.count / self.total:.3g} %)" if self.total else ""
        unit = f"{self.unit}{'s' * (self.count > 1)}"
        of_total = (
            f" of {'the first ' if self.is_partial else ''}{self.total:,}{percentage}" if self.total else ""
        )
        summary, first = f"{self.count:,} malformed {unit}{of_total}", "\n".join(self.first)
        if self._not_utf8 is None:
            return Message("{summary!s}, the first:\n{first!s}", summary=summary, first=first)
        return Message(
            "{summary!s}; if the file is in Windows-1252 (Latin-1), {remedy!s}; the first:\n{first!s}",
            summary=summary,
            remedy=conversion(self._not_utf8, "cp1252", self.has_options),
            first=first,
        )
