"""Gemma 1, 2 and 3 for texts."""

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
from keras_transformer.ops import scores
from keras_transformer.ops.random import check_rate


@keras.saving.register_keras_serializable(package="keras_transformer")
class Gemma(CausalLanguageModel):
    r"""Decoder-only language model with the blocks of Gemma.

    $$h_0 = \sqrt{D}\, E_w, \qquad h' = h + \mathrm{norm}_2(\mathrm{Attention}(\mathrm{norm}_1(h))), \qquad
    h'' = h' + \mathrm{norm}_4\left(\mathrm{GEGLU}(\mathrm{norm}_3(h'))\right), \qquad
    \mathrm{logits} = c \tanh(\mathrm{norm}(h_L) E^\top / c)$$

    Queries and keys are rotated by their positions, norms are RMS norms, and there are no biases. The defaults are
    those of Gemma 1, without norm₂, norm₄ and c, which `normalization="sandwich"` and `soft_cap` add. In Gemma 2,
    blocks with a window, as their `relation`, alternate with others, and scores have a soft cap. Gemma 3 has
    `head_norm`, and other rotary frequencies in blocks with a window.

    Args:
        vocabulary_size: the number of tokens.
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks.
        num_kv_heads: the number of key/value heads.
        key_dim: the size of a head.
        max_wavelength: the base of the rotary frequencies, or a list with one for each block.
        scaling: the scaling of rotary positions, see `layers.RotaryPositions`; or a list with one for each block.
        relation: which positions may attend to which (see `relations`), by default "causal"; never to later ones. Or a
            list with one for each block, such as `[SlidingWindow(4095), "causal"]` for two.
        score: the score of queries and keys, such as `ops.scores.ScaledDotProduct(scale=1 / 16, soft_cap=50.0)`.
        soft_cap: c, the bound on the absolute value of logits, or None for no bound.
        normalization: "pre", or "sandwich" to normalize the outputs of sublayers, too.
        head_norm: whether the query and key of each head are normalized.
        epsilon: the epsilon of the norms.
        dropout: dropout rate for attention weights and the outputs of sublayers.
        max_length: the maximum length of a text, by default that of `scaling`, if any.
        pad_id: the padding id, never attended to; None for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: see `CausalLanguageModel`.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position

    Example:
        >>> model = Gemma(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32, key_dim=8)
        >>> model(keras.ops.array([[5, 6, 3]])).shape
        TensorShape([1, 3, 100])

    References:
        Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology" (2024), section 2; "Gemma 2: Improving
        Open Language Models at a Practical Size" (2024), section 2; "Gemma 3 Technical Report" (2025), section 2.
    """

    def __init__(
        self,
        vocabulary_size: int = 256000,
        num_layers: int = 18,
        num_heads: int = 8,
        model_dim: int = 2048,
        hidden_dim: int = 16384,
        num_kv_heads: int = 1,
        key_dim: int = 256,
        *,
        max_wavelength: Any = 10000.0,
        scaling: Any = None,
        relation: Any = "causal",
        score: Any = "scaled_dot_product",
        soft_cap: float | None = None,
        normalization: str = "pre",
        head_norm: bool = False,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        max_length: int | None = None,
        pad_id: int | None = 0,
        end_id: int = 1,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocabulary_size, num_layers, model_dim, pad_id, end_id, **kwargs)
        wavelengths = per_block("max_wavelength", max_wavelength, num_layers)
        block_relations = [causal_relation(block) for block in per_block("relation", relation, num_layers)]
        scalings = [rotary_scaling.get(block) for block in per_block("scaling", scaling, num_layers)]
        self.num_heads, self.num_kv_heads, self.key_dim = num_heads, num_kv_heads, key_dim
        self.hidden_dim = hidden_dim
        self.max_wavelength, self.scaling = one_if_equal(wavelengths), one_if_equal(scalings)
        self.relation = one_if_equal(block_relations)
        self.score, self.soft_cap = scores.get(score), soft_cap
        self.normalization, self.head_norm, self.epsilon = normalization, head_norm, epsilon
        self.dropout = check_rate("dropout", dropout)
        self.max_length = max_length_of(max_length, scalings)
        self.rematerialize = check_mode(rematerialize)
        initializer, dtype = keras.initializers.RandomNormal(stddev=0.02), {"dtype": self.dtype_policy}
        matrices = {"use_bias": False, "kernel_initializer": initializer, **dtype}
        self.embedding = TokenEmbedding(
            vocabulary_size,
            model_dim,
            pad_id=pad_id,
            embeddings_initializer=initializer,
            soft_cap=soft_cap,
            name="embedding",
            **dtype,
        )
        self.blocks = [
            DecoderBlock(
                MultiHeadAttention(
                    num_heads,
                    key_dim,
                    num_kv_heads=num_kv_heads,
                    relation=block_relations[i],
                    position_encoding=RotaryPositions(wavelengths[i], scalings[i], **dtype),
                    score=self.score,
                    dropout=dropout,
                    head_norm="rms" if head_norm else None,
                    head_norm_epsilon=epsilon,
                    name="self_attention",
                    **matrices,
                ),
                FeedForward(hidden_dim, "geglu_tanh", name="feed_forward", **matrices),
                normalization=normalization,
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
