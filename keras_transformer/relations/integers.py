"""Integers that a relation is made of."""

from typing import Any

from keras_transformer.arguments import is_integer

# Positions in tensors have 32 bits; so must what is added to them.
_LARGEST = 2**30


def check_integer(name: str, value: Any, lowest: int, optional: bool = False) -> Any:
    """The Python integer that a value is, at least `lowest`; None passes where `optional`."""
    if optional and value is None:
        return None
    if not is_integer(value) or not lowest <= value <= _LARGEST:
        alternative = ", or None" if optional else ""
        raise ValueError(
            f"`{name}` must be an integer from {lowest} to {_LARGEST}{alternative}. Received: {name}={value!r}"
        )
    return int(value)
