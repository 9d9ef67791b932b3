"""Messages about arguments, and checks of arguments.

A check takes keyword arguments and raises an `ArgumentError` for the first invalid one:

    check_positive(num_heads=num_heads, head_dim=head_dim)
"""

import ast
import contextlib
import copy
import math
import numbers
import shlex
import string
import types
from collections.abc import Container, Iterator, Mapping
from typing import Any, Self


class Message:
    """A text about arguments, in which callers and the command line can rename the arguments.

    Args:
        template: a format string, in which `{x}` is the name of the argument x, `{x=}` its name and value, `{x=8}` its
            name and the value 8, and `{x!s}` or `{x!r}` only its value; `{}` is the next of `names`.
        *names: names of arguments.
        **values: values by name. Values that are not in the template are appended as "Received: …".

    Example:
        >>> message = Message("{num_heads} must divide {model_dim}", num_heads=3, model_dim=16)
        >>> str(message)
        '`num_heads` must divide `model_dim`. Received: num_heads=3, model_dim=16'
        >>> message.shown({"num_heads": "--heads", "model_dim": "--model-dim"})
        '`--heads` must divide `--model-dim`. Received: --heads 3, --model-dim 16'
    """

    def __init__(self, template: str, /, *names: str, **values: Any) -> None:
        self._template, self._names, self._values = template, names, values
        self._callers: tuple[Mapping[str, str], ...] = ()

    def __str__(self) -> str:
        return self.shown()

    def __repr__(self) -> str:
        return repr(str(self))

    def renamed(self, *callers: Mapping[str, str]) -> Self:
        """Return the message with the names of arguments in callers, the innermost caller first."""
        message = copy.copy(self)
        message._callers += callers
        return message

    def shown(self, options: Mapping[str, str] = types.MappingProxyType({})) -> str:
        """Return the text, with options of the command line in place of arguments."""
        names, shown, texts = iter(self._names), set(), []
        for text, field, _, conversion in string.Formatter().parse(self._template):
            texts.append(text)
            if field is None:
                continue
            argument, equals, literal = field.partition("=")
            argument = argument or next(names)
            if conversion:
                shown.add(argument)
                texts.append(self._value(argument, conversion, options))
            elif literal:
                texts.append(self._assignment(argument, ast.literal_eval(literal), options))
            elif equals:
                shown.add(argument)
                texts.append(self._assignment(argument, self._values[argument], options))
            else:
                name = self._name(argument)
                texts.append(f"`{options.get(name, name)}`")
        received = [
            self._assignment(argument, value, options)
            for argument, value in self._values.items()
            if argument not in shown
        ]
        return "".join(texts) + (f". Received: {', '.join(received)}" if received else "")

    def _name(self, argument: str) -> str:
        """Return the outermost caller's name of an argument, or of an item such as texts[3]."""
        name, bracket, index = argument.partition("[")
        for names in self._callers:
            name = names.get(name, name)
        return name + bracket + index

    def _value(self, argument: str, conversion: str, options: Mapping[str, str]) -> str:
        value = self._values[argument]
        if isinstance(value, Message):
            return value.renamed(*self._callers).shown(options)
        return repr(value) if conversion == "r" else str(value)

    def _assignment(self, argument: str, value: Any, options: Mapping[str, str]) -> str:
        name = self._name(argument)
        if name not in options:
            return f"{name}={value!r}"
        if value is None:
            return f"no {options[name]}"
        if isinstance(value, bool):
            return options[name] if value else options[name].replace("--", "--no-", 1)
        values = value if isinstance(value, list | tuple) else [value]
        return " ".join([options[name], *(shlex.quote(str(item)) for item in values)])


class ArgumentError(ValueError):
    """A ValueError about arguments, with a `Message`."""

    def __init__(self, template: str | Message, /, *names: str, **values: Any) -> None:
        super().__init__(Message(template, *names, **values) if isinstance(template, str) else template)


@contextlib.contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Rename arguments in the errors of called functions to the arguments of the caller.

    Args:
        **names: the caller's argument, by the name of the called function's argument.
    """
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        error.args = tuple(
            value.renamed(names) if isinstance(value, Message) else value for value in error.args
        )
        raise


def is_integer(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer other than a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer or float other than a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check(fulfilled: bool, expectation: str, **values: Any) -> None:
    """Raise an `ArgumentError`, "`name` must `expectation`" for the first of the values, unless `fulfilled`."""
    if not fulfilled:
        raise ArgumentError("{} must " + expectation, next(iter(values)), **values)


def check_positive(**values: float) -> None:
    """Raise an error unless each value is greater than 0."""
    for name, value in values.items():
        check(is_number(value) and value > 0, "be positive", **{name: value})


def check_positive_finite(**values: float) -> None:
    """Raise an error unless each value is finite and greater than 0."""
    for name, value in values.items():
        check(is_number(value) and 0 < value < math.inf, "be positive and finite", **{name: value})


def check_positive_integer(**values: Any) -> None:
    """Raise an error unless each value is an integer of at least 1."""
    for name, value in values.items():
        check(is_integer(value) and value > 0, "be a positive integer", **{name: value})


def check_seed(**values: Any) -> None:
    """Raise an error unless each value is an integer that Keras accepts as a seed."""
    for name, value in values.items():
        check(is_integer(value) and 0 <= value < 2**32, "be an integer in [0, 2**32)", **{name: value})


def check_not_negative(**values: float) -> None:
    """Raise an error unless each value is at least 0."""
    for name, value in values.items():
        check(is_number(value) and value >= 0, "not be negative", **{name: value})


def check_at_least(minimum: float, **values: float) -> None:
    """Raise an error unless each value is at least `minimum`."""
    for name, value in values.items():
        check(is_number(value) and value >= minimum, f"be at least {minimum}", **{name: value})


def check_fraction(**values: float) -> None:
    """Raise an error unless each value is between 0 and 1, exclusive."""
    for name, value in values.items():
        check(is_number(value) and 0 < value < 1, "be between 0 and 1", **{name: value})


def check_dropout_rate(**values: float) -> None:
    """Raise an error unless each value is a dropout rate, at least 0 and less than 1."""
    for name, value in values.items():
        check(is_number(value) and 0 <= value < 1, "be in [0, 1)", **{name: value})


def check_ids(vocabulary_size: int, **ids: Any) -> None:
    """Raise an error unless each id is an integer in [0, vocabulary_size)."""
    for name, id_ in ids.items():
        check(is_integer(id_) and 0 <= id_ < vocabulary_size, f"be in [0, {vocabulary_size})", **{name: id_})


def check_one_of(choices: Container[Any], **values: Any) -> None:
    """Raise an error unless each value is in `choices`."""
    for name, value in values.items():
        check(value in choices, "be one of {choices!s}", **{name: value}, choices=choices)
