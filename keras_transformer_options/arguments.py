"""Checks of arguments, shared by many functions.

Each takes keyword arguments and raises a `ValueError` for the first invalid one:

    check_positive(num_heads=num_heads, head_dim=head_dim)
"""

import contextlib
import math
import numbers
import re
from collections.abc import Container, Iterator
from typing import Any


def is_integer(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer other than a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer or float other than a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(**values: float) -> None:
    """Raise unless each value is more than 0."""
    for name, value in values.items():
        _require(is_number(value) and value > 0, name, value, "be positive")


def check_positive_finite(**values: float) -> None:
    """Raise unless each value is more than 0 and finite."""
    for name, value in values.items():
        _require(is_number(value) and 0 < value < math.inf, name, value, "be positive and finite")


def check_positive_integer(**values: Any) -> None:
    """Raise unless each value is an integer of at least 1."""
    for name, value in values.items():
        _require(is_integer(value) and value > 0, name, value, "be a positive integer")


def check_seed(**values: Any) -> None:
    """Raise unless each value is an integer that Keras takes as a seed."""
    for name, value in values.items():
        _require(is_integer(value) and 0 <= value < 2**32, name, value, "be an integer in [0, 2**32)")


def check_not_negative(**values: float) -> None:
    """Raise unless each value is at least 0."""
    for name, value in values.items():
        _require(is_number(value) and value >= 0, name, value, "not be negative")


def check_at_least(least: float, **values: float) -> None:
    """Raise unless each value is at least `least`."""
    for name, value in values.items():
        _require(is_number(value) and value >= least, name, value, f"be at least {least}")


def check_fraction(**values: float) -> None:
    """Raise unless each value is between 0 and 1, exclusive."""
    for name, value in values.items():
        _require(is_number(value) and 0 < value < 1, name, value, "be between 0 and 1")


def check_dropout_rate(**values: float) -> None:
    """Raise unless each value is a rate of dropout, at least 0 and less than 1."""
    for name, value in values.items():
        _require(is_number(value) and 0 <= value < 1, name, value, "be in [0, 1)")


def check_ids(vocabulary_size: int, **ids: Any) -> None:
    """Raise unless each id is an integer in [0, vocabulary_size)."""
    for name, id_ in ids.items():
        _require(is_integer(id_) and 0 <= id_ < vocabulary_size, name, id_, f"be in [0, {vocabulary_size})")


def check_one_of(choices: Container[Any], **values: Any) -> None:
    """Raise unless each value is in `choices`."""
    for name, value in values.items():
        _require(value in choices, name, value, f"be one of {choices}")


@contextlib.contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Name in errors the arguments of this function in place of those of the functions that it calls.

    Args:
        **names: the argument of this function, by the name of the other's.
    """
    pattern = rf"(?<=`)({'|'.join(names)})(?=[`=\[])|\b({'|'.join(names)})(?==|\[\d)"
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        error.args = tuple(
            re.sub(pattern, lambda found: names[found[0]], each) if isinstance(each, str) else each
            for each in error.args
        )
        raise


def _require(condition: bool, name: str, value: Any, expectation: str) -> None:
    if not condition:
        raise ValueError(f"`{name}` must {expectation}. Received: {name}={value!r}")
