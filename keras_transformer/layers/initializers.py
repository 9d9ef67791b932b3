"""Initializers for several weights.

A Keras initializer object returns the same values at every call, so each weight needs a separate object.
"""

from typing import Any

import keras


def get(identifier: Any) -> Any:
    """Retrieve an initializer; a name stays a string, from which each weight creates a separate object."""
    return identifier if isinstance(identifier, str) else keras.initializers.get(identifier)


def clone(initializer: Any) -> Any:
    """Return a copy of the initializer, for another weight."""
    return initializer.clone() if isinstance(initializer, keras.initializers.Initializer) else initializer
