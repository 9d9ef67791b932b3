"""The base classes of tasks that run a model once on texts, and of their exports: special ids, windows and batches."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from keras_transformer_serving.forward import ForwardEngine
from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines.errors import (
    Errors,
    InvalidInputError,
    RowErrors,
    as_list,
    check_batch_size,
    check_string,
    check_truncate,
)
from keras_transformer_serving.tasks import Row, Task, Tensor
from keras_transformer_serving.text import Tokenizer
from keras_transformer_serving.text.tokenizer import Word

Arrays = dict[str, np.ndarray]
Truncate = bool | Literal["right", "left"] | None
"""Whether a text that is too long is truncated, on the side of the export or this one; None as the export says."""
# The words with which pipelines answer; exports of earlier versions, without this setting, have those of white space.
TOKENIZER_WORDS, WHITE_SPACE_WORDS = "tokenizer", "white_space"
# The side on which texts that are too long are truncated; exports of earlier versions have no such setting.
RIGHT, LEFT = TRUNCATION_SIDES = ("right", "left")


IdRows = list[tuple[list[int] | None, list[int]]]
"""Rows of ids for the model: those of the first text, None for a single text, and those of the second."""


class Rows(Protocol):
    """The rows of ids, one or several, as which the model reads a text or pair."""

    @property
    def rows(self) -> IdRows:
        """The rows."""


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

    @property
    def rows(self) -> IdRows:
        """The rows of the windows."""
        return [(self.before, ids) for ids in self.ids]

    @property
    def read(self) -> range:
        """The offsets of the text's ids that the model reads."""
        return range(self.starts[0], self.starts[-1] + len(self.ids[-1]))


