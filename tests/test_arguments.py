import re

import numpy as np
import pytest

from keras_transformer_options import arguments


@pytest.mark.parametrize(
    ("check", "accepted", "invalid", "expectation"),
    [
        (arguments.check_positive, [1, 0.5, np.int64(3)], [0, -0.5, float("nan")], "must be positive"),
        (
            arguments.check_positive_integer,
            [1, np.int32(3)],
            [0, 1.0, True, "1", None],
            "must be a positive integer",
        ),
        (arguments.check_not_negative, [0, 0.5], [-1, float("nan")], "must not be negative"),
        (arguments.check_fraction, [0.5], [0, 1, 1.5, float("nan")], "must be between 0 and 1"),
    ],
)
def test_errors_name_values_out_of_range(check, accepted, invalid, expectation):
    check(**{f"x{place}": value for place, value in enumerate(accepted)})
    for value in invalid:
        message = re.escape(f"`other` {expectation}. Received: other={value!r}")
        with pytest.raises(ValueError, match=f"^{message}$"):
            check(size=accepted[0], other=value)


def test_errors_name_minimum_and_choices():
    arguments.check_at_least(3, size=3)
    with pytest.raises(ValueError, match="^`size` must be at least 3. Received: size=2$"):
        arguments.check_at_least(3, size=2)
    arguments.check_one_of(("a", "b"), kind="b")
    with pytest.raises(ValueError, match=r"^`kind` must be one of \('a', 'b'\). Received: kind=\['a'\]$"):
        arguments.check_one_of(("a", "b"), kind=["a"])


@pytest.mark.parametrize(
    ("value", "integer", "number"),
    [
        (1, True, True),
        (np.int64(1), True, True),
        (True, False, False),
        (1.0, False, True),
        (np.float32(1), False, True),
        ("1", False, False),
        (None, False, False),
    ],
)
def test_booleans_are_neither_integers_nor_numbers(value, integer, number):
    assert (arguments.is_integer(value), arguments.is_number(value)) == (integer, number)
