"""Extractive question answering."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.pipelines.errors import Errors, InvalidInputError
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, TextTask, Truncate, Windows
from keras_transformer_serving.tasks import DEFAULT, Row, Tensor

ANSWER = "answer"
ALWAYS_ANSWER = float(np.finfo(np.float32).max)  # a threshold that no score of no answer is above


class Span(NamedTuple):
    """An answer: a span of the context, or none.

    Attributes:
        text: the text of the span; "" if the context has no answer.
        start: the index of its first character in the context; 0 for no answer.
        end: the index after its last character; 0 for no answer.
        probability: the product of the probabilities of its first and its last token, among those of the context and
            the start token, which means no answer.
        no_answer_score: the logarithm of how many times more probable no answer is than the best span; None without a
            `no_answer_threshold`.
    """

    text: str
    start: int
    end: int
    probability: float
    no_answer_score: float | None = None


class QuestionAnsweringTask(TextTask):
    """Extractive question answering."""

    def __call__(  # type: ignore[override]
        self,
        question: str | Iterable[str],
        context: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
        no_answer_threshold: float | None = None,
    ) -> Any:
        """Answer questions.

        Args:
            question: the question, or a list of questions.
            context: the text that contains the answer, or one for each question.
            batch_size: the number of windows in a batch.
            errors: "raise" the error of a question or context, or "return" it in place of the answer.
            truncate: whether to cut a context that is too long with its question, keeping its first tokens.
            no_answer_threshold: the `no_answer_score` above which the answer is "", in place of the setting of this
                name; only for a pipeline with this setting.

        Returns:
            The most probable `Span`, or a list of them.

        Raises:
            ValueError: if a context has no word, or is too long with its question, or `no_answer_threshold` is no
                number, or not a setting of the pipeline.
        """
        options = {}
        if no_answer_threshold is not None:
            if not is_threshold(no_answer_threshold):
                raise ValueError(
                    "`no_answer_threshold` must be a number or None. "
                    f"Received: no_answer_threshold={no_answer_threshold!r}"
                )
            if self.config.get("no_answer_threshold") is None:
                raise ValueError(
                    "`no_answer_threshold` must be None for a pipeline without this setting, which always answers. "
                    f"Received: no_answer_threshold={no_answer_threshold!r}"
                )
            options["no_answer_threshold"] = float(no_answer_threshold)
        texts = {"question": question, "context": context}
        return self._answers(texts, batch_size, errors=errors, truncate=truncate, options=options)

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: a question and its context; of ANSWER also the threshold of no answer."""
        texts = (Tensor("question", "string"), Tensor("context", "string"))
        threshold = config.get("no_answer_threshold")
        if threshold is None:
            return {DEFAULT: texts}
        return {DEFAULT: texts, ANSWER: (*texts, Tensor("no_answer_threshold", "float32", default=threshold))}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: the fields of `Span`."""
        start, end = (Tensor(name, "int32") for name in ("start", "end"))
        score = () if config.get("no_answer_threshold") is None else (Tensor("no_answer_score", "float32"),)
        return Tensor("answer", "string"), start, end, Tensor("probability", "float32"), *score

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.choices` of the spans of each row."""
        expected, found = (
            [_span_probabilities(outputs, pair.real("start_logits")) for pair, outputs in side]
            for side in (
                [(pair, pair.expected) for pair in pairs],
                [(pair, pair.found) for pair in pairs],
            )
        )
        return {**closeness.choices("spans", expected, found), **closeness.logits(pairs)}

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> Span:
        """Return the span of the outputs of a context."""
        score = float(row["no_answer_score"]) if "no_answer_score" in row else None
        return Span(row["answer"], int(row["start"]), int(row["end"]), float(row["probability"]), score)

    @staticmethod
    def text(answer: Span) -> str:
        """Return the text of the span."""
        return answer.text


