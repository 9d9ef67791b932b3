"""A progress bar for the reading of data, on standard error."""

import os
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

from keras_transformer import processes

_SILENT = 3.0  # seconds: small data needs no bar
_REFRESH, _REFRESH_IN_LOGS = 0.2, 30.0  # seconds
_WIDTH = 79


class ProgressBar:
    """A progress bar: the number of rows read, the percentage, the speed and the remaining time.

    Nothing is printed in the first seconds, so that small data is read silently. On a terminal one line is rewritten,
    otherwise a line is printed every half minute.

    Args:
        title: the text before the figures.
        paths: the files that will be read, whose sizes are the total.
        rows: the number of rows, if it is known; instead of `paths`.
    """

    def __init__(
        self, title: str, paths: Sequence[str | os.PathLike[str]] = (), rows: int | None = None
    ) -> None:
        self.title, self.total_rows, self.rows = title, rows, 0
        self._total_bytes = sum(os.path.getsize(path) for path in paths if os.path.exists(path))
        self._finished_bytes = self._file_bytes = 0
        self._file: BinaryIO | None = None
        self._begin = self._printed = time.monotonic()
        self._interval = _REFRESH if sys.stderr.isatty() else _REFRESH_IN_LOGS
        self._shown = False

    def opened(self, file: BinaryIO) -> None:
        """Follow the position in a file that has just been opened, until another is opened."""
        self._finished_bytes += self._file_bytes
        self._file, self._file_bytes = file, os.fstat(file.fileno()).st_size

    def add(self, rows: int) -> None:
        """Count rows that have been read, and show them."""
        self.rows += rows
        now = time.monotonic()
        is_shown = now - self._begin > _SILENT and processes.current().is_main
        if is_shown and now - self._printed > self._interval:
            self._printed, self._shown = now, True
            self._print(self._line(now - self._begin), "" if sys.stderr.isatty() else "\n")

    def finish(self) -> None:
        """Show the total, unless nothing has been shown."""
        if self._shown:
            seconds = time.monotonic() - self._begin
            self._print(f"{self.title}: {self.rows:,} rows in {_clock(seconds)}", "\n")
            self._shown = False

    def _line(self, seconds: float) -> str:
        fraction = self._fraction()
        fields = [f"{self.title}: {self.rows:,} rows", f"{self.rows / seconds:,.0f} rows/s"]
        if fraction:
            fields.insert(1, f"{fraction:.0%}")
            fields.append(f"{_clock(seconds / fraction - seconds)} left")
        return ", ".join(fields)

    def _fraction(self) -> float | None:
        if self.total_rows:
            return min(1.0, self.rows / self.total_rows)
        if not self._total_bytes or self._file is None:
            return None
        position = self._file_bytes if self._file.closed else self._file.tell()
        return min(1.0, (self._finished_bytes + position) / self._total_bytes)

    def _print(self, line: str, end: str) -> None:
        start = "\r" if sys.stderr.isatty() else ""
        sys.stderr.write(start + line.ljust(_WIDTH if start else 0) + end)
        sys.stderr.flush()


def _clock(seconds: float) -> str:
    """Write seconds as minutes:seconds, or hours:minutes:seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
