"""Lines of standard output and error."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_CHUNK = 1000


def say(line: str, end: str = "\n") -> None:
    """Print a line."""
    sys.stdout.write(line + end)
    sys.stdout.flush()


def one_line(text: str) -> str:
    """Return a text as one line."""
    return " ".join(text.splitlines())


def in_chunks(answer: Callable[..., Sequence[Any]], rows: Sequence[Any]) -> Iterator[Any]:
    """Answer rows in chunks, with progress on standard error if there are several chunks.

    Args:
        answer: a function from a list of rows to a list of answers.
        rows: the rows.

    Yields:
        The answer of each row.

    Raises:
        ValueError: as `answer` does; for a later chunk, the message says which row its indices count from.
    """
    began = time.monotonic()
    for start in range(0, len(rows), _CHUNK):
        try:
            yield from answer(rows[start : start + _CHUNK])
        except ValueError as error:
            if not start:
                raise
            raise ValueError(f"{error}, counted from line {start + 1}") from error
        done = min(start + _CHUNK, len(rows))
        if len(rows) > _CHUNK:
            rate = done / max(time.monotonic() - began, 1e-9)
            sys.stderr.write(f"{done:,} of {len(rows):,} lines, {rate:,.0f} per second\n")
