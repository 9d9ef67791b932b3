"""Classification of the words of a text."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import TokenClassifier
from keras_transformer.pipelines.arguments import LENGTH, check_model, check_output
from keras_transformer.pipelines.base import Preprocessed
from keras_transformer.pipelines.classification import (
    check_labels,
    config_of_labels,
    labels_of,
    labels_tensor,
)
from keras_transformer.pipelines.texts import WordPipeline, utf8_error, valid_utf8
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.texts import LEFT, RIGHT, TOKENIZER_WORDS
from keras_transformer_serving.pipelines.token_classification import TaggedWord as TaggedWord
from keras_transformer_serving.pipelines.token_classification import TokenClassificationTask

_MODEL = "a classifier of tokens, such as `models.TokenClassifier`"


class TokenClassification(TokenClassificationTask, WordPipeline):
    """A pipeline of a token classifier, its tokenizer and the names of its classes.

    A word's class is predicted at its first token. The answer to a text is a list of `TaggedWord`; words without
    tokens, and with truncate=True words that are truncated, are omitted.

    Args:
        model: such as `models.TokenClassifier`.
        tokenizer: with the model's vocabulary.
        labels: a name for each class, by default its index.
        long_texts: "refuse" to raise an error for texts that are too long, or "window" to split them into windows and
            classify each token in the window in which it is farthest from the edges.
        words: "tokenizer" for the words of the tokenizer, see `text.Tokenizer.tokenize_words`: punctuation is apart
            from words. "white_space" for words delimited by white space and tokenised one by one, as pipelines of
            earlier versions do.
        max_length: the maximum number of tokens, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Raises:
        ValueError: if model, tokenizer and labels do not match.

    Example:
        >>> TokenClassification(model, tokenizer, ["O", "PER"])("said Ada")
        [TaggedWord(word='said', label='O', …), TaggedWord(word='Ada', label='PER', …)]
    """

    summary: ClassVar[str] = "It labels each word of a text."
    sequence_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    hub_task: ClassVar[str | None] = "token-classification"
    model_classes: ClassVar[tuple[type, ...]] = (TokenClassifier,)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        labels: Sequence[Any] | None = None,
        long_texts: str = "refuse",
        words: str = TOKENIZER_WORDS,
        *,
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(
            model, tokenizer, long_texts, words, max_length=max_length, truncation_side=truncation_side
        )
        check_model(model, _MODEL, "num_classes")
        check_output(model, _MODEL, (None, LENGTH, model.num_classes))
        self.labels = check_labels(labels, model.num_classes)

    def preprocess(self, text: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert strings (B,) to the model's inputs, as TensorFlow operations."""
        words = self._tokenize_words(text)
        ids = words.ids.values  # (all words, None)
        ids_of_texts = words.ids.merge_dims(1, 2)
        starts, ends = words.starts, words.ends
        if truncate:  # omit the words that are truncated
            begin = ids_of_texts.row_starts()
            if self.truncation_side == LEFT:
                begin += tf.maximum(ids_of_texts.row_lengths() - self._max_ids(1), 0)
            place = ids.row_starts() - tf.gather(begin, starts.value_rowids())
            kept = starts.with_values((place >= 0) & (place < self._max_ids(1)))
            starts, ends = (tf.ragged.boolean_mask(values, kept) for values in (starts, ends))
            ids = tf.ragged.boolean_mask(ids, kept.values)
            ids_of_texts = starts.with_values(ids).merge_dims(1, 2)
        windows = self._windows(ids_of_texts, "text", utf8_error(text=text), truncate)
        state = {
            "text": valid_utf8(text),
            "starts": starts,
            "ends": ends,
            "ids": ids,
            "places": windows.places,
        }
        return Preprocessed(self._inputs(windows.ids), windows.error, state)

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return "words", "labels", "probabilities", "starts" and "ends" (B, W), padded with "", −1 or 0."""
        ids, windows = batch.state["ids"], batch.state["places"]
        lengths = tf.cast(windows.row_lengths(), tf.int32)
        probabilities = tf.RaggedTensor.from_tensor(tf.nn.softmax(outputs["logits"])[:, 1:], lengths).values
        # Classify each token in the first window in which it is farthest from the edges.
        inside = tf.ragged.range(lengths)
        depth = tf.minimum(inside, lengths[:, None] - 1 - inside).values
        rank = depth * tf.size(lengths) - tf.cast(inside.value_rowids(), tf.int32)
        places, count = windows.values, tf.size(ids.values)
        deepest = rank == tf.gather(tf.math.unsorted_segment_max(rank, places, count), places)
        probabilities = tf.math.unsorted_segment_sum(
            tf.where(deepest[:, None], probabilities, 0.0), places, count
        )
        places, ends = batch.state["starts"], batch.state["ends"]
        is_kept = (ids.row_lengths() > 0) & (ends.values > places.values)
        word_probabilities = tf.gather(probabilities, tf.boolean_mask(ids.row_starts(), is_kept))
        labels = tf.gather(labels_tensor(self.labels), tf.argmax(word_probabilities, axis=-1))
        kept = places.with_values(is_kept)
        places, ends = (tf.ragged.boolean_mask(values, kept) for values in (places, ends))
        texts = tf.gather(batch.state["text"], places.value_rowids())
        words = tf.strings.substr(texts, places.values, ends.values - places.values, unit="UTF8_CHAR")

        def dense(values: Tensor, padding_value: Any) -> Tensor:
            return places.with_values(values).to_tensor(padding_value)

        return {
            "words": dense(words, ""),
            "labels": dense(labels, "" if labels.dtype == tf.string else -1),
            "probabilities": dense(tf.reduce_max(word_probabilities, axis=-1), 0.0),
            "starts": dense(places.values, -1),
            "ends": dense(ends.values, -1),
        }

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the names of the classes."""
        return config_of_labels(self.labels)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the names of the classes."""
        return {} if "labels" in settings else {"labels": labels_of(config)}
