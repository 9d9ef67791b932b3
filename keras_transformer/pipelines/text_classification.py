"""Texts, or pairs of texts, to the names of their classes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.pipelines import class_labels, texts


class TextClassification(texts.OfTexts):
    """A classifier of texts, its tokenizer and the names of its classes; or a regression.

    What it answers is the model's `problem_type`, as in `pipeline("text-classification")` of `transformers`:

    | `problem_type` | a call answers | `scores` are |
    |---|---|---|
    | "single_label_classification" | the most probable label | softmax of the logits |
    | "multi_label_classification" | the list of all labels above `threshold` | sigmoid of each logit |
    | "regression" | a number; of several classes the list of numbers | the logits |

    `dict(zip(classifier.labels, classifier.scores(text)))` is what `top_k=None` gives there.

    Args:
        model: such as `models.SequenceClassifier` or `models.GPTClassifier`.
        tokenizer: with the model's vocabulary; of `models.GPTClassifier` it may lack the marks.
        labels: a name for each class, by default its number.
        long_texts: whether texts that are too long are refused ("refuse"), or the probabilities of windows averaged
            ("window"); of pairs, the second is read through windows. Numbers are averaged too.
        threshold: the probability above which a label is part of the answer, where the model's `problem_type` is
            "multi_label_classification".

    Raises:
        ValueError: where model, tokenizer and labels do not belong together, or `threshold` is no probability.

    Example:
        >>> classifier = TextClassification(model, tokenizer, ["negative", "positive"])
        >>> classifier(["a fine film"])
        ['positive']
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        labels: Sequence[Any] | None = None,
        long_texts: str = "refuse",
        threshold: float = 0.5,
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        self.labels = class_labels.check(labels, model.num_classes)
        self.problem_type = class_labels.problem_type(model)
        self.threshold = class_labels.check_threshold(threshold)

    def __call__(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> Any:
        """Return the label, the labels or the number of each text, or each pair.

        Args:
            first: a list of texts, or one string.
            second: as many, for a classifier of pairs.
            batch_size: rows that run together; it changes the speed alone.

        Returns:
            A list of answers (see above), or one answer for one string.

        Raises:
            ValueError: where a text is too long, or there are more texts on one side.
        """
        return class_labels.answers(self, self.scores(first, second, batch_size))

    def probabilities(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Return the probability of each class, float32 (n, C), or (C,) for one string.

        Raises:
            ValueError: as in a call, or where the model is a regression.
        """
        return class_labels.probabilities(self, self.scores(first, second, batch_size))

    def scores(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Return what the answers are made from, float32 (n, C), or (C,) for one string: probabilities, or numbers."""
        first, one = texts.as_list(first)
        rows, owners = self._rows(first, second)
        found = np.zeros((len(first), len(self.labels)), "float32")
        classify = getattr(self.model, "classify", None)
        for owner, logits in zip(owners, self._run(rows, batch_size, classify), strict=True):
            found[owner] += class_labels.scores(self, logits)
        found /= np.bincount(owners, minlength=len(first))[:, None] if owners else 1
        return found[0] if one else found

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides model and tokenizer."""
        return {**super().settings(), "labels": self.labels, "threshold": self.threshold}

    def _rows(self, first: list[str], second: Any) -> tuple[list[dict[str, list[int]]], list[int]]:
        """Rows of ids, and which text each belongs to."""
        # Some positions have no end.
        length, rows, owners = self.encoder.max_length or math.inf, [], []
        if second is None and getattr(self.model, "symmetric", False):
            raise ValueError("`second` must be given: the model compares two texts. Received: second=None")
        if second is None:
            for i, ids in enumerate(self._ids(first, "first")):
                for start, end in self._windows(ids, length - 2, i, "first"):
                    rows.append(self._row(ids[start:end]))
                    owners.append(i)
            return rows, owners
        second, _ = texts.as_list(second)
        if len(first) != len(second):
            raise ValueError(
                f"`first` and `second` must be equally many. Received: {len(first)} and {len(second)} texts"
            )
        pairs = zip(self._ids(first, "first"), self._ids(second, "second"), strict=True)
        for i, (before, behind) in enumerate(pairs):
            for start, end in self._windows(behind, length - 3 - len(before), i, "second"):
                rows.append(self._row(before, behind[start:end]))
                owners.append(i)
        return rows, owners
