"""Exported classifiers of texts and pairs of texts."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer_serving.model import postprocess
from keras_transformer_serving.pipelines.classification import Classifier
from keras_transformer_serving.pipelines.errors import Errors
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, Windows, as_floats
from keras_transformer_serving.tasks import DEFAULT, TEXT, Tensor


class TextClassification(Classifier, TextPipeline):
    """An exported text classifier, or regression; `load` creates it."""

    def __call__(
        self,
        text: str | Iterable[str],
        text_pair: str | Iterable[str] | None = None,
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Return the label, the labels or the number of each text, or each pair.

        Args:
            text: a list of texts, or one string.
            text_pair: the second text of each pair, for a classifier of pairs.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text or pair, or "return" it in place of the answer.
            truncate: whether to cut texts that are too long, keeping their first tokens; of a pair, the longer text
                first, as `transformers` does.

        Returns:
            A list of results, or a single result for one string: the most probable label; the list of all labels above
            the threshold in a multi-label classification; the number, or a list of C > 1 numbers, in a regression.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is too long, there are not as many second texts, or the model takes no pairs.
        """
        found = self._scores(text, text_pair, batch_size, errors, truncate)
        return [self._answer(row) for row in found] if isinstance(found, list) else self._answer(found)

    def probabilities(
        self,
        text: str | Iterable[str],
        text_pair: str | Iterable[str] | None = None,
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Return the probability of each class.

        Args:
            text: as in a call.
            text_pair: as in a call.
            batch_size: as in a call.
            errors: as in a call.
            truncate: as in a call.

        Returns:
            float32 (n, C), or (C,) for one string; with errors="return" a list of rows (C,) and errors.

        Raises:
            TypeError: as in a call.
            ValueError: as in a call, or if the model is a regression.
        """
        if self.config["problem_type"] == "regression":
            raise ValueError(
                "`probabilities` needs a classifier; `scores` are the numbers of a regression. "
                "Received: problem_type='regression'"
            )
        return self.scores(text, text_pair, batch_size, errors=errors, truncate=truncate)

    def scores(
        self,
        text: str | Iterable[str],
        text_pair: str | Iterable[str] | None = None,
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Return the probabilities, or the numbers of a regression, as `probabilities` does."""
        found = self._scores(text, text_pair, batch_size, errors, truncate)
        return found if errors == "return" else as_floats(found, len(self.config["labels"]))

    def _scores(self, text: Any, text_pair: Any, batch_size: int, errors: Errors, truncate: bool) -> Any:
        texts = {"text": text} if text_pair is None else {"text": text, "text_pair": text_pair}
        if text_pair is None and self.config["symmetric"]:
            raise ValueError(
                "`text_pair` must be given, as the model compares two texts. Received: text_pair=None"
            )
        if text_pair is not None:
            check_pairs(self.config.get("num_segments", 2))
        return self._answers(batch_size, errors=errors, truncate=truncate, **texts)

    def _answer(self, scores: Any) -> Any:
        """Convert the scores (C,) of a text to its label, labels, number or numbers; an error stays as it is."""
        if isinstance(scores, Exception):
            return scores
        config = self.config
        (answer,) = postprocess(scores[None], config["labels"], config["problem_type"], config["threshold"])
        return answer

    def preprocess(self, *texts: str, truncate: bool = False) -> tuple[Windows, None]:
        """Convert a text, or a pair of texts, to windows of ids."""
        first, *second = map(self.tokenizer.tokenize, texts)
        if not second:
            return self._windows(first, "text", truncate), None
        if truncate:
            first = first[: first_length(len(first), len(second[0]), self._room(2))]
        return self._windows(second[0], "text_pair", truncate, text=first), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> np.ndarray:
        """Average the scores (W, C) of the windows of a text."""
        scores: np.ndarray = outputs.get("probabilities", outputs["logits"]).mean(axis=0)
        return scores

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs of each signature: of texts, of pairs or of both."""
        pair = (TEXT, Tensor("text_pair", "string"))
        if config["symmetric"]:
            return {DEFAULT: pair}
        return {DEFAULT: (TEXT,), **({"classify_pairs": pair} if config.get("num_segments", 2) >= 2 else {})}


def first_length(first: int, second: int, room: int) -> int:
    """Return the number of ids that are kept of the first text of a pair that is cut, the longer text first.

    Args:
        first: the number of ids of the first text.
        second: that of the second text, which gets what is left of `room`.
        room: the maximum number of ids of both.
    """
    room = max(room, 0)
    return min(first, room - min(second, room // 2)) if first > second else min(first, room // 2)


def check_pairs(num_segments: int) -> None:
    """Raise a ValueError if an encoder has a single segment, so that it takes no pairs of texts."""
    if num_segments < 2:
        raise ValueError(
            f"`text_pair` must be None, as the model has num_segments={num_segments}. Received: second texts"
        )
