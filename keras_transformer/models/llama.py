"""Llama and the models with its blocks: Mistral, Qwen, SmolLM and Phi-3."""

from typing import Any

import keras

from keras_transformer.layers import (
    DecoderBlock,
    FeedForward,
    MultiHeadAttention,
    RotaryPositions,
    TokenEmbedding,
)
from keras_transformer.layers.positions import rotary_scaling
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.block_arguments import causal_relation, max_length_of, one_if_equal, per_block
from keras_transformer.models.causal_language_model import CausalLanguageModel
from keras_transformer.ops.random import check_rate


@keras.saving.register_keras_serializable(package="keras_transformer")
class Llama(CausalLanguageModel):
    r"""Decoder-only language model with the blocks of Llama.

    $$h' = h + \mathrm{Attention}(\mathrm{norm}(h)), \qquad
    h'' = h' + \left(\mathrm{SiLU}(\mathrm{norm}(h')\, W_1) \odot \mathrm{norm}(h')\, V\right) W_2$$

    Queries and keys are rotated by their positions, norms are RMS norms, and there are no biases. The defaults are
    those of Llama 1. Mistral has a window, as its `relation`; Qwen 2 has `qkv_bias`, and Qwen 3 `head_norm`; SmolLM 3
    has blocks without positions.

    Args:
        vocabulary_size: the number of tokens.
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks.
        num_kv_heads: the number of key/value heads, by default `num_heads`.
        key_dim: the size of a head, by default D / `num_heads`.
        max_wavelength: the base of the rotary frequencies, `rope_theta` in `transformers`, or None for no positions; or
            a list with one for each block.
        relation: which positions may attend to which (see `relations`), by default "causal"; never to later ones. Or a
            list with one for each block, such as `["causal", SlidingWindow(1023)]` for two.
        epsilon: the epsilon of the norms.
        tied: whether the embedding matrix is also the output matrix.
        dropout: dropout rate for attention weights and the outputs of sublayers.
        pad_id: the padding id, never attended to; None for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        scaling: the scaling of rotary positions, see `layers.RotaryPositions`; or a list with one for each block.
        rotary_dim: the number of features of a head that are rotated, by default all.
        qkv_bias: whether the query, key and value projections have biases.
        head_norm: whether the query and key of each head are normalized.
        max_length: the maximum length of a text, by default that of `scaling`, if any.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: see `CausalLanguageModel`.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position

    Example:
        >>> model = Llama(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> model(keras.ops.array([[5, 6, 3]])).shape
        TensorShape([1, 3, 100])

    References:
        Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), section 2.2; Jiang et al.,
        "Mistral 7B" (2023); Yang et al., "Qwen2 Technical Report" (2024) and "Qwen3 Technical Report" (2025), sections
        2; Abdin et al., "Phi-3 Technical Report" (2024).
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
        max_wavelength: Any = 10000.0,
        relation: Any = "causal",
        epsilon: float = 1e-5,
        tied: bool = False,
        dropout: float = 0.0,
        pad_id: int | None = None,
        end_id: int = 2,
        scaling: Any = None,
        rotary_dim: int | None = None,
        qkv_bias: bool = False,
        head_norm: bool = False,
        max_length: int | None = None,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocabulary_size, num_layers, model_dim, pad_id, end_id, **kwargs)
        wavelengths = per_block("max_wavelength", max_wavelength, num_layers)
        block_relations = [causal_relation(block) for block in per_block("relation", relation, num_layers)]
        scalings = [rotary_scaling.get(block) for block in per_block("scaling", scaling, num_layers)]
        self.num_heads, self.hidden_dim = num_heads, hidden_dim
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.max_wavelength, self.scaling = one_if_equal(wavelengths), one_if_equal(scalings)
        self.relation = one_if_equal(block_relations)
        self.rotary_dim, self.qkv_bias, self.head_norm = rotary_dim, qkv_bias, head_norm
        self.max_length = max_length_of(max_length, scalings)
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
                    relation=block_relations[i],
                    position_encoding=None
                    if wavelengths[i] is None
                    else RotaryPositions(wavelengths[i], scalings[i], rotary_dim=rotary_dim, **dtype),
                    dropout=dropout,
                    qkv_bias=qkv_bias,
                    head_norm="rms" if head_norm else None,
                    head_norm_epsilon=epsilon,
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
        self.key_dim = self.blocks[0].self_attention.key_dim
