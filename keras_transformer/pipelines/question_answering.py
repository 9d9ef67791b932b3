"""The answer to a question, as a part of a text."""

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.arguments import check_positive
from keras_transformer.pipelines import class_labels, texts, words


class Span(NamedTuple):
    """An answer.

    Attributes:
        text: of the context, as written there.
        start: where it starts in the context.
        end: where it ends, exclusive.
        probability: of start and end among all spans of the window it was found in.
    """

    text: str
    start: int
    end: int
    probability: float


class QuestionAnswering(texts.OfTexts):
    """A model that says where answers start and end, and its tokenizer.

    Answers are whole words of the context.

    Args:
        model: such as `models.SpanClassifier`.
        tokenizer: with the model's vocabulary.
        max_answer_tokens: how long an answer may be, in tokens.
        long_texts: whether contexts that are too long are refused ("refuse"), or read through windows, of which the
            one with the largest logits answers ("window").

    Raises:
        ValueError: where model and tokenizer do not belong together, or `max_answer_tokens` is not positive.

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
        """The best answer.

        Args:
            question: a text.
            context: where the answer stands.
            batch_size: windows that run together; it changes the speed alone.

        Returns:
            A `Span`.

        Raises:
            ValueError: where the context has no token, or is too long with the question.
        """
        (asked,) = self._ids([question], "question")
        its_words = words.split(context)
        ids, word_of = words.with_ids(its_words, self.tokenizer)
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
        """The constructor's arguments besides model and tokenizer."""
        return {**super().settings(), "max_answer_tokens": self.max_answer_tokens}

    def _spans(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The sum of logits of each start (row) and end (column), −∞ where there can be no such span."""
        places = np.arange(len(starts))
        length = places - places[:, None] + 1
        allowed = (length >= 1) & (length <= self.max_answer_tokens)
        return np.where(allowed, starts[:, None] + ends, -np.inf)
