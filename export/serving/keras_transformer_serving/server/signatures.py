"""Signatures of a served model: its named tensors, and the conversion of rows of a request."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.tasks import ERROR, Row, Tensor, shown

TRUNCATE = "truncate"


class RequestError(Exception):
    """A request that is answered with an HTTP error.

    Args:
        status: the HTTP status code.
        message: the field, the expectation and the received value.
        retry_after: for a request that may succeed later, the number of seconds until then.
        param: the field of the request that is wrong, for protocols whose errors name it.
        code: a name of the error, likewise.
    """

    def __init__(
        self,
        status: int,
        message: str,
        retry_after: int | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.param, self.code = param, code


@dataclasses.dataclass(frozen=True)
class Job:
    """One row to compute. Jobs with the same `run` and `bucket` can be in one batch.

    Attributes:
        run: a function from the values of a batch to the results.
        bucket: of rows of similar length.
        values: those of this row.
        finish: a function from its result to its outputs, by name.
    """

    run: Callable[[Sequence[Any]], Sequence[Any]]
    bucket: Hashable
    values: Any
    finish: Callable[[Any], Row]


@dataclasses.dataclass(frozen=True)
class SplitRow:
    """One row to compute as several jobs, such as the parts of a long text.

    Attributes:
        jobs: the jobs.
        join: a function from the outputs of each job to those of the row.
    """

    jobs: Sequence[Job]
    join: Callable[[Sequence[Row]], Row]


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a served model, from rows to rows.

    Attributes:
        inputs: the inputs.
        outputs: the outputs; "error" among them if rows can have errors.
        prepare: a function from the inputs of a row and its index in the request to a `Job` or `SplitRow`. It raises a
            InvalidInputError for an invalid row.
        settings: settings of exports that requests cannot change, and how they are set.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    prepare: Callable[[Row, int], Job | SplitRow]
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def rows(
        self,
        columns: Mapping[str, Sequence[Any]],
        places: Callable[[str, int], str],
        truncate: Any = False,
    ) -> list[Row]:
        """Return the rows of a request, with checked values and defaults.

        A value that must be a text and is none is an error of its row.

        Args:
            columns: the values of each input that is given, one for each row, or a single one for an input with a
                default.
            places: a function from the name of an input and an index to its place in the request, for errors.
            truncate: whether to cut texts that are too long, as the request says.

        Raises:
            RequestError: if an input is unknown, a setting of the export, missing or has the wrong type, the numbers of
                values differ, or `truncate` is not a boolean, or the signature has no texts.
        """
        check_truncate(truncate)
        inputs = {tensor.name: tensor for tensor in self.inputs}
        if truncate and all(tensor.dtype != "string" for tensor in self.inputs):
            raise RequestError(
                400, f"`{TRUNCATE}` needs a signature of texts. Received: the inputs {', '.join(inputs)}"
            )
        wrong = [name for name in columns if name not in inputs]
        for name in wrong:
            if name in self.settings:
                raise RequestError(
                    400,
                    f"`{name}` must be set when the model is exported: pipeline.with_settings({self.settings[name]}). "
                    f"Received: {name} in a request",
                )
        missing = [name for name, tensor in inputs.items() if tensor.required and name not in columns]
        if wrong or missing:
            optional = [tensor.name for tensor in self.inputs if not tensor.required]
            also = f", optionally {', '.join(optional)}" if optional else ""
            required = ", ".join(tensor.name for tensor in self.inputs if tensor.required)
            raise RequestError(
                400,
                f"The inputs must be {required}{also}. Received: {', '.join(map(shown, columns)) or 'none'}",
            )
        count = max((len(columns[name]) for name in columns if inputs[name].required), default=0)
        rows: list[Row] = [{TRUNCATE: True} if truncate else {} for _ in range(count)]
        for name, values in columns.items():
            if len(values) not in ((count,) if inputs[name].required else (1, count)):
                raise RequestError(
                    400,
                    f"`{name}` must have a value for each of {count} rows. Received: {len(values)} values",
                )
            for index, row in enumerate(rows):
                place = index if len(values) == count else 0
                try:
                    row[name] = inputs[name].convert(values[place], places(name, place))
                except ValueError as error:
                    if inputs[name].dtype != "string":
                        raise RequestError(400, str(error)) from None
                    row.setdefault(ERROR, str(error))
        for tensor in self.inputs:
            if tensor.default is not None:
                for row in rows:
                    row.setdefault(tensor.name, tensor.default)
        return rows

    def jobs(self, rows: Sequence[Row]) -> list[Job | SplitRow | Row]:
        """Return a job for each row, several for a row that is split, or the outputs of an invalid one.

        Raises:
            RequestError: if a row is invalid, and the signature is without the output "error".
        """
        jobs: list[Job | SplitRow | Row] = []
        for index, row in enumerate(rows):
            if ERROR in row:
                jobs.append(self.error_row(row[ERROR]))
                continue
            try:
                jobs.append(self.prepare(row, index))
            except InvalidInputError as error:
                if all(tensor.name != ERROR for tensor in self.outputs):
                    raise RequestError(400, f"{error} in row {index}") from None
                jobs.append(self.error_row(str(error)))
        return jobs

    def error_row(self, message: str) -> Row:
        """Return the outputs of an invalid row: empty values and its error."""
        return {tensor.name: tensor.empty_value() for tensor in self.outputs} | {ERROR: message}

    def stack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Return the outputs (B, …) of B rows, by name."""
        return {tensor.name: tensor.stack([row[tensor.name] for row in rows]) for tensor in self.outputs}


def flattened(
    rows: Sequence[Job | SplitRow | Row],
) -> tuple[list[Job | Row], Callable[[Sequence[Row]], list[Row]]]:
    """Return the jobs of all rows, and a function from the outputs of each job to those of each row."""
    jobs = [job for row in rows for job in (row.jobs if isinstance(row, SplitRow) else [row])]

    def joined(outputs: Sequence[Row]) -> list[Row]:
        remaining = iter(outputs)
        return [
            row.join([*itertools.islice(remaining, len(row.jobs))])
            if isinstance(row, SplitRow)
            else next(remaining)
            for row in rows
        ]

    return jobs, joined


def text_of(row: Row, name: str, argument: str | None = None) -> str:
    """Return a string input.

    Args:
        row: the inputs of a row.
        name: the name of the input.
        argument: its name in the error, by default `name`.

    Raises:
        InvalidInputError: if it is not valid UTF-8.
    """
    value = row[name]
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError:
        argument = argument or name
        raise InvalidInputError(argument, f"`{argument}` must be UTF-8. Received: other bytes") from None
    return str(text)


def check_truncate(truncate: Any) -> None:
    """Raise a RequestError unless the request's `truncate` is a boolean."""
    if not isinstance(truncate, bool):
        raise RequestError(400, f"`{TRUNCATE}` must be true or false. Received: {TRUNCATE}={shown(truncate)}")


def bucket(length: int) -> int:
    """Return the least power of two that is not less than a length."""
    return 1 << max(length - 1, 0).bit_length()


def json_values(array: np.ndarray) -> Any:
    """Return an array as nested lists of JSON values; a number that is not finite is None."""
    values = array.tolist()
    return values if array.dtype.kind != "f" or np.isfinite(array).all() else _finite(values)


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return values if math.isfinite(values) else None
