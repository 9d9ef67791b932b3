"""Standard streams of a program."""

import os
import sys


def open_closed_streams() -> None:
    """Open standard streams that are closed: input has nothing, and what is written is discarded.

    Otherwise the next file that is opened would take their place, and get what libraries print.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  of the process
