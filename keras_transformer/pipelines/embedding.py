"""Sentence embeddings."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.models.sentence_encoder import POOLINGS, SentenceEncoder, pool
from keras_transformer.pipelines.base import BATCH, Axes, Preprocessed
from keras_transformer.pipelines.texts import TextPipeline, utf8_error
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of
from keras_transformer_serving.pipelines.errors import Errors


class Embedding(TextPipeline):
    """A pipeline of an encoder and its tokenizer, from texts to vectors.

    Args:
        model: such as `models.BERT`, or a `models.SentenceEncoder`.
        tokenizer: with the model's vocabulary.
        pooling: "mean" (of all tokens, including special ones), "first" (the first token) or "pooler" (the first token
            after the model's pooler). By default that of a `SentenceEncoder`, otherwise "mean".
        normalize: whether to normalise vectors to length 1, so that dot products are cosine similarities.
        long_texts: "refuse" texts that are too long, or average the vectors of windows, weighted by their numbers of
            tokens ("window").

    Raises:
        ValueError: if model and tokenizer do not match, an argument has an unknown value, or `pooling` is not that of
            a `SentenceEncoder`.

    Example:
        >>> vectors = Embedding(model, tokenizer)(["a dog barks", "a hound bays"])
        >>> vectors[0] @ vectors[1]
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        pooling: str | None = None,
        normalize: bool = True,
        long_texts: str = "refuse",
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        trained = model.pooling if isinstance(model, SentenceEncoder) else None
        self.pooling = trained or "mean" if pooling is None else pooling
        check_one_of(POOLINGS if trained is None else (trained,), pooling=self.pooling)
        self.normalize = normalize

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Embed texts.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens.

        Returns:
            float32 (n, D), or (D,) for one string; with errors="return" a list of vectors and errors.

        Raises:
            ValueError: if a text is too long.
        """
        rows = self._answers(
            batch_size, lambda row, _text: row["embedding"], errors=errors, truncate=truncate, text=text
        )
        if errors == "return":
            return rows
        return np.array(rows, "float32").reshape([-1, self.encoder.model_dim][isinstance(text, str) :])

    def preprocess(self, text: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert strings (B,) to the model's inputs, as TensorFlow operations."""
        windows = self._windows(self.tokenizer.tokenize(text), "text", utf8_error(text=text), truncate)
        state = {"owner": windows.owner, "length": windows.ids.row_lengths() + 2}
        return Preprocessed(self._inputs(windows.ids), windows.error, state)

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the hidden states (R, L, D), and the pooled vectors (R, D), plain and normalised if asked."""
        hidden = self.encoder(inputs, training=False)
        pooled = pool(self.encoder, hidden, inputs, self.pooling)
        embedding = keras.ops.normalize(pooled) if self.normalize else pooled
        return {"last_hidden_state": hidden, "pooled": pooled, "sentence_embedding": embedding}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Average the vectors of each text's windows: "embedding" (B, D)."""
        weights = tf.cast(batch.state["length"], tf.float32)[:, None]
        total, tokens = (
            tf.math.unsorted_segment_sum(values, batch.state["owner"], tf.size(batch.error))
            for values in (weights * outputs["pooled"], weights)
        )
        mean = total / tokens
        return {"embedding": tf.math.l2_normalize(mean, axis=-1) if self.normalize else mean}

    @property
    def graph_outputs(self) -> Axes:
        """The outputs of the model's graph and the names of their first axes."""
        vectors = ("pooled", "sentence_embedding")
        return {"last_hidden_state": [BATCH, "sequence_length"], **{name: [BATCH] for name in vectors}}

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {**super().settings(), "pooling": self.pooling, "normalize": self.normalize}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        return {**super().export_config(), "model_dim": self.encoder.model_dim}
