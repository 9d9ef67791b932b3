"""Tables of invalid calls: a function, invalid arguments, and the message of the error."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True)
class InvalidCall:
    """A call with invalid arguments.

    `message` is the beginning of the error; "…" stands for any text. If it has no "Received", the error must also
    contain the first named argument, as in "`size` must be positive. Received: size=0".
    """

    call: Callable[..., Any]
    arguments: dict[str, Any]
    message: str
    error: type[Exception] = ValueError

    def check(self):
        """Call with the arguments, and check the error."""
        with pytest.raises(self.error, match=self.pattern()):
            self.call(**self.arguments)

    def pattern(self):
        """Return the message as a regular expression."""
        message, named = self.message, re.match(r"`(\w+)`", self.message)
        if named and named[1] in self.arguments and "Received" not in message:
            message += f"… Received: {named[1]}={self.arguments[named[1]]!r}"
        text = ".*".join(re.escape(part.strip()) for part in message.split("…"))
        return rf"(?s)^({IN_A_CALL})?{text}"


IN_A_CALL = r"Exception encountered when calling \w+\.call\(\)\.\s+\x1b\[1m"  # the prefix that Keras adds


class InvalidCalls(list):
    """A table of invalid calls: call it with a function, its other arguments and rows, as `must` creates them."""

    def __call__(self, call, arguments, *rows, type_errors=(), name=None, error=ValueError):
        """Add a case for each row: the invalid arguments, and the message; `type_errors` are rows of a TypeError."""
        name = name or call.__name__
        for row, error_ in [*((row, error) for row in rows), *((row, TypeError) for row in type_errors)]:
            for changed, message in row if isinstance(row, list) else [row]:
                case = InvalidCall(call, {**arguments, **changed}, message, error_)
                label = [name, *(f"{key}={shown(value)}" for key, value in changed.items())]
                self.append(pytest.param(case, id="-".join(label)))


def must(expectation, **values):
    """Return a row for each argument: "`name` must be … Received: name=value"."""
    return [({name: value}, f"`{name}` must {expectation}") for name, value in values.items()]


POSITIVE = "be a positive integer"
RATE = "be in [0, 1)"


def shown(value):
    """Return a short form of a value for a test id."""
    if hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    text = re.sub(" at 0x[0-9a-f]+", "", getattr(value, "__name__", None) or repr(value))
    return text if len(text) < 40 else type(value).__name__
