"""Transformer-XL: a decoder-only language model with a memory of earlier segments."""

from typing import Any, Self

import keras

from keras_transformer.configuration import separate_config
from keras_transformer.layers import DecoderBlock, Dropout, FeedForward, TokenEmbedding
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.layers.residual import new_norm
from keras_transformer.layers.segment_attention import SegmentAttention
from keras_transformer.models.block_arguments import causal_relation
from keras_transformer.models.causal_language_model import CausalLanguageModel
from keras_transformer.ops.random import check_rate


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerXL(CausalLanguageModel):
    r"""Decoder-only language model whose blocks also attend to their inputs of earlier calls.

    $$h_l^\tau = \mathrm{Block}_l(h_{l-1}^\tau,\ [\mathrm{sg}(m_{l-1}^\tau);\ h_{l-1}^\tau])$$

    With a `batch_size` the model is stateful, as recurrent layers of Keras with `stateful=True`: row b of each batch
    continues row b of the batch before, as `data.language_modeling(contiguous=True)` reads them, and
    `training.ResetState` resets the memory before each epoch. `with_batch_size()` copies a trained model without
    memory. Generation attends to all earlier tokens, or those of `relation`, in its cache.

    Args:
        vocabulary_size: the number of tokens.
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default 4 D.
        memory_length: the number of tokens of earlier calls to which each block attends.
        batch_size: the number of rows of a stateful model's calls; None for a model without memory.
        dropout: dropout rate for embeddings, attention weights and the outputs of sublayers.
        activation: the activation of the feed-forward networks.
        normalization: "post", as in the paper, or "pre".
        position_encoding: a relative position encoding, see `layers.MultiHeadAttention`.
        relation: which positions may attend to which (see `relations`); never to later ones.
        epsilon: the epsilon of the norms.
        pad_id: the padding id, never attended to; None for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: see `CausalLanguageModel`; a stateful model accepts no "segment_ids" and "positions".

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position

    Example:
        >>> model = TransformerXL(100, num_layers=1, num_heads=2, model_dim=16, memory_length=8, batch_size=1)
        >>> model(keras.ops.array([[5, 6, 7]])).shape, model(keras.ops.array([[8, 9, 3]])).shape
        (TensorShape([1, 3, 100]), TensorShape([1, 3, 100]))
        >>> model.reset_state()

    References:
        Dai et al., "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (2019).
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 12,
        num_heads: int = 8,
        model_dim: int = 512,
        hidden_dim: int | None = None,
        memory_length: int = 512,
        batch_size: int | None = None,
        dropout: float = 0.1,
        activation: Any = "relu",
        normalization: str = "post",
        *,
        position_encoding: Any = "relative_sinusoidal",
        relation: Any = "causal",
        epsilon: float = 1e-5,
        pad_id: int | None = 0,
        end_id: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocabulary_size, num_layers, model_dim, pad_id, end_id, **kwargs)
        self.num_heads = num_heads
        self.hidden_dim = 4 * model_dim if hidden_dim is None else hidden_dim
        self.memory_length, self.batch_size = memory_length, batch_size
        self.dropout = check_rate("dropout", dropout)
        self.activation = get_activation(activation)
        self.normalization, self.epsilon = normalization, epsilon
        # A config, from which each attention layer gets a separate encoding.
        encoding = attention_encodings.get(position_encoding, num_heads)
        self.position_encoding = separate_config(encoding)
        self.relation = causal_relation(relation)
        initializer, dtype = keras.initializers.RandomNormal(stddev=0.02), {"dtype": self.dtype_policy}
        matrices = {"kernel_initializer": initializer, **dtype}
        self.embedding = TokenEmbedding(vocabulary_size, model_dim, pad_id=pad_id, name="embedding", **dtype)
        self.drop = Dropout(dropout, name="dropout", **dtype)
        self.blocks = [
            DecoderBlock(
                SegmentAttention(
                    num_heads,
                    memory_length,
                    batch_size,
                    self.relation,
                    position_encoding=self.position_encoding,
                    dropout=dropout,
                    name="self_attention",
                    **matrices,
                ),
                FeedForward(self.hidden_dim, activation, name="feed_forward", **matrices),
                normalization=normalization,
                epsilon=epsilon,
                dropout=dropout,
                name=f"block_{i}",
                **dtype,
            )
            for i in range(num_layers)
        ]
        if normalization != "post":  # post-norm blocks normalize their output
            self.final_norm = new_norm("layer", epsilon, name="final_norm", **dtype)
        self._build_weights()

    def reset_state(self) -> None:
        """Forget the earlier calls, before the first segments of other texts."""
        for block in self.blocks:
            block.self_attention.reset_state()

    def with_batch_size(self, batch_size: int | None = None) -> Self:
        """Copy the model with an empty memory for batches of `batch_size` rows, or without memory."""
        model = type(self).from_config({**self.get_config(), "batch_size": batch_size})
        for old, new in zip(self.trainable_weights, model.trainable_weights, strict=True):
            new.assign(old)
        return model
