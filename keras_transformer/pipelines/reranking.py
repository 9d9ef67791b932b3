"""Reranking with a cross-encoder."""

from typing import Any, ClassVar

import keras

from keras_transformer.interop import sentence_transformers, sentence_transformers_modules
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import EncoderDecoderClassifier, SequenceClassifier
from keras_transformer.pipelines.arguments import check_model, check_output
from keras_transformer.pipelines.pipeline import Preprocessed
from keras_transformer.pipelines.texts import TextPipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of
from keras_transformer_serving.pipelines.reranking import RankedText as RankedText
from keras_transformer_serving.pipelines.reranking import RerankingTask
from keras_transformer_serving.pipelines.texts import RIGHT

_MODEL = "a classifier of texts with one class, such as `models.SequenceClassifier`"
_VERSION = "5.0.0"  # of `sentence-transformers`, whose form of config.json is written
_ACTIVATIONS = ("sigmoid", "linear")


class Reranking(RerankingTask, TextPipeline):
    r"""A pipeline of a cross-encoder, a model that reads a query and a text together, and its tokenizer.

    $$\mathrm{score} = f(\mathrm{logit}(q, x))$$

    Args:
        model: with one logit for each pair of texts, such as a `models.SequenceClassifier` with one class.
        tokenizer: with the model's vocabulary.
        activation: f, "sigmoid" or "linear". The order of texts does not depend on it.
        long_texts: "refuse" to raise an error for texts that are too long with their query, "truncate" to cut the
            longer of the two first, or "window" to split texts into windows that overlap by half and take the largest
            score.
        max_length: the maximum number of tokens of a query and a text, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Raises:
        ValueError: if the model has several classes, or model and tokenizer do not match.

    Example:
        >>> reranker = Reranking(model, tokenizer)
        >>> reranker.rank("who barks?", ["a cat", "a dog barks"], top_k=1)
        [RankedText(text_index=1, score=0.93)]

    References:
        Nogueira and Cho, "Passage Re-ranking with BERT" (2019), section 3. The largest score of windows: Dai and
        Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling" (2019), "MaxP".
    """

    summary: ClassVar[str] = "It scores how well a text answers a query."
    hub_task: ClassVar[str | None] = "text-ranking"
    long_text_options: ClassVar[tuple[str, ...]] = ("refuse", "window", "truncate")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        activation: str = "sigmoid",
        long_texts: str = "refuse",
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(model, tokenizer, long_texts, max_length, truncation_side)
        check_model(model, _MODEL, "num_classes")
        if model.num_classes != 1:
            raise ValueError(f"`model` must have one class. Received: num_classes={model.num_classes}")
        check_output(model, _MODEL, (None, 1))
        check_one_of(_ACTIVATIONS, activation=activation)
        self.activation = activation

    @classmethod
    def classes_of_folders(cls) -> tuple[type, ...]:
        """Return the classes of classifiers of texts, whose own pipeline is `TextClassification`."""
        return (SequenceClassifier, EncoderDecoderClassifier)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the activation and the maximum length that `sentence-transformers` takes."""
        return sentence_transformers.cross_encoder_settings(folder, config, model.encoder.max_length)

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the activation, by which `sentence-transformers` knows a `CrossEncoder`."""
        activation = sentence_transformers_modules.activation_path(self.activation)
        return {"sentence_transformers": {"activation_fn": activation, "version": _VERSION}}

    def preprocess(self, query: Tensor, text: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert queries and texts, strings (B,), to the model's inputs, as TensorFlow operations."""
        return self._preprocess_pairs(truncate, query=query, text=text)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the logits (R, 1) and the scores (R,)."""
        logits = getattr(self.model, "classify", self.model)(inputs, training=False)
        scores = keras.ops.sigmoid(logits) if self.activation == "sigmoid" else logits
        return {"logits": logits, "scores": scores[:, 0]}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return the largest score of each text's windows: "score" (B,)."""
        owner, count = batch.state["owner"], tf.size(batch.error)
        return {"score": tf.math.unsorted_segment_max(outputs["scores"], owner, count)}
