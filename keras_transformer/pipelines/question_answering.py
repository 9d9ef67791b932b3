"""Extractive question answering."""

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.arguments import check_positive
from keras_transformer.pipelines import class_labels, texts


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


class QuestionAnswering(texts.TextPipeline):
    """A pipeline of a span classifier and its tokenizer.

    Answers are whole words of the context.

    Args:
        model: such as `models.SpanClassifier`.
        tokenizer: with the model's vocabulary.
        max_answer_tokens: the maximum number of tokens of an answer.
        long_texts: "refuse" contexts that are too long, or split them into windows and return the answer with the
            largest logits ("window").

    Raises:
        ValueError: if model and tokenizer do not match, or `max_answer_tokens` is not positive.

    Example:
        >>> QuestionAnswering(model, tokenizer)("Who barks?", "A dog barks.").text
        'dog'
    """

    def __init__(
        self, model: Any, tokenizer: Any, max_answer_tokens: int = 30, long_texts: str = "refuse"
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        check_positive(max_answer_tokens=max_answer_tokens)
        self.max_answer_tokens = max_answer_tokens

    def __call__(self, question: str, context: str, batch_size: int = 32) -> Span:
        """Answer a question.

        Args:
            question: the question.
            context: the text that contains the answer.
            batch_size: the number of windows in a batch.

        Returns:
            The most probable `Span`.

        Raises:
            ValueError: if the context has no token, or is too long with the question.
        """
        (asked,) = self._ids([question], "question")
        its_words = texts.split_words(context)
        ids, word_of = texts.tokenize_words(its_words, self.tokenizer)
        if not ids:
            raise ValueError(f"`context` must hold a word. Received: context={context!r}")
        room = self.encoder.max_length - 3 - len(asked)
        windows = self._windows(ids, room, 0, "context")
        rows = [self._row(asked, ids[start:end]) for start, end in windows]
        best = (-np.inf, 0, 0, 0.0)
        for (start, end), logits in zip(windows, self._run(rows, batch_size), strict=True):
            of_context = logits[:, len(asked) + 2 : len(asked) + 2 + end - start]  # (2, tokens)
            sums = self._spans(of_context[0], of_context[1])
            first, last = np.unravel_index(sums.argmax(), sums.shape)
            score = float(sums[first, last])
            probability = float(class_labels.softmax(sums.ravel()).max())
            best = max(best, (score, start + int(first), start + int(last), probability))
        _, first, last, probability = best
        start, end = its_words[word_of[first]].start, its_words[word_of[last]].end
        return Span(context[start:end], start, end, probability)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {**super().settings(), "max_answer_tokens": self.max_answer_tokens}

    def _spans(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the sum of the logits of each start (row) and end (column), −∞ for invalid spans."""
        places = np.arange(len(starts))
        length = places - places[:, None] + 1
        allowed = (length >= 1) & (length <= self.max_answer_tokens)
        return np.where(allowed, starts[:, None] + ends, -np.inf)
