"""Sentence embeddings of an encoder such as BERT."""

from typing import Any

import keras
from keras import ops

from keras_transformer.models.bert_heads import HeadedEncoder, mean_of_tokens
from keras_transformer.models.input_checks import InputSpec, InputSpecs
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of

POOLINGS = ("mean", "first", "pooler")


@keras.saving.register_keras_serializable(package="keras_transformer")
class SentenceEncoder(HeadedEncoder):
    """Embed the N texts of each example with one encoder, for contrastive training.

    Train it on pairs of texts (`data.sentence_pairs`, N = 2) with `training.InfoNCE`; `pipelines.Embedding` then embeds
    texts with it.

    Args:
        encoder: a `BERT`.
        pooling: "mean" (of all tokens, including special ones), "first" (the first token) or "pooler" (the first token
            after the encoder's pooler).
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, N, T), or {"token_ids": (B, N, T)}.

    Shapes:
        output: (B, N, D), float32, not normalised

    Raises:
        ValueError: if `pooling` is unknown, or "pooler" for an encoder without one.

    Example:
        >>> from keras_transformer.models import BERT
        >>> model = SentenceEncoder(BERT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8))
        >>> model(keras.ops.array([[[2, 5, 6, 3], [2, 7, 3, 0]]])).shape
        TensorShape([1, 2, 16])

    References:
        Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks" (2019), section 3.
    """

    def __init__(self, encoder: Any, pooling: str = "mean", **kwargs: Any) -> None:
        check_one_of(POOLINGS, pooling=pooling)
        super().__init__(encoder, pooling == "pooler", **kwargs)
        self.pooling = pooling
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the vectors (B, N, D)."""
        ids = self.named_inputs(inputs)["token_ids"]
        _, count, length = ops.shape(ids)
        flat = {"token_ids": ops.reshape(ids, [-1, length])}
        pooled = pool(self.encoder, self.encoder(flat, training=training), flat, self.pooling)
        return ops.reshape(pooled, [-1, count, self.encoder.model_dim])

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, N, D)."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape[:2], self.encoder.model_dim)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {"token_ids": InputSpec(self.encoder.vocabulary_size, ("B", "N", "T"))}

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "pooling": self.pooling}


def pool(encoder: Any, hidden: Tensor, inputs: dict[str, Tensor], pooling: str) -> Tensor:
    """Return the vectors (B, D), float32, of an encoder's hidden states (B, T, D) for its inputs."""
    if pooling == "mean":
        return mean_of_tokens(hidden, encoder.padding_mask(inputs))
    return ops.cast(hidden[:, 0] if pooling == "first" else encoder.pool(hidden), "float32")
