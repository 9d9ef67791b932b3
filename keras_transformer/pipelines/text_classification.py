"""Texts, or pairs of texts, to the names of their classes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.pipelines import class_labels, texts


class TextClassification(texts.OfTexts):
    """A classifier of texts, its tokenizer and the names of its classes.

    Args:
        model: such as `models.SequenceClassifier` or `models.GPTClassifier`.
        tokenizer: with the model's vocabulary; of `models.GPTClassifier` it may lack the marks.
        labels: a name for each class, by default its number.
        long_texts: whether texts that are too long are refused ("refuse"), or the probabilities of windows averaged
            ("window"); of pairs, the second is read through windows.

    Raises:
        ValueError: where model, tokenizer and labels do not belong together.

    Example:
        >>> classifier = TextClassification(model, tokenizer, ["negative", "positive"])
        >>> classifier(["a fine film"])
        ['positive']
    """

    def __init__(
        self, model: Any, tokenizer: Any, labels: Sequence[Any] | None = None, long_texts: str = "refuse"
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        self.labels = class_labels.check(labels, model.num_classes)

    def __call__(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> Any:
        """The most probable label of each text, or each pair.

        Args:
            first: a list of texts, or one string.
            second: as many, for a classifier of pairs.
            batch_size: rows that run together; it changes the speed alone.

        Returns:
            A list of labels, or one label for one string.

        Raises:
            ValueError: where a text is too long, or there are more texts on one side.
        """
        best = self.probabilities(first, second, batch_size).argmax(-1)
        return [self.labels[i] for i in best] if best.ndim else self.labels[best]

    def probabilities(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """The probability of each class, float32 (n, C), or (C,) for one string."""
        first, one = texts.as_list(first)
        rows, owners = self._rows(first, second)
        found = np.zeros((len(first), len(self.labels)), "float32")
        classify = getattr(self.model, "classify", None)
        for owner, logits in zip(owners, self._run(rows, batch_size, classify), strict=True):
            found[owner] += class_labels.softmax(logits)
        found /= np.bincount(owners, minlength=len(first))[:, None] if owners else 1
        return found[0] if one else found

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides model and tokenizer."""
        return {**super().settings(), "labels": self.labels}

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
