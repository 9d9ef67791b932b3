"""Initializers that several weights share."""

from typing import Any

import keras


def another(initializer: Any) -> Any:
    """Return an initializer of the same distribution: one object of Keras draws the same values at every call."""
    return initializer.clone() if isinstance(initializer, keras.initializers.Initializer) else initializer
