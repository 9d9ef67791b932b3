"""The fields of requests, declared as tables, from which checks, defaults and the JSON Schema follow."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_transformer_serving.server.signatures import RequestError
from keras_transformer_serving.tasks import shown

Json = dict[str, Any]
UNSUPPORTED = "unsupported_parameter"  # OpenAI's code of an option that has one value only


@dataclasses.dataclass(frozen=True)
class Kind:
    """The values that a field can have.

    Attributes:
        expected: what they are, for errors.
        schema: their JSON Schema.
        accepts: a function that returns whether a JSON value is one of them.
        convert: a function from an accepted value to the one that `read` returns.
        code: OpenAI's name of the error of other values.
        wording: a function from the name of a field and another value to a protocol's own words for the error.
    """

    expected: str
    schema: Json
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value
    code: str | None = None
    wording: Callable[[str, Any], str] | None = None


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a request.

    Attributes:
        name: its name.
        kind: its values.
        default: the JSON value of a request without it, or with null.
        required: whether a request must have it.
    """

    name: str
    kind: Kind
    default: Any = None
    required: bool = False

    def read(self, value: Any, place: str = "") -> Any:
        """Return the value of a request, or the default, after checking it; `place` is that of its name, for errors."""
        value = self.default if value is None else value
        if value is None and not self.required:
            return None
        if not self.kind.accepts(value):
            if self.kind.wording is not None:
                raise RequestError(400, self.kind.wording(self.name, value), param=self.name)
            raise wrong(place + self.name, self.kind.expected, value, self.kind.code)
        return self.kind.convert(value)


def wrong(name: str, expected: str, received: Any, code: str | None = None) -> RequestError:
    """Return the error of a field with a wrong value."""
    message = f"`{name}` must be {expected}. Received: {shown(received)}"
    return RequestError(400, message, param=name, code=code)


def check(given: Iterable[str], names: Sequence[str], parent: str = "") -> None:
    """Raise a RequestError for a field that is unknown.

    Args:
        given: the names of the fields of a request.
        names: those that it can have.
        parent: the field that has the fields; "" for the request itself.
    """
    for name in given:
        if name not in names:
            owner = f"`{parent}`" if parent else "a request"
            raise RequestError(
                400,
                f"The fields of {owner} must be of {', '.join(names)}. Received: {shown(name)}",
                param=name if len(name) < 80 else None,
                code="unknown_parameter",
            )


def read(document: Json, table: Sequence[Field], parent: str = "") -> Json:
    """Return the value of each field of a table.

    Args:
        document: the request.
        table: the fields.
        parent: the field that has the document; "" for the request itself.
    """
    check(document, [field.name for field in table], parent)
    place = f"{parent}." if parent else ""
    return {field.name: field.read(document.get(field.name), place) for field in table}


def schema(tables: Iterable[Iterable[Field]]) -> Json:
    """Return the JSON Schema of requests to several models, each with a table; a field has the values of any."""
    found: dict[str, list[Field]] = {}
    for field in itertools.chain(*tables):
        found.setdefault(field.name, []).append(field)
    properties = {name: _schema(fields) for name, fields in found.items()}
    required = [name for name, fields in found.items() if fields[0].required]
    return object_of(properties, required, others=False)


def object_of(properties: Json, required: Iterable[str] = (), others: bool = True) -> Json:
    """Return the JSON Schema of objects, which may have other properties."""
    schema: Json = {"type": "object", "properties": properties}
    if names := [*required]:
        schema["required"] = names
    return schema if others else {**schema, "additionalProperties": False}


def list_of(items: Json) -> Json:
    """Return the JSON Schema of lists."""
    return {"type": "array", "items": items}


def exact_object(properties: Json) -> Json:
    """Return the JSON Schema of objects that have all these properties, and no others."""
    return object_of(properties, properties, others=False)


def _schema(fields: Sequence[Field]) -> Json:
    """Return the schema of a field that several tables have."""
    schemas: list[Json] = []
    for field in fields:
        if field.kind.schema not in schemas:
            schemas.append(field.kind.schema)
    if len(schemas) > 1 and all(schema.keys() == {"enum"} for schema in schemas):
        schemas = [{"enum": [*dict.fromkeys(value for schema in schemas for value in schema["enum"])]}]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return schema if fields[0].default is None else {**schema, "default": fields[0].default}


TEXT: Json = {"type": "string"}
NULL: Json = {"type": "null"}
NUMBER: Json = {"type": "number"}
COUNT: Json = {"type": "integer", "minimum": 0}
ANYTHING = Kind("anything", {}, lambda value: True)
BOOLEAN = Kind("true or false", {"type": "boolean"}, lambda value: isinstance(value, bool))
LIST = Kind("a list", {"type": "array"}, lambda value: isinstance(value, list))
OBJECT = Kind("an object", {"type": "object"}, lambda value: isinstance(value, dict))
STRING = Kind("a string", {"type": "string"}, lambda value: isinstance(value, str))


def number(low: float, high: float) -> Kind:
    """Return the numbers of a range."""
    limits = {"type": "number", "minimum": low, "maximum": high}
    return Kind(f"in [{low}, {high}]", limits, lambda value: _is_number(value) and low <= value <= high)


def integer(low: int, high: int, reason: str = "") -> Kind:
    """Return the integers of a range, and the reason for it."""
    limits = {"type": "integer", "minimum": low, "maximum": high}
    return Kind(
        f"an integer in [{low}, {high}]{_because(reason)}",
        limits,
        lambda value: type(value) is int and low <= value <= high,
    )


def clamped(low: int, high: int) -> Kind:
    """Return the integers of 32 bits from `low`, of which larger ones than `high` are read as `high`."""
    return dataclasses.replace(integer(low, 2**31 - 1), convert=lambda value: min(value, high))


def one_of(*values: Any, reason: str = "", any_case: bool = False) -> Kind:
    """Return some values, and the reason why there are no others; those of a number are equal ints and floats."""

    def same(value: Any) -> list[Any]:
        given = value.lower() if any_case and isinstance(value, str) else value
        return [each for each in values if given == each and _is_number(given) == _is_number(each)]

    texts = (each if isinstance(each, str) and each else json.dumps(each) for each in values)
    return Kind(
        f"{' or '.join(texts)}{_because(reason)}",
        {"enum": [*values]},
        lambda value: bool(same(value)),
        lambda value: same(value)[0],
        UNSUPPORTED if len(values) == 1 else None,
    )


def one_or_list(kind: Kind, expected: str, least: int = 1, most: int | None = None) -> Kind:
    """Return the values of a kind, and lists of `least` to `most` of them; all are read as lists."""
    items: Json = {"type": "array", "items": kind.schema, "minItems": least}
    if most is not None:
        items["maxItems"] = most

    def accepts(value: Any) -> bool:
        is_list = isinstance(value, list) and least <= len(value) <= (most or len(value))
        return kind.accepts(value) or (is_list and all(map(kind.accepts, value)))

    return Kind(
        expected,
        {"anyOf": [kind.schema, items]},
        accepts,
        lambda value: [value] if kind.accepts(value) else value,
    )


def record(name: str, table: Sequence[Field], expected: str = "an object") -> Kind:
    """Return objects with the fields of a table; `name` is that of the field with the objects, for errors."""
    return Kind(
        expected,
        schema([table]),
        lambda value: isinstance(value, dict),
        lambda value: read(value, table, name),
    )


STRINGS = one_or_list(STRING, "a string or a list of strings")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _because(reason: str) -> str:
    return f", {reason}" if reason else ""
