"""Classification of texts and pairs of texts."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.pipelines import class_labels, texts


class TextClassification(texts.TextPipeline):
    """A pipeline of a text classifier, or regression, its tokenizer and the names of its classes.

    The outputs depend on the model's `problem_type`, as in `pipeline("text-classification")` of `transformers`:

    | `problem_type` | a call returns | `scores` are |
    |---|---|---|
    | "single_label_classification" | the most probable label | softmax of the logits |
    | "multi_label_classification" | the list of all labels above `threshold` | sigmoid of each logit |
    | "regression" | a number; for several classes the list of numbers | the logits |

    `dict(zip(classifier.labels, classifier.scores(text)))` equals the output there for `top_k=None`.

    Args:
        model: such as `models.SequenceClassifier` or `models.GPTClassifier`.
        tokenizer: with the model's vocabulary; for `models.GPTClassifier` it may lack the special tokens.
        labels: a name for each class, by default its index.
        long_texts: "refuse" texts that are too long, or split them into windows and average their probabilities or
            numbers ("window"); of pairs, the second text is split.
        threshold: the probability above which a label is returned, if the model's `problem_type` is
            "multi_label_classification".

    Raises:
        ValueError: if model, tokenizer and labels do not match, or `threshold` is not a probability.

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
            second: the second text of each pair, for a classifier of pairs.
            batch_size: the number of rows in a batch.

        Returns:
            A list of results (see above), or a single result for one string.

        Raises:
            ValueError: if a text is too long, or the numbers of first and second texts differ.
        """
        return class_labels.answers(self, self.scores(first, second, batch_size))

    def probabilities(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Return the probability of each class, float32 (n, C), or (C,) for one string.

        Raises:
            ValueError: as in a call, or if the model is a regression.
        """
        return class_labels.probabilities(self, self.scores(first, second, batch_size))

    def scores(
        self, first: str | Iterable[str], second: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Return the probabilities, or the numbers of a regression, float32 (n, C), or (C,) for one string."""
        first, one = texts.as_list(first)
        rows, owners = self._rows(first, second)
        found = np.zeros((len(first), len(self.labels)), "float32")
        classify = getattr(self.model, "classify", None)
        for owner, logits in zip(owners, self._run(rows, batch_size, classify), strict=True):
            found[owner] += class_labels.scores(self, logits)
        found /= np.bincount(owners, minlength=len(first))[:, None] if owners else 1
        return found[0] if one else found

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {**super().settings(), "labels": self.labels, "threshold": self.threshold}

    def _rows(self, first: list[str], second: Any) -> tuple[list[dict[str, list[int]]], list[int]]:
        """Return rows of ids, and the index of the text of each."""
        # Models with relative positions have no maximum length.
        length, rows, owners = self.encoder.max_length or math.inf, [], []
        if second is None and getattr(self.model, "symmetric", False):
            raise ValueError("`second` must be given, as the model compares two texts. Received: second=None")
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
        for i, (first_ids, second_ids) in enumerate(pairs):
            for start, end in self._windows(second_ids, length - 3 - len(first_ids), i, "second"):
                rows.append(self._row(first_ids, second_ids[start:end]))
                owners.append(i)
        return rows, owners
