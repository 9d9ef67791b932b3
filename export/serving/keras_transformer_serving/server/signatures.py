"""Signatures of a served model: its named tensors, and the conversion of rows of a request."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving.jobs import Engine, Job, Method, Steps, advance, run
from keras_transformer_serving.pipelines.errors import InvalidInputError, RowErrors
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


class Started(NamedTuple):
    """A row that has been prepared.

    Attributes:
        steps: its steps.
        jobs: what the engine computes next.
    """

    steps: Steps[Row]
    jobs: Sequence[Job]


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a served model, from rows to rows.

    Attributes:
        inputs: the inputs.
        outputs: the outputs; "error" among them if rows can have errors.
        steps: a function from the inputs of a row and its index in the request to the steps to its outputs, which raise
            an `InvalidInputError` for an invalid row.
        settings: settings of exports that requests cannot change, and how they are set.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: Callable[[Row, int], Steps[Row]]
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def rows(
        self,
        columns: Mapping[str, Sequence[Any]],
        places: Callable[[str, int], str],
        truncate: bool | None = None,
    ) -> list[Row]:
        """Return the rows of a request, with checked values and defaults.

        A value that must be a text and is none is an error of its row.

        Args:
            columns: the values of each input that is given, one for each row, or a single one for an input with a
                default.
            places: a function from the name of an input and an index to its place in the request, for errors.
            truncate: whether to cut texts that are too long; None for the setting of the export.
        """
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
        rows: list[Row] = [{} if truncate is None else {TRUNCATE: truncate} for _ in range(count)]
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

    def answer(self, row: Row, index: int) -> Steps[Row]:
        """Return the outputs of a row, which are empty for an invalid one.

        Raises:
            RequestError: if it is invalid, and the signature is without the output "error".
        """
        if ERROR in row:
            return self.error_row(row[ERROR])
        try:
            return (yield from self.steps(row, index))
        except InvalidInputError as error:
            if all(tensor.name != ERROR for tensor in self.outputs):
                raise RequestError(400, f"{error} in row {index}") from None
            return self.error_row(error.message)

    def start(self, rows: Sequence[Row], local: Mapping[str, Method]) -> list[Started | Row]:
        """Return the rows with what the engine computes first, or the outputs of those that are invalid or complete.

        Args:
            rows: the inputs of each row.
            local: the methods that are computed at once, those of the tokenizer.
        """
        started: list[Started | Row] = []
        for index, row in enumerate(rows):
            steps = self.answer(row, index)
            found = proceed(steps, None, local)
            started.append(found if isinstance(found, dict) else Started(steps, found))
        return started

    def compute(
        self, rows: Sequence[Row], local: Mapping[str, Method], engine: Engine, batch_size: int
    ) -> list[Row]:
        """Return the outputs of rows, computed in batches of similar lengths.

        Args:
            rows: the inputs of each row.
            local: the methods that are computed at once, those of the tokenizer.
            engine: what computes the others.
            batch_size: the maximum number of rows in a batch.
        """
        errors, steps = RowErrors(), {index: self.answer(row, index) for index, row in enumerate(rows)}
        return errors.merge(run(steps, local, engine, batch_size, errors))

    def error_row(self, message: str) -> Row:
        """Return the outputs of an invalid row: empty values and its error."""
        return {tensor.name: tensor.empty_value() for tensor in self.outputs} | {ERROR: message}

    def stack(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Return the outputs (B, …) of B rows, by name."""
        return {tensor.name: tensor.stack([row[tensor.name] for row in rows]) for tensor in self.outputs}


def proceed(steps: Steps[Row], results: Any, local: Mapping[str, Method]) -> Sequence[Job] | Row:
    """Return the next jobs of a row after the results of its last ones, None at first; or its outputs."""
    try:
        return advance(steps, results, local)
    except StopIteration as end:
        outputs: Row = end.value
        return outputs


def text_of(row: Row, name: str, argument: str | None = None) -> str:
    """Return a string input.

    Args:
        row: the inputs of a row.
        name: the name of the input.
        argument: its name in the error, by default `name`.
    """
    return decoded(row[name], argument or name)


def decoded(value: str | bytes, argument: str) -> str:
    """Return a value of a string input, `argument`, as a string."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeError:
        raise InvalidInputError(
            argument, f"`{argument}` must be UTF-8. Received: other bytes", "encoding"
        ) from None
    return text


def truncate_of(document: Mapping[str, Any]) -> bool | None:
    """Return whether a request says that texts are cut that are too long, None if it does not."""
    truncate = document.get(TRUNCATE)
    if TRUNCATE in document and not isinstance(truncate, bool):
        raise RequestError(400, f"`{TRUNCATE}` must be true or false. Received: {TRUNCATE}={shown(truncate)}")
    return truncate


def bucket(length: int) -> int:
    """Return the least power of two that is not less than a length."""
    return 1 << max(length - 1, 0).bit_length()
