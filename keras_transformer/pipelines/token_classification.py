"""Classification of the words of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import TokenClassifier
from keras_transformer.pipelines.arguments import LENGTH, check_model, check_output
from keras_transformer.pipelines.classification import (
    check_labels,
    config_of_labels,
    labels_of,
    labels_tensor,
)
from keras_transformer.pipelines.pipeline import Preprocessed
from keras_transformer.pipelines.ragged_rows import utf8_error, valid_utf8
from keras_transformer.pipelines.texts import WordPipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of
from keras_transformer_serving.pipelines.texts import LEFT, RIGHT, TOKENIZER_WORDS
from keras_transformer_serving.pipelines.token_classification import (
    AGGREGATIONS,
    AVERAGE,
    MAX,
    OUTSIDE,
    SIMPLE,
    TokenClassificationTask,
    tag_of,
)
from keras_transformer_serving.pipelines.token_classification import TaggedWord as TaggedWord

_MODEL = "a classifier of tokens, such as `models.TokenClassifier`"


class TokenClassification(TokenClassificationTask, WordPipeline):
    """A pipeline of a token classifier, its tokenizer and the names of its classes.

    A word's class is predicted at its first token. The answer to a text is a list of `TaggedWord`; words without
    tokens, and with truncate=True words that are truncated, are omitted. With `aggregation`, adjacent words of one
    class are joined to entities, and words whose label is "O" are omitted.

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
        aggregation: None for a label of each word. For entities of words, the probabilities of a word: those of its
            "first" token, the "average" of its tokens, or those of the token with the "max" probability. "simple" for
            entities of tokens, which may be parts of words; `words` must be "tokenizer". A label that starts with "B-"
            begins an entity, and entities have labels without "B-" and "I-".
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Example:
        >>> TokenClassification(model, tokenizer, ["O", "PER"])("said Ada")
        [TaggedWord(word='said', label='O', …), TaggedWord(word='Ada', label='PER', …)]
        >>> TokenClassification(model, tokenizer, ["O", "B-PER", "I-PER"], aggregation="first")("said Ada Lovelace")
        [TaggedWord(word='Ada Lovelace', label='PER', probability=0.98, start=5, end=17)]
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
        aggregation: str | None = None,
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(
            model, tokenizer, long_texts, words, max_length=max_length, truncation_side=truncation_side
        )
        check_one_of((None, *AGGREGATIONS), aggregation=aggregation)
        check(
            aggregation != SIMPLE or words == TOKENIZER_WORDS,
            f"be {TOKENIZER_WORDS!r} where aggregation={SIMPLE!r}",
            words=words,
        )
        self.aggregation = aggregation
        check_model(model, _MODEL, "num_classes")
        check_output(model, _MODEL, (None, LENGTH, model.num_classes))
        self.labels = check_labels(labels, model.num_classes)

    def preprocess(self, text: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert strings (B,) to the model's inputs, as TensorFlow operations."""
        if self.aggregation == SIMPLE:
            words = self.tokenizer.tokenize_words(text, each_token=True)
        else:
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
        starts, ends = batch.state["starts"], batch.state["ends"]
        is_word = ids.row_lengths() > 0
        if self.aggregation != SIMPLE:  # whose tokens of white space count in entities
            is_word &= ends.values > starts.values
        probabilities = self._of_words(probabilities, ids, is_word)
        kept = starts.with_values(is_word)
        starts, ends = (tf.ragged.boolean_mask(values, kept) for values in (starts, ends))
        classes, best = tf.argmax(probabilities, axis=-1), tf.reduce_max(probabilities, axis=-1)
        if self.aggregation is None:
            labels = tf.gather(labels_tensor(self.labels), classes)
        else:
            starts, ends, labels, best = self._entities(starts, ends, classes, best)
        texts = tf.gather(batch.state["text"], starts.value_rowids())
        words = tf.strings.substr(texts, starts.values, ends.values - starts.values, unit="UTF8_CHAR")

        def dense(values: Tensor, padding_value: Any) -> Tensor:
            return starts.with_values(values).to_tensor(padding_value)

        return {
            "words": dense(words, ""),
            "labels": dense(labels, "" if labels.dtype == tf.string else -1),
            "probabilities": dense(best, 0.0),
            "starts": dense(starts.values, -1),
            "ends": dense(ends.values, -1),
        }

    def _of_words(self, probabilities: Tensor, ids: tf.RaggedTensor, is_word: Tensor) -> Tensor:
        """Return the probabilities (W, C) of words from those of their tokens, 0 for tokens that are truncated.

        Args:
            probabilities: those of the tokens (N, C).
            ids: the tokens of the words, ragged (all words, None).
            is_word: booleans (all words,), False for words to omit.
        """
        tokens, rows, count = ids.row_starts(), ids.value_rowids(), ids.nrows()
        if self.aggregation == AVERAGE:
            sums = tf.boolean_mask(tf.math.unsorted_segment_sum(probabilities, rows, count), is_word)
            return sums / tf.reduce_sum(sums, axis=-1, keepdims=True)
        if self.aggregation == MAX:
            best = tf.reduce_max(probabilities, axis=-1)
            is_best = best == tf.gather(tf.math.unsorted_segment_max(best, rows, count), rows)
            places = tf.where(is_best, tf.range(tf.size(best, rows.dtype)), rows.dtype.max)
            tokens = tf.math.unsorted_segment_min(places, rows, count)
        return tf.gather(probabilities, tf.boolean_mask(tokens, is_word))

    def _entities(
        self, starts: tf.RaggedTensor, ends: tf.RaggedTensor, classes: Tensor, probabilities: Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, Tensor, Tensor]:
        """Join words to entities: starts and ends (B, E), and flat labels and probabilities."""
        from keras_transformer.text.pretokenizers.characters import row_starts, shifted

        tags, begins = zip(*map(tag_of, self.labels), strict=True)
        index = {tag: number for number, tag in enumerate(dict.fromkeys(tags))}
        of_word = tf.gather(tf.constant([index[tag] for tag in tags]), classes)
        rows = starts.value_rowids()
        is_first = (
            tf.gather(tf.constant(begins), classes) | row_starts(rows) | (of_word != shifted(of_word, 1, -1))
        )
        entity = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
        means = tf.math.segment_mean(probabilities, entity)
        of_entity = tf.boolean_mask(of_word, is_first)
        # The place of an entity is that of its words with characters.
        is_placed = ends.values > starts.values
        begin = tf.math.segment_min(tf.where(is_placed, starts.values, tf.int32.max), entity)
        end = tf.math.segment_max(tf.where(is_placed, ends.values, -1), entity)
        is_inside = (of_entity != index.get(OUTSIDE, -1)) & (end > begin)
        owners = tf.boolean_mask(tf.boolean_mask(rows, is_first), is_inside)

        def entities(values: Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_value_rowids(
                tf.boolean_mask(values, is_inside), owners, starts.nrows()
            )

        labels = tf.gather(labels_tensor([*index]), tf.boolean_mask(of_entity, is_inside))
        return (
            entities(begin),
            entities(end),
            labels,
            tf.boolean_mask(means, is_inside),
        )

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the names of the classes."""
        return config_of_labels(self.labels)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the names of the classes."""
        return {} if "labels" in settings else {"labels": labels_of(config)}
