"""Standard streams of a program."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator


def open_closed_streams() -> None:
    """Open standard streams that are closed: input has nothing, and what is written is discarded.

    Otherwise the next file that is opened would take their place, and get what libraries print.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  of the process


@contextlib.contextmanager
def without_lines(pattern: re.Pattern[bytes]) -> Iterator[None]:
    """Hide lines of standard error that native libraries write, which Python's `logging` does not see.

    The other lines are written when the `with` statement ends.

    Args:
        pattern: what begins a hidden line.
    """
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            file.seek(0)
            for line in file:
                if not pattern.match(line):
                    os.write(2, line)
