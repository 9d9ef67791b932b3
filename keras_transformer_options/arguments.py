"""Messages about arguments, and checks of arguments, shared by many functions.

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
    """A text about arguments, which a caller and the command line may show under names of their own.

    Args:
        template: a format string, in which `{x}` is the name of the argument x, `{x=}` its name and value, `{x=8}` its
            name and that value, and `{x!s}` or `{x!r}` the value alone; `{}` is the next one of `names`.
        *names: names of arguments.
        **values: values by name. Those that the template does not show follow it, as what was received.

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
        """Return the message with the names that callers have for arguments, the innermost caller first."""
        message = copy.copy(self)
        message._callers += callers
        return message

    def shown(self, options: Mapping[str, str] = types.MappingProxyType({})) -> str:
        """Return the text, with the options of a command line in place of the arguments that have one."""
        names, shown, parts = iter(self._names), set(), []
        for text, field, _, conversion in string.Formatter().parse(self._template):
            parts.append(text)
            if field is None:
                continue
            argument, equals, literal = field.partition("=")
            argument = argument or next(names)
            if conversion:
                shown.add(argument)
                parts.append(self._value(argument, conversion, options))
            elif literal:
                parts.append(self._assignment(argument, ast.literal_eval(literal), options))
            elif equals:
                shown.add(argument)
                parts.append(self._assignment(argument, self._values[argument], options))
            else:
                name = self._name(argument)
                parts.append(f"`{options.get(name, name)}`")
        received = [
            self._assignment(argument, value, options)
            for argument, value in self._values.items()
            if argument not in shown
        ]
        return "".join(parts) + (f". Received: {', '.join(received)}" if received else "")

    def _name(self, argument: str) -> str:
        """Return the name that callers have for an argument, or for an item of it such as texts[3]."""
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
        return " ".join([options[name], *(shlex.quote(str(each)) for each in values)])


class ArgumentError(ValueError):
    """An error of arguments, with a `Message`; errors of other classes are raised with a `Message` of their own.

    Args:
        template: the message, or its template.
        *names: see `Message`.
        **values: see `Message`.
    """

    def __init__(self, template: str | Message, /, *names: str, **values: Any) -> None:
        super().__init__(Message(template, *names, **values) if isinstance(template, str) else template)


@contextlib.contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Name in errors the arguments of this function in place of those of the functions that it calls.

    Args:
        **names: the argument of this function, by the name of the other's.
    """
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        error.args = tuple(each.renamed(names) if isinstance(each, Message) else each for each in error.args)
        raise


def is_integer(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer other than a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer or float other than a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check(fulfilled: bool, expectation: str, **values: Any) -> None:
    """Raise unless the first of the values is as it must be; `expectation` is part of the template of a `Message`."""
    if not fulfilled:
        raise ArgumentError("{} must " + expectation, next(iter(values)), **values)


def check_positive(**values: float) -> None:
    """Raise unless each value is more than 0."""
    for name, value in values.items():
        check(is_number(value) and value > 0, "be positive", **{name: value})


def check_positive_finite(**values: float) -> None:
    """Raise unless each value is more than 0 and finite."""
    for name, value in values.items():
        check(is_number(value) and 0 < value < math.inf, "be positive and finite", **{name: value})


def check_positive_integer(**values: Any) -> None:
    """Raise unless each value is an integer of at least 1."""
    for name, value in values.items():
        check(is_integer(value) and value > 0, "be a positive integer", **{name: value})


def check_seed(**values: Any) -> None:
    """Raise unless each value is an integer that Keras takes as a seed."""
    for name, value in values.items():
        check(is_integer(value) and 0 <= value < 2**32, "be an integer in [0, 2**32)", **{name: value})


def check_not_negative(**values: float) -> None:
    """Raise unless each value is at least 0."""
    for name, value in values.items():
        check(is_number(value) and value >= 0, "not be negative", **{name: value})


def check_at_least(least: float, **values: float) -> None:
    """Raise unless each value is at least `least`."""
    for name, value in values.items():
        check(is_number(value) and value >= least, f"be at least {least}", **{name: value})


def check_fraction(**values: float) -> None:
    """Raise unless each value is between 0 and 1, exclusive."""
    for name, value in values.items():
        check(is_number(value) and 0 < value < 1, "be between 0 and 1", **{name: value})


def check_dropout_rate(**values: float) -> None:
    """Raise unless each value is a rate of dropout, at least 0 and less than 1."""
    for name, value in values.items():
        check(is_number(value) and 0 <= value < 1, "be in [0, 1)", **{name: value})


def check_ids(vocabulary_size: int, **ids: Any) -> None:
    """Raise unless each id is an integer in [0, vocabulary_size)."""
    for name, id_ in ids.items():
        check(is_integer(id_) and 0 <= id_ < vocabulary_size, f"be in [0, {vocabulary_size})", **{name: id_})


def check_one_of(choices: Container[Any], **values: Any) -> None:
    """Raise unless each value is in `choices`."""
    for name, value in values.items():
        check(value in choices, "be one of {choices!s}", **{name: value}, choices=choices)
