"""Llama: a decoder-only language model with rotary positions, RMS norms and gated feed-forward networks."""

from typing import Any

import keras

from keras_transformer.layers import (
    DecoderBlock,
    FeedForward,
    MultiHeadAttention,
    RotaryPositions,
    TokenEmbedding,
)
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.base import causal_relation
from keras_transformer.models.causal_language_model import CausalLanguageModel
from keras_transformer.ops.random import check_rate


@keras.saving.register_keras_serializable(package="keras_transformer")
class Llama(CausalLanguageModel):
    r"""Decoder-only language model with the blocks of Llama 1 and 2.

    $$h' = h + \mathrm{Attention}(\mathrm{norm}(h)), \qquad
    h'' = h' + \left(\mathrm{SiLU}(\mathrm{norm}(h')\, W_1) \odot \mathrm{norm}(h')\, V\right) W_2$$

    Queries and keys are rotated by their positions, norms are RMS norms, and there are no biases.

    Args:
        vocabulary_size: the number of tokens.
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks.
        num_kv_heads: the number of key/value heads, by default `num_heads`.
        key_dim: the size of a head, by default D / `num_heads`.
        max_wavelength: the base of the rotary frequencies, `rope_theta` in `transformers`.
        relation: which positions may attend to which (see `relations`), by default "causal"; never to later ones.
        epsilon: the epsilon of the norms.
        tied: whether the embedding matrix is also the output matrix.
        dropout: dropout rate for attention weights and the outputs of sublayers.
        pad_id: the padding id, never attended to; None for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: see `CausalLanguageModel`.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position

    Raises:
        ValueError: if a size is not positive, an id is not in the vocabulary, or `relation` relates a token to a later
            one.

    Example:
        >>> model = Llama(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> model(keras.ops.array([[5, 6, 3]])).shape
        TensorShape([1, 3, 100])

    References:
        Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), section 2.2.
    """

    def __init__(
        self,
        vocabulary_size: int = 32000,
        num_layers: int = 32,
        num_heads: int = 32,
        model_dim: int = 4096,
        hidden_dim: int = 11008,
        num_kv_heads: int | None = None,
        key_dim: int | None = None,
        *,
        max_wavelength: float = 10000.0,
        relation: Any = "causal",
        epsilon: float = 1e-5,
        tied: bool = False,
        dropout: float = 0.0,
        pad_id: int | None = None,
        end_id: int = 2,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocabulary_size, num_layers, model_dim, pad_id, end_id, **kwargs)
        self.num_heads, self.hidden_dim = num_heads, hidden_dim
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.key_dim, self.max_wavelength = key_dim, max_wavelength
        self.relation = causal_relation(relation)
        self.epsilon, self.tied = epsilon, tied
        self.dropout = check_rate("dropout", dropout)
        self.rematerialize = check_mode(rematerialize)
        initializer, dtype = keras.initializers.RandomNormal(stddev=0.02), {"dtype": self.dtype_policy}
        matrices = {"use_bias": False, "kernel_initializer": initializer, **dtype}
        self.embedding = TokenEmbedding(
            vocabulary_size, model_dim, False, pad_id, initializer, tied, name="embedding", **dtype
        )
        self.blocks = [
            DecoderBlock(
                MultiHeadAttention(
                    num_heads,
                    key_dim,
                    num_kv_heads=num_kv_heads,
                    relation=self.relation,
                    position_encoding=RotaryPositions(max_wavelength, **dtype),
                    dropout=dropout,
                    name="self_attention",
                    **matrices,
                ),
                FeedForward(hidden_dim, "swiglu", name="feed_forward", **matrices),
                norm="rms",
                epsilon=epsilon,
                dropout=dropout,
                rematerialize=rematerialize == "blocks",
                name=f"block_{i}",
                **dtype,
            )
            for i in range(num_layers)
        ]
        self.final_norm = new_norm("rms", epsilon, name="final_norm", **dtype)
        self._build_weights()