def is_threshold(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class _State(NamedTuple):
    """A context, and the threshold above which it has no answer.

    Attributes:
        text: the context.
        starts: for each token, the index of the first character of its word.
        ends: for each token, the index after the last character of its word.
        threshold: the threshold; None to always answer.
    """

    text: str
    starts: list[int]
    ends: list[int]
    threshold: float | None


class _Best(NamedTuple):
    """The most probable span of a window.

    Attributes:
        log_probability: its log-probability.
        first: its first token in the context.
        last: its last token.
        no_answer: the log-probability of no answer.
    """

    log_probability: float
    first: int
    last: int
    no_answer: float


class QuestionAnswering(QuestionAnsweringTask, TextPipeline):
    """Exported extractive question answering; `load` creates it."""

    def preprocess(self, *texts: Any, truncate: Truncate = None) -> tuple[Windows, _State]:
        """Convert a question and its context to windows of ids, and the places of the context's tokens.

        A third value is the threshold of no answer, by default that of the export.
        """
        question, context, *threshold = texts
        words = self._tokenize_words(context)
        ids = [id_ for word in words for id_ in word.ids]
        starts = [word.start for word in words for _ in word.ids]
        ends = [word.end for word in words for _ in word.ids]
        state = _State(context, starts, ends, *threshold or (self.config.get("no_answer_threshold"),))
        if not any(end > start for start, end in zip(starts, ends, strict=True)):
            raise InvalidInputError("context", "`context` must contain a word. Received: none")
        return self._windows(ids, "context", truncate, question=self.tokenizer.tokenize(question)), state

    def postprocess(self, outputs: Arrays, windows: Windows, state: _State) -> Row:
        """Return the most probable span of all windows, or none."""
        found = [
            self._best(outputs["start_logits"][window], outputs["end_logits"][window], windows, window)
            for window in range(len(windows.ids))
        ]
        best = max(reversed(found), key=lambda span: span.log_probability)
        start, end, log_probability = state.starts[best.first], state.ends[best.last], best.log_probability
        if state.threshold is None:
            score = {}
        else:
            no_answer = min(span.no_answer for span in found)
            score = {"no_answer_score": no_answer - log_probability}
            if score["no_answer_score"] > state.threshold:
                start, end, log_probability = 0, 0, no_answer
        probability = math.exp(log_probability)
        return {
            "answer": state.text[start:end],
            "start": start,
            "end": end,
            "probability": probability,
            **score,
        }

    def _best(self, starts: np.ndarray, ends: np.ndarray, windows: Windows, window: int) -> _Best:
        """Return the most probable span of a window, from the logits (L,)."""
        before = len(windows.before or ()) + 1 + self.tokenizer.pair_separators
        count = len(windows.ids[window])
        read = [0, *range(before, before + count)]  # the start token, which means no answer, and the context
        starts, ends = (logits[read] - _log_sum_exp(logits[read]) for logits in (starts, ends))
        sums = starts[1:, None] + ends[None, 1:]
        length = np.arange(count) - np.arange(count)[:, None] + 1
        allowed = (length >= 1) & (length <= self.config["max_answer_tokens"])
        sums = np.where(allowed, sums, np.finfo(sums.dtype).min)
        first, last = np.unravel_index(np.argmax(sums), sums.shape)
        offset = windows.starts[window]
        no_answer = float(starts[0] + ends[0])
        return _Best(float(sums[first, last]), int(first) + offset, int(last) + offset, no_answer)


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """Return log Σ exp of logits (L,)."""
    largest = logits.max()
    total: np.ndarray = largest + np.log(np.exp(logits - largest).sum())
    return total


def _span_probabilities(outputs: closeness.Arrays, is_real: np.ndarray) -> np.ndarray:
    """Return the probabilities (B, S · S) of spans by their first and last position, of rows that are not padding."""
    rows = is_real.any(axis=-1)
    starts, ends = (
        np.where(is_real, outputs[name], -1e9)[rows].astype("float64")
        for name in ("start_logits", "end_logits")
    )
    size = starts.shape[-1]
    spans = np.where(np.tri(size, dtype=bool).T, starts[:, :, None] + ends[:, None], -2e9)
    return closeness.softmax(spans.reshape(-1, size * size))
