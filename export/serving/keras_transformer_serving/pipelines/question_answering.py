"""Extractive question answering."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.pipelines.errors import Errors, InvalidInputError
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, TextTask, Truncate, Windows
from keras_transformer_serving.tasks import DEFAULT, Row, Tensor


class Span(NamedTuple):
    """An answer: a span of the context.

    Attributes:
        text: the text of the span.
        start: the index of its first character in the context.
        end: the index after its last character.
        probability: its probability among all spans of its window.
    """

    text: str
    start: int
    end: int
    probability: float


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
    ) -> Any:
        """Answer questions.

        Args:
            question: the question, or a list of questions.
            context: the text that contains the answer, or one for each question.
            batch_size: the number of windows in a batch.
            errors: "raise" the error of a question or context, or "return" it in place of the answer.
            truncate: whether to cut a context that is too long with its question, keeping its first tokens.

        Returns:
            The most probable `Span`, or a list of them.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a context has no word, or is too long with its question.
        """
        return self._answers(
            {"question": question, "context": context}, batch_size, errors=errors, truncate=truncate
        )

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: a question and its context."""
        return {DEFAULT: (Tensor("question", "string"), Tensor("context", "string"))}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: the fields of `Span`."""
        start, end = (Tensor(name, "int32") for name in ("start", "end"))
        return Tensor("answer", "string"), start, end, Tensor("probability", "float32")

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
        return Span(row["answer"], int(row["start"]), int(row["end"]), float(row["probability"]))

    @staticmethod
    def text(answer: Span) -> str:
        """Return the text of the span."""
        return answer.text


class Context(NamedTuple):
    """A context.

    Attributes:
        text: the context.
        starts: for each token, the index of the first character of its word.
        ends: for each token, the index after the last character of its word.
    """

    text: str
    starts: list[int]
    ends: list[int]


class QuestionAnswering(QuestionAnsweringTask, TextPipeline):
    """Exported extractive question answering; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, Context]:
        """Convert a question and its context to windows of ids, and the places of the context's tokens."""
        question, context = texts
        words = self._tokenize_words(context)
        ids = [id_ for word in words for id_ in word.ids]
        starts = [word.start for word in words for _ in word.ids]
        ends = [word.end for word in words for _ in word.ids]
        tokens = Context(context, starts, ends)
        if not any(end > start for start, end in zip(starts, ends, strict=True)):
            raise InvalidInputError("context", "`context` must contain a word. Received: none")
        return self._windows(ids, "context", truncate, question=self.tokenizer.tokenize(question)), tokens

    def postprocess(self, outputs: Arrays, windows: Windows, state: Context) -> Row:
        """Return the span with the largest sum of start and end logits."""
        spans = [
            self._best(outputs["start_logits"][window], outputs["end_logits"][window], windows, window)
            for window in range(len(windows.ids))
        ]
        _, first, last, probability = max(reversed(spans), key=lambda span: span[0])
        start, end = state.starts[first], state.ends[last]
        return {"answer": state.text[start:end], "start": start, "end": end, "probability": probability}

    def _best(
        self, starts: np.ndarray, ends: np.ndarray, windows: Windows, window: int
    ) -> tuple[float, int, int, float]:
        """Return the largest sum of logits (L,) in a window, the span's first and last token and its probability."""
        before = len(windows.before or ()) + 1 + self.tokenizer.pair_separators
        count = len(windows.ids[window])
        inside = slice(before, before + count)
        sums = starts[inside, None] + ends[None, inside]
        length = np.arange(count) - np.arange(count)[:, None] + 1
        allowed = (length >= 1) & (length <= self.config["max_answer_tokens"])
        sums = np.where(allowed, sums, np.finfo(sums.dtype).min)
        first, last = np.unravel_index(np.argmax(sums), sums.shape)
        best = sums[first, last]
        probability = float(1 / np.exp(sums - best).sum())
        return (
            float(best),
            int(first) + windows.starts[window],
            int(last) + windows.starts[window],
            probability,
        )


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
