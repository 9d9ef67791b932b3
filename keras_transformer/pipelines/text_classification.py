"""Classification of texts and pairs of texts."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import EncoderDecoderClassifier, SequenceClassifier
from keras_transformer.pipelines.arguments import check_model, check_output
from keras_transformer.pipelines.classification import ClassifierPipeline
from keras_transformer.pipelines.pipeline import Preprocessed
from keras_transformer.pipelines.texts import TextPipeline
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.text_classification import TextClassificationTask
from keras_transformer_serving.pipelines.texts import RIGHT

_MODEL = "a classifier of texts, such as `models.SequenceClassifier`"


class TextClassification(TextClassificationTask, ClassifierPipeline, TextPipeline):
    """A pipeline of a text classifier or regression model, its tokenizer and the names of its classes.

    The outputs depend on the model's `problem_type`, as in `pipeline("text-classification")` of `transformers`:

    | `problem_type` | a call returns | `scores` are |
    |---|---|---|
    | "single_label_classification" | the most probable label | softmax of the logits |
    | "multi_label_classification" | the list of all labels above `threshold` | sigmoid of each logit |
    | "regression" | a number; for several classes the list of numbers | the logits |

    `dict(zip(classifier.labels, classifier.scores(text)))` equals the output of `transformers` for `top_k=None`, except
    for one class without a `problem_type`: it is a regression, as in training with `transformers`, whose pipeline
    returns the sigmoid of the number. `Reranking` returns this sigmoid.

    Args:
        model: such as `models.SequenceClassifier` or `models.GPTClassifier`.
        tokenizer: with the model's vocabulary; for `models.GPTClassifier` it may lack the special tokens.
        labels: a name for each class, by default its index.
        long_texts: "refuse" to raise an error for texts that are too long, or "window" to split them into windows and
            average their probabilities or numbers; for pairs, the second text is split.
        threshold: the probability above which a label is returned, if the model's `problem_type` is
            "multi_label_classification".
        max_length: the maximum number of tokens, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Example:
        >>> classifier = TextClassification(model, tokenizer, ["negative", "positive"])
        >>> classifier(["a fine film"])
        ['positive']
    """

    summary: ClassVar[str] = "It labels or rates a text, or a pair of texts."
    hub_task: ClassVar[str | None] = "text-classification"
    model_classes: ClassVar[tuple[type, ...]] = (SequenceClassifier, EncoderDecoderClassifier)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        labels: Sequence[Any] | None = None,
        long_texts: str = "refuse",
        threshold: float = 0.5,
        *,
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(model, tokenizer, long_texts, max_length, truncation_side)
        check_model(model, _MODEL, "num_classes")
        check_output(model, _MODEL, (None, model.num_classes))
        self._set_classes(labels, threshold)

    def preprocess(
        self, text: Tensor, text_pair: Tensor | None = None, truncate: bool = False
    ) -> Preprocessed:
        """Convert strings (B,), or pairs of strings, to the model's inputs, as TensorFlow operations."""
        if text_pair is None:
            return super().preprocess(text, truncate)
        return self._preprocess_pairs(truncate, text=text, text_pair=text_pair)

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Average the scores of each text's windows, and convert them to outputs; see `answers_of`."""
        scores, count = self.scores_of(outputs), tf.size(batch.error)
        return self.answers_of(tf.math.unsorted_segment_mean(scores, batch.state["owner"], count))
