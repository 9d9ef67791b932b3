"""Classification of texts and pairs of texts."""

from collections.abc import Iterable
from typing import Any

from keras_transformer_serving.pipelines.classification import Classifier, outputs_of
from keras_transformer_serving.pipelines.errors import Errors
from keras_transformer_serving.pipelines.texts import (
    Arrays,
    TextPipeline,
    TextTask,
    Truncate,
    Windows,
    as_floats,
)
from keras_transformer_serving.tasks import DEFAULT, TEXT, Row, Tensor


class TextClassificationTask(Classifier, TextTask):
    """The classification of texts or pairs of texts, or a regression."""

    def __call__(  # type: ignore[override]
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
            ValueError: if a text is too long, there are not as many second texts, or the model takes no pairs.
        """
        return self._classified(text, text_pair, batch_size, errors=errors, truncate=truncate)

    def probabilities(
        self,
        text: str | Iterable[str],
        text_pair: str | Iterable[str] | None = None,
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Return the probability of each class; arguments are as in a call.

        Returns:
            float32 (n, C), or (C,) for one string; with errors="return" a list of rows (C,) and errors.

        Raises:
            ValueError: as in a call, or if the model is a regression.
        """
        self._check_has_probabilities()
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
        options: dict[str, Any] = {"errors": errors, "truncate": truncate}
        answers = self._classified(text, text_pair, batch_size, convert=self.row_scores, **options)
        return answers if errors == "return" else as_floats(answers, len(self.config["labels"]))

    def _classified(self, text: Any, text_pair: Any, batch_size: int, **options: Any) -> Any:
        if text_pair is None:
            if self.config["symmetric"]:
                raise ValueError(
                    "`text_pair` is required, because the model compares two texts. Received: text_pair=None"
                )
            return self._answers({"text": text}, batch_size, **options)
        return self._answers({"text": text, "text_pair": text_pair}, batch_size, **options)

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs of each signature: of texts, of pairs or of both."""
        pair = (TEXT, Tensor("text_pair", "string"))
        if config["symmetric"]:
            return {DEFAULT: pair}
        return {DEFAULT: (TEXT,), "classify_pairs": pair}


class TextClassification(TextClassificationTask, TextPipeline):
    """An exported text classifier, or regression; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, None]:
        """Convert a text, or a pair of texts, to windows of ids."""
        if len(texts) == 1:
            return self._windows(self.tokenizer.tokenize(texts[0]), "text", truncate), None
        return self._pair_windows(truncate, **dict(zip(("text", "text_pair"), texts, strict=True))), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> Row:
        """Average the scores (W, C) of the windows of a text."""
        return outputs_of(outputs.get("probabilities", outputs["logits"]).mean(axis=0), self.config)
