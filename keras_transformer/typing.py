"""Types of arguments and results."""

from typing import TypeAlias

import keras

Tensor: TypeAlias = keras.KerasTensor
"""A tensor of the backend, symbolic in a functional model; arguments may be NumPy arrays, too."""
