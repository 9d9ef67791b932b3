"""Extractive question answering."""

from __future__ import annotations

from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import SpanClassifier
from keras_transformer.pipelines.arguments import LENGTH, check_output
from keras_transformer.pipelines.base import Preprocessed
from keras_transformer.pipelines.ragged_rows import accepted_rows, first_error, utf8_error, valid_utf8
from keras_transformer.pipelines.texts import WordPipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer
from keras_transformer_serving.pipelines.question_answering import QuestionAnsweringTask
from keras_transformer_serving.pipelines.question_answering import Span as Span
from keras_transformer_serving.pipelines.texts import RIGHT, TOKENIZER_WORDS


class QuestionAnswering(QuestionAnsweringTask, WordPipeline):
    """Extractive question answering with a span classifier and its tokenizer.

    Answers are complete words of the context.

    Args:
        model: a span classifier, such as `models.SpanClassifier`.
        tokenizer: the tokenizer, with the model's vocabulary.
        max_answer_tokens: the maximum number of tokens of an answer.
        long_texts: "refuse" to raise a ValueError for a context that is too long, or "window" to split it into windows
            that overlap by half and return the answer with the highest sum of start and end logits.
        words: see `TokenClassification`.
        max_length: the maximum number of tokens, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Raises:
        ValueError: if model and tokenizer do not match, or `max_answer_tokens` is not positive.

    Example:
        >>> QuestionAnswering(model, tokenizer)("Who barks?", "A dog barks.").text
        'dog'
    """

    summary: ClassVar[str] = "It finds the answer to a question in a text."
    sequence_outputs: ClassVar[tuple[str, ...]] = ("start_logits", "end_logits")
    hub_task: ClassVar[str | None] = "question-answering"
    model_classes: ClassVar[tuple[type, ...]] = (SpanClassifier,)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        max_answer_tokens: int = 30,
        long_texts: str = "refuse",
        words: str = TOKENIZER_WORDS,
        *,
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(
            model, tokenizer, long_texts, words, max_length=max_length, truncation_side=truncation_side
        )
        check_output(model, "a span classifier, such as `models.SpanClassifier`", (None, 2, LENGTH))
        check_positive_integer(max_answer_tokens=max_answer_tokens)
        self.max_answer_tokens = max_answer_tokens

    def preprocess(self, question: Tensor, context: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert questions and contexts, strings (B,), to the model's inputs, as TensorFlow operations."""
        asked, words = self.tokenizer.tokenize(question), self._tokenize_words(context)
        ids = words.ids.merge_dims(1, 2)
        sizes = words.ends - words.starts
        has_word = tf.reduce_any(
            sizes.with_values((sizes.values > 0) & (words.ids.values.row_lengths() > 0)), axis=1
        )
        missing = tf.where(has_word, "", "`context` must contain a word. Received: none")
        error = first_error(utf8_error(question=question, context=context), missing)
        windows = self._windows(ids, "context", error, truncate, question=asked)
        asked = tf.gather(accepted_rows(asked, windows.error), windows.owner)
        state = {
            "context": valid_utf8(context),
            "starts": words.starts,
            "ends": words.ends,
            "ids": ids,
            "word_of_id": words.ids.values.value_rowids(),
            "owner": windows.owner,
            "window_start": windows.start,
            "window_length": tf.cast(windows.ids.row_lengths(), tf.int32),
            "question_length": tf.cast(asked.row_lengths(), tf.int32),
        }
        return Preprocessed(self._inputs(asked, windows.ids), windows.error, state)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the logits of each start and end (R, L)."""
        logits = self.model(inputs, training=False)
        return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return "answer", "start", "end" (characters of the context) and "probability", each (B,)."""
        starts, ends, state = outputs["start_logits"], outputs["end_logits"], batch.state
        owner, rows, accepted = state["owner"], tf.size(batch.error), batch.error == ""
        places = tf.range(tf.shape(starts)[1])
        first = (state["question_length"] + 1 + self.tokenizer.pair_separators)[:, None]
        inside = (places >= first) & (places < first + state["window_length"][:, None])
        length = places - places[:, None] + 1
        allowed = inside[:, :, None] & inside[:, None] & (length >= 1) & (length <= self.max_answer_tokens)
        sums = tf.where(allowed, starts[:, :, None] + ends[:, None], starts.dtype.min)
        size = tf.size(places)
        sums = tf.reshape(sums, [tf.size(owner), size * size])
        best, place = tf.reduce_max(sums, axis=1), tf.argmax(sums, axis=1, output_type=tf.int32)
        probability = 1 / tf.reduce_sum(tf.exp(sums - best[:, None]), axis=1)
        # The window with the largest logits.
        largest = best == tf.gather(tf.math.unsorted_segment_max(best, owner, rows), owner)
        number = tf.where(largest, tf.range(tf.size(owner)), 0)
        number = tf.math.unsorted_segment_max(number, owner, rows)  # (B,)
        offset = tf.gather(state["window_start"] - first[:, 0], number)
        offset += tf.cast(state["ids"].row_starts(), tf.int32)

        def character(token: Tensor, places: tf.RaggedTensor) -> Tensor:
            word = tf.gather(tf.concat([state["word_of_id"], [0]], axis=0), tf.where(accepted, token, 0))
            return tf.where(accepted, tf.gather(tf.concat([places.values, [0]], axis=0), word), 0)

        start = character(tf.gather(place // size, number) + offset, state["starts"])
        end = character(tf.gather(place % size, number) + offset, state["ends"])
        return {
            "answer": tf.strings.substr(state["context"], start, end - start, unit="UTF8_CHAR"),
            "start": start,
            "end": end,
            "probability": tf.gather(probability, number),
        }
