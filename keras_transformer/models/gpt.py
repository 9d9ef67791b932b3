"""GPT: a decoder-only language model."""

from typing import Any, ClassVar

import keras

from keras_transformer.configuration import separate_config
from keras_transformer.layers import (
    DecoderBlock,
    Dropout,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    TokenEmbedding,
)
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.block_arguments import causal_relation
from keras_transformer.models.causal_language_model import CausalLanguageModel
from keras_transformer.models.model import PublishedSizes
from keras_transformer.ops.random import check_rate


@keras.saving.register_keras_serializable(package="keras_transformer")
class GPT(PublishedSizes, CausalLanguageModel):
    r"""Decoder-only language model: each position attends to itself and earlier ones, and predicts the next token.

    $$h_0 = E_w + P, \qquad h_l = \mathrm{Block}_l(h_{l-1}), \qquad P(w_{t+1} \mid w_1 \dots w_t) =
    \mathrm{softmax}(\mathrm{norm}(h_L) E^\top)$$

    E_w is the embedding of token w, and P the embedding of its position. The defaults are GPT-2's. With
    `normalization="post"` it is GPT-1, without the norm before the logits; with `position_encoding="rotary",
    norm="rms", activation="swiglu", use_bias=False` it has the blocks of later models such as Llama.

    Args:
        vocabulary_size: the number of rows of E.
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default 4 D.
        max_length: the number of learned positions; other position encodings do not limit the length.
        dropout: dropout rate for embeddings, attention weights and sublayer outputs.
        activation: the activation of the feed-forward networks, including gated ones such as "swiglu".
        normalization: "pre" (GPT-2), "post" (GPT-1) or "sandwich" (before and after each sublayer).
        norm: "layer" or "rms".
        position_encoding: "learned" (added to the embeddings), or the position encoding of attention: "rotary",
            "alibi", "relative_bias", a layer, or None.
        num_kv_heads: the number of key/value heads, see `layers.MultiHeadAttention`.
        relation: which positions may attend to which (see `relations`), by default "causal"; never to later ones.
        use_bias: whether attention and feed-forward networks have biases.
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        embedding_dropout: dropout rate for embeddings, by default `dropout`.
        epsilon: the epsilon of the norms.
        pad_id: the padding id, never attended to; None, as in GPT-1 and GPT-2, for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, T); or {"token_ids": (B, T)}, optionally with "padding_mask" (B, T), False for padding. If
            several texts are packed in one sequence, also with "segment_ids" (B, T), which restrict attention to each
            text, and "positions" (B, T), which restart in each. "lengths" (B,), the lengths of sequences padded at the
            end (see `data.with_lengths`), replace the padding mask.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position

    Example:
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> model(keras.ops.array([[5, 6, 3]])).shape
        TensorShape([1, 3, 100])

    References:
        Radford et al., "Improving Language Understanding by Generative Pre-Training" (2018), section 3.1: GPT-1.
        Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3: GPT-2. Weights are
        initialized as in GPT-2: N(0, 0.02), output projections of sublayers divided by √(2L).
    """

    # Layers, heads and D as published (the smallest GPT-2 has 124 million parameters, not 117 as in its paper).
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "gpt": {
            "vocabulary_size": 40478,
            "num_layers": 12,
            "num_heads": 12,
            "model_dim": 768,
            "max_length": 512,
            "normalization": "post",
            "pad_id": None,
            "end_id": 0,
        },
        **{
            name: {
                "vocabulary_size": 50257,
                "num_layers": layers,
                "num_heads": heads,
                "model_dim": size,
                "max_length": 1024,
                "pad_id": None,
                "end_id": 50256,
            }
            for name, layers, heads, size in (
                ("gpt2", 12, 12, 768),
                ("gpt2_medium", 24, 16, 1024),
                ("gpt2_large", 36, 20, 1280),
                ("gpt2_xl", 48, 25, 1600),
            )
        },
    }

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 12,
        num_heads: int = 12,
        model_dim: int = 768,
        hidden_dim: int | None = None,
        max_length: int | None = 1024,
        dropout: float = 0.1,
        activation: Any = "gelu_tanh",
        normalization: str = "pre",
        norm: str = "layer",
        *,
        position_encoding: Any = "learned",
        num_kv_heads: int | None = None,
        relation: Any = "causal",
        use_bias: bool = True,
        attention_dropout: float | None = None,
        embedding_dropout: float | None = None,
        epsilon: float = 1e-5,
        pad_id: int | None = 0,
        end_id: int = 3,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(vocabulary_size, num_layers, model_dim, pad_id, end_id, **kwargs)
        learned = position_encoding == "learned"
        if learned and max_length is None:
            raise ValueError("`max_length` must be passed for learned positions. Received: max_length=None")
        self.num_heads = num_heads
        self.hidden_dim = 4 * model_dim if hidden_dim is None else hidden_dim
        self.max_length = max_length if learned else None
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.embedding_dropout = check_rate("embedding_dropout", embedding_dropout, dropout)
        self.activation = get_activation(activation)
        self.normalization, self.norm = normalization, norm
        # Stored as a config, from which each attention layer gets a separate encoding.
        encoding = None if learned else attention_encodings.get(position_encoding, num_heads)
        config = separate_config(encoding)
        self.position_encoding = "learned" if learned else config
        self.num_kv_heads = num_kv_heads
        self.relation = causal_relation(relation)
        self.use_bias, self.epsilon = use_bias, epsilon
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.embedding = TokenEmbedding(
            vocabulary_size,
            model_dim,
            scale=False,
            pad_id=pad_id,
            embeddings_initializer=initializer,
            name="embedding",
            **dtype,
        )
        if learned and max_length is not None:
            self.positions = LearnedPositions(max_length, name="positions", **dtype)
        self.drop = Dropout(self.embedding_dropout, name="dropout", **dtype)
        matrices = {
            "use_bias": use_bias,
            "kernel_initializer": initializer,
            "output_initializer": keras.initializers.RandomNormal(stddev=0.02 / (2 * num_layers) ** 0.5),
            **dtype,
        }
        self.blocks = [
            DecoderBlock(
                MultiHeadAttention(
                    num_heads,
                    num_kv_heads=num_kv_heads,
                    relation=self.relation,
                    position_encoding=config,
                    dropout=self.attention_dropout,
                    name="self_attention",
                    **matrices,
                ),
                FeedForward(self.hidden_dim, activation, name="feed_forward", **matrices),
                normalization=normalization,
                norm=norm,
                epsilon=epsilon,
                dropout=dropout,
                rematerialize=rematerialize == "blocks",
                name=f"block_{i}",
                **dtype,
            )
            for i in range(num_layers)
        ]
        if normalization != "post":  # post-norm blocks normalize their output
            self.final_norm = new_norm(norm, epsilon=epsilon, name="final_norm", **dtype)
        self._build_weights()
