"""ModernBERT: a bidirectional encoder of long texts."""

from typing import Any

import keras

from keras_transformer.layers import (
    Dropout,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RotaryPositions,
    TokenEmbedding,
)
from keras_transformer.layers.feed_forward import activation_function, get_activation
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.bert import Encoder, weight_initializer
from keras_transformer.models.bert_heads import mean_of_tokens
from keras_transformer.models.block_arguments import padding_arguments
from keras_transformer.ops.random import check_rate
from keras_transformer.relations import SlidingWindow
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_ids, check_one_of, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class ModernBERT(Encoder):
    r"""Bidirectional encoder with rotary positions, gated feed-forward networks and windows in most layers.

    $$h_0 = \mathrm{norm}(E_w), \qquad h_l = \mathrm{Block}_l(h_{l-1}), \qquad
    \mathrm{pool}(h_L) = \mathrm{norm}(f(W \bar h_L))$$

    Every `global_every`-th block attends to all tokens, the others to those at most `window` / 2 away. The first block
    does not normalize the input of its attention, which the embedding has normalized. Only the last layers of heads
    have biases. Models with heads are those of `BERT`; those of tokens and spans have `prediction_head=True`.

    Args:
        vocabulary_size: the number of rows of E.
        num_layers: the number of blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks.
        max_length: the maximum length of a text.
        window: the number of tokens in a window, of which half are on either side.
        global_every: the distance between blocks that attend to all tokens, beginning with the first.
        dropout: dropout rate for embeddings, attention weights, outputs of attention and hidden units.
        activation: the activation of the feed-forward networks, a gated one.
        max_wavelength: λ of the rotary positions of blocks that attend to all tokens.
        local_max_wavelength: λ of those with a window.
        epsilon: the epsilon of the norms.
        pooler: whether the model has a pooler, which `pool` and models with `pooling="pooler"` need.
        pooler_input: the vector $\bar h_L$ that is pooled, "first" or "mean" over all tokens.
        pooler_activation: f.
        pad_id: the padding id, never attended to.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, T); or {"token_ids": (B, T)}, and optionally "lengths" (B,), the lengths of sequences padded at
            the end (see `data.with_lengths`), and "segment_ids", which are ignored.

    Shapes:
        output: (B, T, D)

    Example:
        >>> model = ModernBERT(100, num_layers=4, num_heads=2, model_dim=16, hidden_dim=24, pad_id=0)
        >>> model(keras.ops.array([[2, 5, 6, 3]])).shape
        TensorShape([1, 4, 16])

    References:
        Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient, and
        Long Context Finetuning and Inference" (2024), section 2.1.
    """

    num_segments = 0
    use_bias = False
    norm = "layer_without_bias"

    def __init__(
        self,
        vocabulary_size: int = 50368,
        num_layers: int = 22,
        num_heads: int = 12,
        model_dim: int = 768,
        hidden_dim: int = 1152,
        max_length: int = 8192,
        window: int = 128,
        global_every: int = 3,
        dropout: float = 0.0,
        activation: Any = "geglu",
        *,
        max_wavelength: float = 160000.0,
        local_max_wavelength: float = 10000.0,
        epsilon: float = 1e-5,
        pooler: bool = True,
        pooler_input: str = "first",
        pooler_activation: Any = "gelu",
        pad_id: int = 50283,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(
            vocabulary_size=vocabulary_size,
            num_layers=num_layers,
            model_dim=model_dim,
            hidden_dim=hidden_dim,
            max_length=max_length,
            window=window,
            global_every=global_every,
        )
        check_one_of(("first", "mean"), pooler_input=pooler_input)
        check_ids(vocabulary_size, pad_id=pad_id)
        self.vocabulary_size, self.num_layers, self.num_heads = vocabulary_size, num_layers, num_heads
        self.model_dim, self.embedding_dim, self.hidden_dim = model_dim, model_dim, hidden_dim
        self.max_length, self.window, self.global_every = max_length, window, global_every
        self.dropout = check_rate("dropout", dropout)
        self.activation = get_activation(activation)
        self.max_wavelength, self.local_max_wavelength = max_wavelength, local_max_wavelength
        self.epsilon, self.pad_id = epsilon, pad_id
        self.pooler_input, self.pooler_activation = pooler_input, get_activation(pooler_activation)
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        matrices = {"use_bias": False, "kernel_initializer": weight_initializer(), **dtype}
        self.embedding = TokenEmbedding(
            vocabulary_size,
            model_dim,
            scale=False,
            pad_id=pad_id,
            embeddings_initializer=weight_initializer(),
            name="embedding",
            **dtype,
        )
        self.embedding_norm = new_norm(self.norm, epsilon, name="embedding_norm", **dtype)
        self.drop = Dropout(dropout, name="dropout", **dtype)
        self.blocks = [
            EncoderBlock(
                MultiHeadAttention(
                    num_heads,
                    relation=SlidingWindow(window // 2, window // 2) if i % global_every else None,
                    position_encoding=RotaryPositions(
                        local_max_wavelength if i % global_every else max_wavelength, **dtype
                    ),
                    dropout=dropout,
                    name="attention",
                    **matrices,
                ),
                FeedForward(hidden_dim, activation, dropout, name="feed_forward", **matrices),
                normalization="pre" if i else ("none", "pre"),
                norm=self.norm,
                epsilon=epsilon,
                rematerialize=rematerialize == "blocks",
                name=f"block_{i}",
                **dtype,
            )
            for i in range(num_layers)
        ]
        self.final_norm = new_norm(self.norm, epsilon, name="final_norm", **dtype)
        self.pooler = keras.layers.Dense(model_dim, name="pooler", **matrices) if pooler else None
        self.pooler_norm = new_norm(self.norm, epsilon, name="pooler_norm", **dtype) if pooler else None
        self._build_weights()

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the last hidden states (B, T, D)."""
        named = self.named_inputs(inputs)
        hidden = self.embedding_norm(self.embedding(named["token_ids"], training=training))  # (B, T, D)
        hidden = self.drop(hidden, training=training)
        padding = padding_arguments(self.padding_mask(named), named.get("lengths"))
        for block in self.blocks:
            hidden = block(hidden, **padding, training=training)
        return self.final_norm(hidden)

    @property
    def pooler_layers(self) -> list[keras.layers.Layer]:
        """The layers with weights of `pool`."""
        return [layer for layer in (self.pooler, self.pooler_norm) if layer is not None]

    def pool(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Return the pooled hidden state (B, D) of (B, T, D), of which the mask (B, T) is False for padding."""
        if self.pooler is None or self.pooler_norm is None:
            raise ValueError("`pool` needs a model with a pooler. Received: pooler=False")
        if self.pooler_input == "first" or padding_mask is None:
            pooled = hidden[:, 0]
        else:
            pooled = mean_of_tokens(hidden, padding_mask)
        return self.pooler_norm(activation_function(self.pooler_activation)(self.pooler(pooled)))

    def _build_weights(self) -> None:
        shape = (None, None, self.model_dim)
        self.embedding.build((None, None))
        for layer in (self.embedding_norm, self.drop, *self.blocks, self.final_norm):
            layer.build(shape)
        for layer in self.pooler_layers:
            layer.build((None, self.model_dim))
        self.built = True