class TextTask(Task, abc.ABC):
    """Base class of tasks of models that run once on texts: the arguments, the errors and the answers of calls."""

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Answer texts.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to truncate a text that is too long to its first tokens.

        Returns:
            A list of answers, or the answer to one string.

        Raises:
            ValueError: if a text is too long, or otherwise invalid.
        """
        return self._answers({"text": text}, batch_size, errors=errors, truncate=truncate)

    @classmethod
    def graph_inputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the ids, their mask and, with several segments, the segments, in both orders of a symmetric pair."""
        names = [
            "input_ids",
            "attention_mask",
            *(["token_type_ids"] if config.get("num_segments", 1) > 1 else []),
        ]
        shape = (2, None) if config["symmetric"] else (None,)
        return tuple(Tensor(name, "int64", shape, optional=name != "input_ids") for name in names)

    def _answers(
        self,
        texts: Mapping[str, str | Iterable[str]],
        batch_size: int,
        *,
        convert: Callable[[Row, dict[str, Any]], Any] | None = None,
        errors: Errors = "raise",
        truncate: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the answers for texts or pairs, or the answer to a single string.

        Args:
            texts: one or several lists of texts or strings, by argument.
            batch_size: the number of rows in a batch.
            convert: a function from the outputs of a row and the settings to its answer, by default `answer`.
            errors: "raise" the error of a text, or "return" it in place of its answer.
            truncate: whether to truncate texts that are too long; `preprocess` takes it as an argument.
            options: values that all rows have after their texts, by name, after checking them.
        """
        check_batch_size(batch_size)
        check_truncate(truncate)
        row_errors = RowErrors(errors)
        columns = [
            self._column(name, [values] if isinstance(values, str) else as_list(name, values), row_errors)
            for name, values in texts.items()
        ]
        if len({len(column) for column in columns}) > 1:
            names = " and ".join(map("`{}`".format, texts))
            counts = " and ".join(str(len(column)) for column in columns)
            raise ValueError(f"{names} must have the same length. Received: {counts} texts")
        # Long texts are first, so that those that are too long raise an error at once.
        order = sorted(
            row_errors.accepted(len(columns[0])),
            key=lambda row: -sum(len(column[row]) for column in columns),
        )
        for value in (options or {}).values():
            columns.append([value] * len(columns[0]))
        truncation = {"truncate": True} if truncate else {}
        rows = self.rows(columns, batch_size, order, row_errors, **truncation)
        config, convert = self.config, convert or self.answer
        answers = row_errors.merge({row: convert(outputs, config) for row, outputs in rows.items()})
        return answers[0] if all(isinstance(values, str) for values in texts.values()) else answers

    @abc.abstractmethod
    def _column(self, name: str, texts: list[Any], errors: RowErrors) -> Sequence[Any]:
        """Return the texts of an argument as `rows` takes them, after checking each."""

    @abc.abstractmethod
    def rows(
        self,
        columns: Sequence[Sequence[Any]],
        batch_size: int,
        order: Sequence[int],
        errors: RowErrors,
        **options: Any,
    ) -> dict[int, Row]:
        """Return the outputs of each valid row, by index, computed in batches.

        Args:
            columns: one or several lists of n texts, and of the values of options.
            batch_size: the number of rows in a batch.
            order: the indices of rows, with rows of similar length next to each other.
            errors: the errors of rows, to which the errors of these rows are added.
            **options: the options of `preprocess`.
        """


class TextPipeline(TextTask, Model):
    """Base class of exported pipelines that run their model once on texts.

    A subclass also extends the declaration of its task, and defines `postprocess`; `preprocess` has a default.
    It has the arguments and errors of the pipeline of the same name in `keras_transformer.pipelines`.

    Args:
        engine: what runs the model.
        config: the export's settings.
        tokenizer: the export's tokenizer.
    """

    def __init__(self, engine: ForwardEngine, config: dict[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__(engine, config)
        self.tokenizer = tokenizer

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Rows, Any]:
        """Convert a text or pair to rows of ids, and values that `postprocess` needs: by default windows, and none.

        Args:
            *texts: the text or the two texts.
            truncate: whether to truncate a text that is too long, which has one window then; by default as the export's
                `long_texts` says.
        """
        return self._windows(self.tokenizer.tokenize(texts[0]), "text", truncate), None

    @abc.abstractmethod
    def postprocess(self, outputs: Arrays, windows: Any, state: Any) -> Row:
        """Convert the model's outputs for the rows of a text to the outputs of the task.

        Args:
            outputs: arrays (W, …), by name.
            windows: the W rows of `preprocess`.
            state: the other values of `preprocess`.
        """

    def _column(self, name: str, texts: list[Any], errors: RowErrors) -> list[Any]:
        for row, text in enumerate(texts):
            with errors.catching(row):
                check_string(name, row, text)
        return texts

    def rows(
        self,
        columns: Sequence[Sequence[Any]],
        batch_size: int,
        order: Sequence[int],
        errors: RowErrors,
        **options: Any,
    ) -> dict[int, Row]:
        """Return the outputs of each valid row, by index, computed in batches; see `TextTask`."""

        def batch_of(indices: Sequence[int]) -> dict[int, Row]:
            batch: dict[int, tuple[Rows, Any]] = {}
            for row in sorted(indices):
                with errors.catching(row):
                    batch[row] = self.preprocess(*(column[row] for column in columns), **options)
            if not batch:
                return {}
            outputs = self.run_windows([windows for windows, _ in batch.values()], batch_size)
            return {
                row: self.postprocess(row_outputs, windows, state)
                for row_outputs, (row, (windows, state)) in zip(outputs, batch.items(), strict=True)
            }

        batches = [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
        return {row: value for rows in self.engine.map(batch_of, batches) for row, value in rows.items()}

    def run_windows(self, batch: Sequence[Rows], batch_size: int) -> list[Arrays]:
        """Return the model's outputs for the rows of each text.

        Args:
            batch: the rows of each text, of `preprocess`.
            batch_size: the maximum number of rows that the model runs on at once.

        Returns:
            For each text arrays (W, …), by name.
        """
        rows = [self._with_special_ids(*row) for windows in batch for row in windows.rows]
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
        counts = [len(windows.rows) for windows in batch]
        return [
            {name: values[end - count : end] for name, values in outputs.items()}
            for count, end in zip(counts, np.cumsum(counts), strict=True)
        ]

    def _windows(self, ids: list[int], name: str, truncate: Truncate = None, **first: list[int]) -> Windows:
        """Split ids into windows that fit the model, or truncate them to one.

        Windows overlap by half, the last one more; or by the setting `doc_stride`, and the last is shorter.

        Args:
            ids: the ids of the text.
            name: the name of the text's argument.
            truncate: whether to keep the ids that fit, the first or the last; by default as `long_texts` says.
            **first: of pairs, the ids of the first text, which each window repeats, by the name of its argument.
        """
        self._check_padding(**{name: ids}, **first)
        limit = self.config["max_length"]
        max_ids = self._max_ids(len(first) + 1) - sum(map(len, first.values()))
        offset = 0
        if max_ids > 0 and self._truncates(truncate):
            offset, ids = self._truncated(ids, max_ids, truncate)
        split = self.config.get("long_texts") == "window"
        if len(ids) > max_ids and not (split and max_ids >= 2):
            hint = "" if split else ", or long_texts='window'"
            question = "".join(f" beside its `{name}`" for name in first)
            raise InvalidInputError(
                name,
                f"`{name}` must have at most {max(max_ids, 0)} tokens each{question}, as `max_length` is {limit}"
                f"{hint}. Received: {len(ids)} tokens",
                "length",
            )
        doc_stride = self.config.get("doc_stride")
        overlap = max_ids // 2 if doc_stride is None else min(doc_stride, max_ids - 1)
        stride = max(max_ids - overlap, 1)
        last_start = max(len(ids) - max_ids, 0)
        starts = [*range(0, last_start + stride, stride)]
        if doc_stride is None:
            starts = [min(start, last_start) for start in starts]
        return Windows(
            [ids[start : start + max_ids] for start in starts],
            [start + offset for start in starts],
            next(iter(first.values()), None),
        )

    def _check_padding(self, **texts: list[int]) -> None:
        """Raise if a text, ids by the name of its argument, has a padding token that the engine cannot hide."""
        needed = getattr(self.engine, "needed_to_hide_tokens", "")
        for name, ids in texts.items():
            if needed and self.config["pad_id"] in ids:
                raise InvalidInputError(name, f"`{name}` with the padding token needs {needed}")

    def _truncated(self, ids: list[int], count: int, truncate: Truncate) -> tuple[int, list[int]]:
        """Return `count` ids of a text, the first or the last, and the offset of the first of them."""
        side = truncate if isinstance(truncate, str) else self.config.get("truncation_side")
        begin = max(len(ids) - count, 0) if side == LEFT else 0
        return begin, ids[begin : begin + count]

    def _truncates(self, truncate: Truncate) -> bool:
        return self.config.get("long_texts") == "truncate" if truncate is None else bool(truncate)

    def _pair_windows(self, truncate: Truncate, **texts: str) -> Windows:
        """Convert a pair of texts, by the names of their arguments, to windows of ids.

        The second text is split into windows; or the longer text is truncated first, as in `transformers`.
        """
        (first_name, first), (name, second) = (
            (name, self.tokenizer.tokenize(text)) for name, text in texts.items()
        )
        if self._truncates(truncate):
            length = first_length(len(first), len(second), self._max_ids(2))
            _, first = self._truncated(first, length, truncate)
        return self._windows(second, name, truncate, **{first_name: first})

    def _tokenize_words(self, text: str) -> list[Word]:
        """Return the words of a text and their ids."""
        if self.config.get("words", WHITE_SPACE_WORDS) == TOKENIZER_WORDS:
            return self.tokenizer.tokenize_words(text)
        return self.tokenizer.tokenize_white_space_words(text)

    def _max_ids(self, num_texts: int) -> int:
        """Return the maximum number of ids of a text or pair, without special ids."""
        limit: int | None = self.config["max_length"]
        separators = (num_texts - 1) * (self.tokenizer.pair_separators - 1)
        return (2**30 if limit is None else limit) - 1 - num_texts - separators

    def with_special_ids(self, ids: list[int]) -> list[int]:
        """Return the ids of a text with the special ids around it."""
        rows, _ = self._with_special_ids(None, ids)
        return rows[0]

    def _with_special_ids(
        self, first: list[int] | None, second: list[int]
    ) -> tuple[list[list[int]], list[int]]:
        """Return the ids of a window, in one or both orders of a pair, and its segment ids."""
        tokenizer, special_ids = self.tokenizer, self.config["special_ids"]
        if special_ids is None:
            end = tokenizer.end_id
            before = [tokenizer.start_id, *(second if first is None else first), end]
            after = [] if first is None else [*[end] * (tokenizer.pair_separators - 1), *second, end]
            return [before + after], [0] * len(before) + [1] * len(after)
        start, delimiter, extract = special_ids
        if first is None:
            return [[start, *second, extract]], []
        orders = [(first, second), (second, first)] if self.config["symmetric"] else [(first, second)]
        return [[start, *one, delimiter, *other, extract] for one, other in orders], []


def first_length(first: int, second: int, limit: int) -> int:
    """Return the number of ids of the first text when a pair is truncated, the longer text first.

    Args:
        first: the number of ids of the first text.
        second: the number of ids of the second text, which has the rest of `limit`.
        limit: the maximum number of ids of both.
    """
    limit = max(limit, 0)
    return min(first, limit - min(second, limit // 2)) if first > second else min(first, limit // 2)


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
