"""Classification of texts and pairs of texts."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from keras_transformer.models import SequenceClassifier
from keras_transformer.pipelines.arguments import check_model, check_output
from keras_transformer.pipelines.base import DEFAULT, Preprocessed
from keras_transformer.pipelines.classification import Classifier, labels_of
from keras_transformer.pipelines.texts import TextPipeline, accepted_rows, first_ids, lengths_of, utf8_error
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.errors import Errors
from keras_transformer_serving.pipelines.text_classification import check_pairs

_MODEL = "a classifier of texts, such as `models.SequenceClassifier`"


class TextClassification(Classifier, TextPipeline):
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

    model_classes: ClassVar[tuple[type, ...]] = (SequenceClassifier,)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        labels: Sequence[Any] | None = None,
        long_texts: str = "refuse",
        threshold: float = 0.5,
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        check_model(model, _MODEL, "num_classes")
        check_output(model, _MODEL, (None, model.num_classes))
        self._set_classes(labels, threshold)

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
            errors: "raise" the error of a text or pair, or "return" it in place of the result.
            truncate: whether to cut texts that are too long, keeping their first tokens; of a pair, the longer text
                first, as `transformers` does.

        Returns:
            A list of results (see above), or a single result for one string.

        Raises:
            ValueError: if a text is too long, there are not as many second texts, or the model takes no pairs.
        """
        return self._classified(self._answer_of, text, text_pair, batch_size, errors, truncate)

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
        found = self._classified(self._scores_of, text, text_pair, batch_size, errors, truncate)
        return found if errors == "return" else self._stacked(found)

    def preprocess(
        self, text: Tensor, text_pair: Tensor | None = None, truncate: bool = False
    ) -> Preprocessed:
        """Convert strings (B,), or pairs of strings, to the model's inputs, as TensorFlow operations."""
        first = self.tokenizer.tokenize(text)
        if text_pair is None:
            windows = self._windows(first, "text", utf8_error(text=text), truncate)
            inputs = self._inputs(windows.ids)
        else:
            error, second = utf8_error(text=text, text_pair=text_pair), self.tokenizer.tokenize(text_pair)
            if truncate:
                first = first_ids(first, first_lengths(lengths_of(first), lengths_of(second), self._room(2)))
            windows = self._windows(second, "text_pair", error, truncate, text=first)
            first = accepted_rows(first, windows.error)
            inputs = self._inputs(tf.gather(first, windows.owner), windows.ids)
        return Preprocessed(inputs, windows.error, {"owner": windows.owner})

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Average the scores of each text's windows, and convert them to answers; see `Classifier.answers_of`."""
        scores, count = self.scores_of(outputs), tf.size(batch.error)
        return self.answers_of(tf.math.unsorted_segment_mean(scores, batch.state["owner"], count))

    def text_inputs(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the string inputs of each signature: of texts, of pairs or of both."""
        if getattr(self.model, "symmetric", False):  # the model compares two texts
            return {DEFAULT: ("text", "text_pair")}
        if getattr(self.encoder, "num_segments", 2) < 2:
            return {DEFAULT: ("text",)}
        return {DEFAULT: ("text",), "classify_pairs": ("text", "text_pair")}

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the names of the classes."""
        return {"labels": labels_of(config)}

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {**super().settings(), "labels": self.labels, "threshold": self.threshold}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        return {**super().export_config(), "problem_type": self.problem_type}

    def _classified(
        self, convert: Any, text: Any, text_pair: Any, batch_size: int, errors: Errors, truncate: bool
    ) -> Any:
        texts = {"text": text} if text_pair is None else {"text": text, "text_pair": text_pair}
        if text_pair is not None:
            check_pairs(getattr(self.encoder, "num_segments", 2))
        elif getattr(self.model, "symmetric", False):
            raise ValueError(
                "`text_pair` must be given, as the model compares two texts. Received: text_pair=None"
            )
        return self._answers(
            batch_size, lambda row, *_: convert(row), errors=errors, truncate=truncate, **texts
        )


def first_lengths(first: Tensor, second: Tensor, room: int) -> Tensor:
    """Return the numbers of ids (B,) that are kept of first texts if pairs are cut, the longer text first.

    Args:
        first: the number of ids of each first text (B,).
        second: that of each second text (B,), which gets what is left of `room`.
        room: the maximum number of ids of both.
    """
    room = max(room, 0)
    of_longer = tf.minimum(first, room - tf.minimum(second, room // 2))
    return tf.where(first > second, of_longer, tf.minimum(first, room // 2))
