"""Initializers for several weights.

A Keras initializer object returns the same values at every call, so that each weight needs an object of its own.
"""

from typing import Any

import keras


def get(identifier: Any) -> Any:
    """Return the initializer of an identifier; names stay strings, from which each weight creates its own object."""
    return identifier if isinstance(identifier, str) else keras.initializers.get(identifier)


def another(initializer: Any) -> Any:
    """Return a copy of the initializer, for a different weight."""
    return initializer.clone() if isinstance(initializer, keras.initializers.Initializer) else initializer
