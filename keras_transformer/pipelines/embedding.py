"""Texts to vectors."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_transformer.arguments import check_one_of
from keras_transformer.models.bert_heads import mean_of_tokens
from keras_transformer.pipelines import texts

POOLINGS = ("mean", "first", "pooler")


class Embedding(texts.OfTexts):
    """An encoder and its tokenizer: one vector for each text.

    Args:
        model: such as `models.BERT`.
        tokenizer: with the model's vocabulary.
        pooling: "mean" (of all tokens, special ones too), "first" (the first token's) or "pooler" (that, transformed).
        normalize: whether vectors are divided by their length, so that a product of two is a cosine.
        long_texts: whether texts that are too long are refused ("refuse"), or the vectors of windows averaged, each
            counting as many tokens as it has ("window").

    Raises:
        ValueError: where model and tokenizer do not belong together, or an argument has an unknown value.

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
        """The vectors.

        Args:
            given: a list of texts, or one string.
            batch_size: rows that run together; it changes the speed alone.

        Returns:
            float32 (n, D), or (D,) for one string.

        Raises:
            ValueError: where a text is too long.
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
        """The constructor's arguments besides model and tokenizer."""
        return {**super().settings(), "pooling": self.pooling, "normalize": self.normalize}

    def pooled(self, hidden: Any, inputs: Any) -> Any:
        """One vector for each row, float32 (B, D), of the encoder's (B, T, D) for `inputs`; not normalised."""
        if self.pooling == "mean":
            return mean_of_tokens(hidden, self.encoder.padding_mask(inputs))
        pooled = hidden[:, 0] if self.pooling == "first" else self.encoder.pool(hidden)
        return keras.ops.cast(pooled, "float32")

    def vectors(self, inputs: Any) -> Any:
        """What `pooled` makes of the encoder's inputs."""
        return self.pooled(self.encoder(inputs, training=False), inputs)
