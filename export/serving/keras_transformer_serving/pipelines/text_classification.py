"""Exported classifiers of texts and pairs of texts."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer_serving.model import postprocess
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, Windows


class TextClassification(TextPipeline):
    """An exported text classifier, or regression; `load` creates it."""

    def __call__(
        self, text: str | Iterable[str], text_pair: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> Any:
        """Return the label, the labels or the number of each text, or each pair.

        Args:
            text: a list of texts, or one string.
            text_pair: the second text of each pair, for a classifier of pairs.
            batch_size: the number of rows in a batch.

        Returns:
            A list of results, or a single result for one string: the most probable label; the list of all labels above
            the threshold in a multi-label classification; the number, or a list of C > 1 numbers, in a regression.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is too long, there are not as many second texts, or the model takes no pairs.
        """
        scores, config = self.scores(text, text_pair, batch_size), self.config
        found = postprocess(
            np.atleast_2d(scores), config["labels"], config["problem_type"], config["threshold"]
        )
        return found[0] if scores.ndim == 1 else found

    def probabilities(
        self, text: str | Iterable[str], text_pair: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Return the probability of each class, float32 (n, C), or (C,) for one string.

        Raises:
            TypeError: as in a call.
            ValueError: as in a call, or if the model is a regression.
        """
        if self.config["problem_type"] == "regression":
            raise ValueError(
                "`probabilities` needs a classifier; `scores` are the numbers of a regression. "
                "Received: problem_type='regression'"
            )
        return self.scores(text, text_pair, batch_size)

    def scores(
        self, text: str | Iterable[str], text_pair: str | Iterable[str] | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Return the probabilities, or the numbers of a regression, float32 (n, C), or (C,) for one string."""
        texts = {"text": text} if text_pair is None else {"text": text, "text_pair": text_pair}
        if text_pair is None and self.config["symmetric"]:
            raise ValueError(
                "`text_pair` must be given, as the model compares two texts. Received: text_pair=None"
            )
        if text_pair is not None:
            check_pairs(self.config.get("num_segments", 2))
        found = np.array(self._answers(batch_size, **texts), np.float32)
        return found if found.size else found.reshape(0, len(self.config["labels"]))

    def preprocess(self, *texts: str) -> tuple[Windows, None]:
        """Convert a text, or a pair of texts, to windows of ids."""
        first, *second = map(self.tokenizer.tokenize, texts)
        if second:
            return self._windows(second[0], "text_pair", text=first), None
        return self._windows(first, "text"), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> np.ndarray:
        """Average the scores (W, C) of the windows of a text."""
        scores: np.ndarray = outputs.get("probabilities", outputs["logits"]).mean(axis=0)
        return scores


def check_pairs(num_segments: int) -> None:
    """Raise a ValueError if an encoder has a single segment, so that it takes no pairs of texts."""
    if num_segments < 2:
        raise ValueError(
            f"`text_pair` must be None, as the model has num_segments={num_segments}. Received: second texts"
        )
