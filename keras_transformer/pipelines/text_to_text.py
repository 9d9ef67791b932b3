"""Text-to-text generation with an encoder–decoder."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.pipelines import arguments
from keras_transformer.pipelines.base import Preprocessed
from keras_transformer.pipelines.generating import GeneratingPipeline
from keras_transformer.pipelines.texts import utf8_error
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.errors import RowErrors


class TextToText(GeneratingPipeline):
    """A pipeline of a model, its tokenizer and generation settings, from strings to strings.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or an `Ensemble` of some, which cannot be saved.
        tokenizer: with the model's vocabulary, such as `text.SentencePieceTokenizer`.
        generation: a sampler or its name.
        constraints: constraints on the outputs, such as `generation.NoRepeatNGram(3)`.
        max_new_tokens: the maximum number of tokens of an output.
        max_source_tokens: the maximum number of tokens of an input; longer ones raise an error.

    Raises:
        TypeError: if the model is of another type.
        ValueError: if model and tokenizer do not match, or settings contradict each other.

    Example:
        >>> translator = TextToText(model, tokenizer)
        >>> translator(["¿Dónde está la estación?"])
        ['Where is the station?']
    """

    _model_description: ClassVar[str] = "an encoder–decoder such as `models.Transformer`"
    _has_encoder: ClassVar[bool] = True
    _shared: ClassVar[tuple[str, ...]] = ("vocabulary_size", "pad_id", "start_id", "end_id")

    def preprocess(self, texts: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert texts to the inputs of the model, as TensorFlow operations.

        Args:
            texts: a string tensor (B,).
            truncate: whether to cut texts that are too long to their first tokens and the end token.

        Returns:
            As inputs "source_ids", int32 (B, S): tokens, the end id and padding; only padding for a text without tokens
            other than spaces and unknown characters. "padding_mask", booleans (B, S), False for padding. Texts that are
            too long are refused.
        """
        rows = self.tokenizer.encode_ragged(texts, add_end=True)
        if truncate:
            rows = self._truncated(rows, self.max_source_tokens - 1)
        no_text = tf.constant([self.model.pad_id, self.model.end_id, *self.tokenizer.empty_ids])
        is_text = tf.reduce_all(rows.values[:, None] != no_text, axis=-1)
        has_text = tf.reduce_any(rows.with_values(is_text), axis=1)
        rows = tf.ragged.boolean_mask(rows, rows.with_values(tf.repeat(has_text, rows.row_lengths())))
        return self._padded_inputs(rows, utf8_error(texts=texts))

    def _prefix_ids(self, prefixes: Any, count: int, errors: RowErrors) -> np.ndarray:
        """Return the ids of prefixes, integers (count, Q), padded on the right; Q = 0 for None."""
        if prefixes is None or count == 0:
            return np.zeros((count, 0), np.int32)
        prefixes = arguments.one_for_each("prefixes", prefixes, count, errors)
        (utf8,) = arguments.utf8_columns(errors, prefixes=prefixes)
        ids = self.tokenizer.encode(utf8).numpy()
        special = np.isin(ids, [*{self.model.start_id, self.model.end_id} - {self.model.pad_id}]).any(axis=1)
        for row in np.flatnonzero(special).tolist():
            message = f"`prefixes` must have no start or end token. Received: one in prefixes[{row}]"
            errors.add(row, ValueError(message))
        return ids

    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids (B, None) of outputs, with end tokens, and no errors (B,)."""
        del texts
        return self.tokenizer.encode_ragged(targets, add_end=True), tf.fill(tf.shape(targets), "")
