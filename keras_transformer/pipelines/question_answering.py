"""Extractive question answering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import SpanClassifier
from keras_transformer.pipelines.arguments import LENGTH, check_output
from keras_transformer.pipelines.pipeline import Arrays, Preprocessed
from keras_transformer.pipelines.ragged_rows import accepted_rows, first_error, utf8_error, valid_utf8
from keras_transformer.pipelines.texts import WordPipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer
from keras_transformer_serving.pipelines.question_answering import ANSWER, QuestionAnsweringTask, is_threshold
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
            that overlap by half and return the most probable answer of all.
        words: see `TokenClassification`.
        max_length: the maximum number of tokens, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.
        no_answer_threshold: the `no_answer_score` above which the answer is "", for a model that was trained with
            questions without an answer, as in SQuAD 2.0: 0 returns the more probable of the two, as `transformers`
            with `handle_impossible_answer=True`. By default each question is answered.
        doc_stride: the number of tokens by which windows overlap, as in `transformers`; the last window is shorter
            then.

    Example:
        >>> QuestionAnswering(model, tokenizer)("Who barks?", "A dog barks.").text
        'dog'

    References:
        Devlin et al., "BERT" (2019), section 4.3, has the score of no answer.
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
        no_answer_threshold: float | None = None,
        doc_stride: int | None = None,
    ) -> None:
        super().__init__(
            model, tokenizer, long_texts, words, max_length=max_length, truncation_side=truncation_side
        )
        check_output(model, "a span classifier, such as `models.SpanClassifier`", (None, 2, LENGTH))
        check_positive_integer(max_answer_tokens=max_answer_tokens)
        self.max_answer_tokens = max_answer_tokens
        is_valid = no_answer_threshold is None or is_threshold(no_answer_threshold)
        check(is_valid, "be a finite number or None", no_answer_threshold=no_answer_threshold)
        self.no_answer_threshold = no_answer_threshold
        if doc_stride is not None:
            check_positive_integer(doc_stride=doc_stride)
        self.doc_stride = doc_stride

    def preprocess(
        self,
        question: Tensor,
        context: Tensor,
        no_answer_threshold: Tensor | None = None,
        *,
        truncate: bool = False,
    ) -> Preprocessed:
        """Convert questions and contexts, strings (B,), to the model's inputs, as TensorFlow operations.

        Args:
            question: the questions (B,).
            context: their contexts (B,).
            no_answer_threshold: the thresholds (B,) or (1,) of no answer; by default the pipeline's.
            truncate: whether to truncate contexts that are too long.
        """
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
        if self.no_answer_threshold is not None:
            threshold = self.no_answer_threshold if no_answer_threshold is None else no_answer_threshold
            threshold = tf.convert_to_tensor(threshold, tf.float32)
            state["no_answer_threshold"] = tf.broadcast_to(threshold, tf.shape(question))
        return Preprocessed(self._inputs(asked, windows.ids), windows.error, state)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the logits of each start and end (R, L)."""
        logits = self.model(inputs, training=False)
        return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return "answer", "start", "end" (characters of the context) and "probability", each (B,).

        With a `no_answer_threshold`, also "no_answer_score" (B,).
        """
        state, accepted = batch.state, batch.error == ""
        owner, rows = state["owner"], tf.size(batch.error)
        size = tf.shape(outputs["start_logits"])[1]
        places = tf.range(size)
        first = (state["question_length"] + 1 + self.tokenizer.pair_separators)[:, None]
        inside = (places >= first) & (places < first + state["window_length"][:, None])
        read = inside | (places == 0)  # the start token, which means no answer
        starts, ends = (
            tf.nn.log_softmax(tf.where(read, outputs[name], outputs[name].dtype.min))
            for name in self.sequence_outputs
        )
        length = places - places[:, None] + 1
        allowed = inside[:, :, None] & inside[:, None] & (length >= 1) & (length <= self.max_answer_tokens)
        sums = tf.where(allowed, starts[:, :, None] + ends[:, None], starts.dtype.min)
        sums = tf.reshape(sums, [tf.size(owner), size * size])
        best, place = tf.reduce_max(sums, axis=1), tf.argmax(sums, axis=1, output_type=tf.int32)
        # The window with the most probable span.
        log_probability = tf.math.unsorted_segment_max(best, owner, rows)  # (B,)
        number = tf.where(best == tf.gather(log_probability, owner), tf.range(tf.size(owner)), 0)
        number = tf.math.unsorted_segment_max(number, owner, rows)
        offset = tf.gather(state["window_start"] - first[:, 0], number)
        offset += tf.cast(state["ids"].row_starts(), tf.int32)
        if self.no_answer_threshold is None:
            score, is_answered = {}, accepted
        else:
            no_answer = tf.math.unsorted_segment_min(starts[:, 0] + ends[:, 0], owner, rows)
            score = {"no_answer_score": no_answer - log_probability}
            is_answered = accepted & (score["no_answer_score"] <= state["no_answer_threshold"])
            log_probability = tf.where(is_answered, log_probability, no_answer)

        def character(token: Tensor, places: tf.RaggedTensor) -> Tensor:
            word = tf.gather(tf.concat([state["word_of_id"], [0]], axis=0), tf.where(accepted, token, 0))
            return tf.where(is_answered, tf.gather(tf.concat([places.values, [0]], axis=0), word), 0)

        start = character(tf.gather(place // size, number) + offset, state["starts"])
        end = character(tf.gather(place % size, number) + offset, state["ends"])
        return {
            "answer": tf.strings.substr(state["context"], start, end - start, unit="UTF8_CHAR"),
            "start": start,
            "end": end,
            "probability": tf.exp(log_probability),
            **score,
        }

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures, including thresholds; see `Pipeline`."""
        inputs = super().example_inputs(texts)
        for batch in inputs.get(ANSWER, ()):  # far from the scores, so that answers are not near ties
            batch["no_answer_threshold"] = np.resize(np.float32([1e3, -1e3]), len(batch["question"]))
        return inputs
