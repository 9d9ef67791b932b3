"""Scores and alignments of given outputs."""

import abc
from collections.abc import Iterable
from typing import Any, ClassVar

import tensorflow as tf

from keras_transformer import generation
from keras_transformer.generation import samplers
from keras_transformer.pipelines import arguments, batched
from keras_transformer.pipelines.base import Pipeline, Preprocessed
from keras_transformer.pipelines.outputs import Alignment, Answer
from keras_transformer.pipelines.texts import accepted_rows, first_error, utf8_error
from keras_transformer.text.tokenizers.strings import to_string_tensor
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.errors import Errors, RowErrors


class ScoringPipeline(Pipeline):
    """Base class of pipelines of a generating model, which scores and aligns given outputs."""

    _has_encoder: ClassVar[bool]

    def score(
        self,
        texts: Iterable[str],
        targets: Iterable[str],
        batch_size: int = 64,
        *,
        errors: Errors = "raise",
    ) -> list[Any]:
        """Score given outputs.

        Args:
            texts: a list of any length.
            targets: an output for each text.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text or target, or "return" it in place of the answer.

        Returns:
            An `Answer` for each target, including its end token.

        Raises:
            TypeError: if an argument is of another type.
            ValueError: if a text is empty or too long, a target is too long for the model's positions, or the numbers
                of texts and targets differ.

        Example:
            >>> [answer.score for answer in translator.score(["la casa"] * 2, ["the house", "a house"])]
            [-0.2, -3.1]
        """
        arguments.check_limit("batch_size", batch_size)
        texts = arguments.as_list("texts", texts)
        found_errors = RowErrors(errors)
        targets = arguments.one_for_each("targets", targets, len(texts), found_errors)
        columns = arguments.utf8_columns(found_errors, texts=texts, targets=targets)
        batch = self.preprocess_pairs(*map(to_string_tensor, columns))
        rows, inputs = batch.accepted(found_errors)
        if not rows:
            return found_errors.merge({})
        target_ids, lengths = inputs["target_ids"], inputs["target_padding_mask"].sum(axis=1)
        scores, token_scores = batched.score(self.model, inputs, batch_size)
        ranking = scores
        if isinstance(self.sampler, samplers.Beam):
            ranking = scores / self.sampler.penalties(int(lengths.max()))[lengths]
        return found_errors.merge(
            {
                row: Answer(
                    targets[row],
                    float(scores[index]),
                    float(ranking[index]),
                    target_ids[index, : lengths[index]].tolist(),
                    token_scores[index, : lengths[index]].tolist(),
                )
                for index, row in enumerate(rows)
            }
        )

    def align(self, text: str, target: str | None = None, *, layer: int = -1, head: Any = None) -> Alignment:
        """Align an output with its text by the decoder's cross-attention (see `generation.align`).

        Args:
            text: one text.
            target: an output; by default that of a call.
            layer: the index of the decoder layer.
            head: the index of a head, or several indices to average; by default all.

        Returns:
            The `Alignment`.

        Raises:
            TypeError: if an argument is of another type.
            ValueError: if the text is empty, or the model has no such weights, layer or head.

        Example:
            >>> found = translator.align("la casa")
            >>> [(piece, found.source[row.argmax()]) for piece, row in zip(found.target, found.weights)]
            [('▁the', '▁la'), ('▁house', '▁casa'), ('</s>', '</s>')]
        """
        arguments.check_text("text", text)
        arguments.check_text("target", target or "")
        inputs = self.preprocess_pairs(*map(to_string_tensor, ([text], [target or ""]))).arrays()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        if target is None:
            out = self.generate([text])
            target_ids = out.best[:, : out.lengths[0, 0]]
        weights = generation.align(self.model, source_ids, target_ids, layer=layer, head=head)[0]
        source, generated = (
            [self.tokenizer.id_to_piece(id_) for id_ in ids[0].tolist()] for ids in (source_ids, target_ids)
        )
        return Alignment(source, generated, weights)

    @abc.abstractmethod
    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids (B, None) of outputs, with end tokens, and the reasons (B,) why some have none."""

    def preprocess_pairs(self, texts: Tensor, targets: Tensor) -> Preprocessed:
        """Convert texts and given outputs, strings (B,), to the inputs of `generation.score`, as TensorFlow operations.

        Returns:
            As inputs those of `preprocess`, "target_ids", int32 (B, T), and "target_padding_mask", booleans (B, T).
            Empty texts and outputs that exceed the model's positions are refused.
        """
        batch = self.preprocess(texts)
        rows, error = self._target_rows(texts, targets)
        read, limit = tf.cast(rows.row_lengths(), tf.int32), getattr(self.model, "max_length", None) or 2**30
        sources = tf.reduce_sum(tf.cast(batch.inputs["padding_mask"], tf.int32), axis=1)
        read += 0 if self._has_encoder else sources - 1
        expected = f"`targets` must fit the model's {limit} positions. Received: "
        too_long = tf.strings.join([expected, tf.strings.as_string(read), " input tokens"])
        error = first_error(
            batch.error,
            tf.where(sources > 0, "", "`texts` must not be empty. Received: an empty text"),
            utf8_error(targets=targets),
            error,
            tf.where(read > limit, too_long, ""),
        )
        ids, real = self._padded(accepted_rows(rows, error))
        return Preprocessed({**batch.inputs, "target_ids": ids, "target_padding_mask": real}, error, {})
