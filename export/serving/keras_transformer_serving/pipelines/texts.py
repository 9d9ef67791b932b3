"""The base class of exported pipelines that run their model once on texts: special ids, windows and batches."""

import abc
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines.errors import (
    Errors,
    RefusedError,
    RowErrors,
    check_string,
    check_truncate,
)
from keras_transformer_serving.sessions import Sessions
from keras_transformer_serving.text import Tokenizer

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Windows:
    """Overlapping windows of a text's token ids that fit the model's maximum length.

    Attributes:
        ids: the ids of each window.
        starts: the offset of each window in the text's ids.
        before: the ids of the first text of a pair, which each window repeats; None for a single text.
    """

    ids: list[list[int]]
    starts: list[int]
    before: list[int] | None


class TextPipeline(Model, abc.ABC):
    """Base class of exported pipelines that run their model once on texts.

    A task defines `preprocess`, `postprocess` and `outputs`; `columns`, `row` and `text` have defaults.
    Its arguments and errors are those of the pipeline of its name in `keras_transformer.pipelines`.

    Args:
        sessions: ONNX Runtime's sessions of the graphs.
        config: the export's settings.
        tokenizer: the export's tokenizer.
    """

    def __init__(self, sessions: Sessions, config: dict[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__(sessions, config)
        self.tokenizer = tokenizer

    @abc.abstractmethod
    def preprocess(self, *texts: str, truncate: bool = False) -> tuple[Windows, Any]:
        """Convert a text or pair to windows of ids, and values that `postprocess` needs.

        Args:
            *texts: the text or the two texts.
            truncate: whether to cut a text that is too long; it has one window then.

        Raises:
            RefusedError: if a text is refused.
        """

    @abc.abstractmethod
    def postprocess(self, outputs: Arrays, windows: Windows, state: Any) -> Any:
        """Convert the model's outputs for the windows of a text to its answer.

        Args:
            outputs: arrays (W, …), by name.
            windows: the W windows.
            state: the other values of `preprocess`.
        """

    def _answers(
        self,
        batch_size: int,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
        **texts: str | Iterable[str],
    ) -> Any:
        """Return the answers for texts or pairs; of a single string, only its own.

        Args:
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of its answer.
            truncate: whether to cut texts that are too long.
            **texts: one or two lists of texts or strings, by argument.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if `batch_size` is not positive, a text is refused, or lists have different lengths.
        """
        check_batch_size(batch_size)
        check_truncate(truncate)
        found_errors = RowErrors(errors)
        columns = {name: [given] if isinstance(given, str) else list(given) for name, given in texts.items()}
        for name, column in columns.items():
            for row, text in enumerate(column):
                with found_errors.of(row):
                    check_string(name, row, text)
        counts = [str(len(column)) for column in columns.values()]
        if len(set(counts)) > 1:
            names = " and ".join(map("`{}`".format, columns))
            raise ValueError(f"{names} must be equally many. Received: {' and '.join(counts)} texts")
        rows = list(zip(*columns.values(), strict=True))
        # Long texts first, so that too long ones are found at once.
        order = sorted(
            found_errors.accepted(len(rows)), key=lambda row: -sum(len(text.encode()) for text in rows[row])
        )
        answers: dict[int, Any] = {}
        for begin in range(0, len(order), batch_size):
            batch: dict[int, tuple[Windows, Any]] = {}
            for index in sorted(order[begin : begin + batch_size]):
                with found_errors.of(index):
                    batch[index] = self.preprocess(*rows[index], truncate=truncate)
            if not batch:
                continue
            outputs = self.run_windows([windows for windows, _ in batch.values()], batch_size)
            for found, (index, (windows, state)) in zip(outputs, batch.items(), strict=True):
                answers[index] = self.postprocess(found, windows, state)
        merged = found_errors.merge(answers)
        return merged[0] if all(isinstance(given, str) for given in texts.values()) else merged

    def run_windows(self, batch: Sequence[Windows], batch_size: int) -> list[Arrays]:
        """Return the model's outputs for the windows of each text.

        Args:
            batch: the windows of each text, of `preprocess`.
            batch_size: the maximum number of rows that the model runs on at once.

        Returns:
            For each text arrays (W, …), by name.
        """
        rows = [self._with_special_ids(windows.before, ids) for windows in batch for ids in windows.ids]
        arrays = {"input_ids": padded([ids for ids, _ in rows], self.tokenizer.padding_value)}
        if "token_type_ids" in self.inputs:
            arrays["token_type_ids"] = padded([[segments] for _, segments in rows], 0)
        if not self.config["symmetric"]:
            arrays = {name: values[:, 0] for name, values in arrays.items()}
        parts = [
            self.run(**{name: values[begin : begin + batch_size] for name, values in arrays.items()})
            for begin in range(0, len(rows), batch_size)
        ]
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        ends = np.cumsum([len(windows.ids) for windows in batch])
        return [
            {name: values[end - len(windows.ids) : end] for name, values in outputs.items()}
            for windows, end in zip(batch, ends, strict=True)
        ]

    def _windows(self, ids: list[int], name: str, truncate: bool = False, **first: list[int]) -> Windows:
        """Split ids into windows that fit the model and overlap by half, or cut them to one.

        Args:
            ids: the ids of the text.
            name: the argument that the text is given as.
            truncate: whether to keep the first ids that fit.
            **first: of pairs, the ids of the first text, which each window repeats, by the name of its argument.

        Raises:
            RefusedError: if the text is too long.
        """
        limit = self.config["max_length"]
        most = self._room(len(first) + 1) - sum(map(len, first.values()))
        if most > 0 and (truncate or self.config.get("long_texts") == "truncate"):
            ids = ids[:most]
        split = self.config.get("long_texts") == "window"
        if len(ids) > most and not (split and most >= 2):
            hint = "" if split else ", or long_texts='window'"
            beside = "".join(f" beside its `{each}`" for each in first)
            raise RefusedError(
                name,
                f"`{name}` must have at most {max(most, 0)} tokens each{beside}, as `max_length` is {limit}"
                f"{hint}. Received: {len(ids)} tokens",
            )
        stride = max(most - most // 2, 1)
        beyond = max(len(ids) - most, 0)
        starts = [min(start, beyond) for start in range(0, beyond + stride, stride)]
        return Windows(
            [ids[start : start + most] for start in starts], starts, next(iter(first.values()), None)
        )

    def _room(self, num_texts: int) -> int:
        """Return the maximum number of ids of a text or pair, without special ids."""
        limit: int | None = self.config["max_length"]
        return (2**30 if limit is None else limit) - 1 - num_texts

    def _with_special_ids(
        self, first: list[int] | None, second: list[int]
    ) -> tuple[list[list[int]], list[int]]:
        """Return the ids of a window, in one or both orders of a pair, and its segment ids."""
        tokenizer, special_ids = self.tokenizer, self.config["special_ids"]
        if special_ids is None:
            before = [tokenizer.start_id, *(second if first is None else first), tokenizer.end_id]
            after = [] if first is None else [*second, tokenizer.end_id]
            return [before + after], [0] * len(before) + [1] * len(after)
        start, delimiter, extract = special_ids
        if first is None:
            return [[start, *second, extract]], []
        orders = [(first, second), (second, first)] if self.config["symmetric"] else [(first, second)]
        return [[start, *one, delimiter, *other, extract] for one, other in orders], []


def check_batch_size(batch_size: int) -> None:
    """Raise a ValueError unless the number of rows in a batch is positive."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be a positive integer. Received: batch_size={batch_size}")


def as_floats(rows: Any, size: int) -> np.ndarray:
    """Return n rows as float32 (n, size), also for n = 0, or a single one (size,)."""
    values: np.ndarray = np.array(rows, np.float32)
    return values if values.size else values.reshape(0, size)


def padded(rows: Sequence[Sequence[Sequence[int]]], padding_value: int) -> np.ndarray:
    """Pad R rows of K sequences of ids to the longest, int64 (R, K, L), L at least 1."""
    length = max((len(ids) for row in rows for ids in row), default=0) or 1
    values = [[[*ids, *[padding_value] * (length - len(ids))] for ids in row] for row in rows]
    return np.array(values, np.int64)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities (…, C) of logits."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities
