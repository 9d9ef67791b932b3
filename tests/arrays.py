"""Read the arrays that tests compare with."""

import os
from typing import BinaryIO

import numpy as np


def load(file: str | os.PathLike[str] | BinaryIO) -> dict[str, np.ndarray]:
    """Return the arrays of an NPZ file by name, and close the file."""
    with np.load(file) as arrays:
        return dict(arrays)
