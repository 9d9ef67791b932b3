"""Malformed lines of users' files, collected over all files and reported once."""

import logging
import os

from keras_transformer_options.arguments import check_one_of

ON_ERROR = ("raise", "skip")
_LISTED = 3
_LOGGER = logging.getLogger("keras_transformer")


class Malformed:
    """The malformed lines of files, which are refused or left out together.

    Args:
        argument: the argument that the files are given as, for messages.
        on_error: "raise" to refuse them, "skip" to leave them out with one warning of the logger "keras_transformer".
        advice: a remedy other than `on_error`, for the error.
        unit: the noun for what is malformed.

    Raises:
        ValueError: if `on_error` is unknown.
    """

    def __init__(self, argument: str, on_error: str, advice: str = "", unit: str = "line") -> None:
        check_one_of(ON_ERROR, on_error=on_error)
        self.argument, self.on_error, self.advice, self.unit = argument, on_error, advice, unit
        self.count = 0
        self.first: list[str] = []

    def add(self, path: str | os.PathLike[str], place: str, reason: str, content: str | bytes = b"") -> None:
        """Record a malformed line.

        Args:
            path: its file.
            place: its place in the file, such as "line 3".
            reason: the reason why it is malformed.
            content: the line.
        """
        self.count += 1
        if len(self.first) < _LISTED:
            if isinstance(content, bytes):
                content = content.rstrip(b"\r\n")[:200].decode(errors="backslashreplace")
            shown = f": {content!r}" if content else ""
            self.first.append(f"{os.fspath(path)}, {place}: {reason}{shown}")

    def report(self) -> None:
        """Raise or warn if there is a malformed line, with the count and the first ones.

        Raises:
            ValueError: if there is one and `on_error` is "raise".
        """
        if not self.count:
            return
        found = f"{self.count} malformed {self.unit}{'s' * (self.count > 1)}"
        listed = "\n".join(self.first)
        if self.on_error == "raise":
            raise ValueError(
                f"`{self.argument}` must name files without malformed {self.unit}s; pass on_error='skip' to leave them "
                f"out{self.advice}. Received: {found}, the first:\n{listed}"
            )
        _LOGGER.warning("`%s`: leaving out %s, the first:\n%s", self.argument, found, listed)
