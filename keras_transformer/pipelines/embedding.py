"""Sentence embeddings."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_transformer.arguments import check_one_of
from keras_transformer.models.bert_heads import mean_of_tokens
from keras_transformer.pipelines import texts

POOLINGS = ("mean", "first", "pooler")


class Embedding(texts.TextPipeline):
    """A pipeline of an encoder and its tokenizer, from texts to vectors.

    Args:
        model: such as `models.BERT`.
        tokenizer: with the model's vocabulary.
        pooling: "mean" (of all tokens, including special ones), "first" (the first token) or "pooler" (the first token
            after the model's pooler).
        normalize: whether to normalise vectors to length 1, so that dot products are cosine similarities.
        long_texts: "refuse" texts that are too long, or average the vectors of windows, weighted by their numbers of
            tokens ("window").

    Raises:
        ValueError: if model and tokenizer do not match, or an argument has an unknown value.

    Example:
        >>> vectors = Embedding(model, tokenizer)(["a dog barks", "a hound bays"])
        >>> vectors[0] @ vectors[1]
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        pooling: str = "mean",
        normalize: bool = True,
        long_texts: str = "refuse",
    ) -> None:
        super().__init__(model, tokenizer, long_texts)
        check_one_of(POOLINGS, pooling=pooling)
        self.pooling = pooling
        self.normalize = normalize

    def __call__(self, given: str | Iterable[str], batch_size: int = 32) -> np.ndarray:
        """Embed texts.

        Args:
            given: a list of texts, or one string.
            batch_size: the number of rows in a batch.

        Returns:
            float32 (n, D), or (D,) for one string.

        Raises:
            ValueError: if a text is too long.
        """
        listed, one = texts.as_list(given)
        rows, owners = [], []
        for i, ids in enumerate(self._ids(listed, "given")):
            for start, end in self._windows(ids, self.encoder.max_length - 2, i, "given"):
                rows.append(self._row(ids[start:end]))
                owners.append(i)
        total = np.zeros((len(listed), self.encoder.model_dim), "float32")
        tokens = np.zeros((len(listed), 1), "float32")
        for owner, row, vector in zip(owners, rows, self._run(rows, batch_size, self.vectors), strict=True):
            total[owner] += len(row["token_ids"]) * vector
            tokens[owner] += len(row["token_ids"])
        vectors = total / tokens
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors[0] if one else vectors

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {**super().settings(), "pooling": self.pooling, "normalize": self.normalize}

    def pooled(self, hidden: Any, inputs: Any) -> Any:
        """Pool the encoder's outputs (B, T, D) for `inputs` to float32 (B, D), not normalised."""
        if self.pooling == "mean":
            return mean_of_tokens(hidden, self.encoder.padding_mask(inputs))
        pooled = hidden[:, 0] if self.pooling == "first" else self.encoder.pool(hidden)
        return keras.ops.cast(pooled, "float32")

    def vectors(self, inputs: Any) -> Any:
        """Encode and pool inputs to float32 (B, D), not normalised."""
        return self.pooled(self.encoder(inputs, training=False), inputs)
