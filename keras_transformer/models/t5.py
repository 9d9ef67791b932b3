"""T5: an encoder–decoder with bucketed relative position biases."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.layers import (
    DecoderBlock,
    Dropout,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RelativeBias,
    TokenEmbedding,
)
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.quantization import matrix_arguments
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.encoder_decoder import EncoderDecoder, size_of_decoder
from keras_transformer.models.model import PublishedSizes
from keras_transformer.ops.random import check_rate
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer

_VERSION_1_1 = {"activation": "geglu_tanh", "tied": False}


@keras.saving.register_keras_serializable(package="keras_transformer")
class T5(PublishedSizes, EncoderDecoder):
    r"""Encoder–decoder for text-to-text tasks.

    $$s_{ij} = q_i \cdot k_j + B_{\beta(j - i)}, \qquad
    \mathrm{logits} = D^{-1/2}\, \mathrm{Decoder}(\mathrm{target}, \mathrm{Encoder}(\mathrm{source}))\, E^\top$$

    Blocks have RMS pre-norms, no biases and unscaled dot products. B is a table of relative biases, one for each bucket
    β of distances (see `layers.RelativeBias`): one table for self-attention in the encoder, one for self-attention in
    the decoder, and none for cross-attention. The defaults are those of T5-small; with `activation="geglu_tanh",
    tied=False` it is T5 v1.1, with a separate output matrix and unscaled logits.

    Args:
        vocabulary_size: the number of rows of E.
        num_layers: the number of encoder blocks, and by default of decoder blocks.
        num_heads: the number of attention heads, by default also in the decoder.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default also in the decoder.
        key_dim: the size of a head, independent of D.
        dropout: dropout rate for embeddings, attention weights, hidden units, and the outputs of sublayers and stacks.
        activation: the activation of the feed-forward networks, including gated ones such as "geglu_tanh".
        tied: whether E is also the output matrix.
        num_buckets: the number of buckets of each table B.
        max_distance: the distance from which on all distances share the last bucket.
        epsilon: the epsilon of the norms.
        num_decoder_layers: the number of decoder blocks, by default `num_layers`.
        num_decoder_heads: the number of attention heads in the decoder, by default `num_heads`.
        decoder_hidden_dim: the hidden size of the decoder's feed-forward networks, by default `hidden_dim`.
        pad_id: the padding id, never attended to.
        start_id: the id of the decoder's first input, the `pad_id` in published models.
        end_id: the id that ends a sequence.
        encoder_relation: which source tokens may attend to which in self-attention (see `relations`), by default all.
        decoder_relation: which target tokens may attend to which in self-attention, by default "causal"; never to later
            ones. If it is a window, the cache of generation holds only the tokens in the window.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)} of integers. The target starts with `start_id`. Optionally
            "source_lengths" and "target_lengths" (B,), segments and positions, see `Transformer`.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each target position

    Example:
        >>> model = T5(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32, key_dim=4)
        >>> source, target = keras.ops.array([[5, 6, 1]]), keras.ops.array([[0, 7]])
        >>> model({"source_ids": source, "target_ids": target}).shape
        TensorShape([1, 2, 100])

    References:
        Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020),
        sections 2.1 and 3.1.1; v1.1: Shazeer, "GLU Variants Improve Transformer" (2020). Weights are initialized as in
        the authors' code, which compensates for the unscaled dot products: query projections with a variance of
        1/(D · key_dim), embeddings with 1, all others with 1/(input size).
    """

    # Published sizes; the vocabulary has 32,000 pieces, 100 sentinels and 28 unused ids.
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        name: {
            "vocabulary_size": 32128,
            "num_layers": layers,
            "num_heads": heads,
            "model_dim": size,
            "hidden_dim": width,
            "key_dim": head,
            **version,
        }
        for name, layers, heads, size, width, head, version in (
            ("t5_small", 6, 8, 512, 2048, 64, {}),
            ("t5_base", 12, 12, 768, 3072, 64, {}),
            ("t5_large", 24, 16, 1024, 4096, 64, {}),
            ("t5_3b", 24, 32, 1024, 16384, 128, {}),
            ("t5_11b", 24, 128, 1024, 65536, 128, {}),
            ("v1_1_small", 8, 6, 512, 1024, 64, _VERSION_1_1),
            ("v1_1_base", 12, 12, 768, 2048, 64, _VERSION_1_1),
            ("v1_1_large", 24, 16, 1024, 2816, 64, _VERSION_1_1),
            ("v1_1_xl", 24, 32, 2048, 5120, 64, _VERSION_1_1),
            ("v1_1_xxl", 24, 64, 4096, 10240, 64, _VERSION_1_1),
        )
    }

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        num_heads: int = 8,
        model_dim: int = 512,
        hidden_dim: int = 2048,
        key_dim: int = 64,
        dropout: float = 0.1,
        activation: Any = "relu",
        tied: bool = True,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        epsilon: float = 1e-6,
        num_decoder_layers: int | None = None,
        num_decoder_heads: int | None = None,
        decoder_hidden_dim: int | None = None,
        pad_id: int = 0,
        start_id: int = 0,
        end_id: int = 1,
        encoder_relation: Any = None,
        decoder_relation: Any = "causal",
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary_size,
            num_layers,
            num_decoder_layers,
            pad_id,
            start_id,
            end_id,
            encoder_relation,
            decoder_relation,
            **kwargs,
        )
        check_positive_integer(model_dim=model_dim, key_dim=key_dim)
        self.num_heads = num_heads
        self.num_decoder_heads = size_of_decoder("num_decoder_heads", num_decoder_heads, num_heads)
        self.model_dim = model_dim
        self.hidden_dim = hidden_dim
        self.decoder_hidden_dim = size_of_decoder("decoder_hidden_dim", decoder_hidden_dim, hidden_dim)
        self.key_dim = key_dim
        self.dropout = check_rate("dropout", dropout)
        self.activation = get_activation(activation)
        self.tied = tied
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.epsilon = epsilon
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(
            vocabulary_size,
            model_dim,
            scale=False,
            pad_id=self._masked_id,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0),
            name="embedding",
            **dtype,
        )
        self.drop = Dropout(dropout, name="dropout", **dtype)
        self.encoder_bias, self.decoder_bias = (
            RelativeBias(
                heads,
                num_buckets,
                max_distance,
                bidirectional,
                keras.initializers.RandomNormal(stddev=model_dim**-0.5),
                name=name,
                **dtype,
            )
            for name, heads, bidirectional in (
                ("encoder_bias", num_heads, True),
                ("decoder_bias", self.num_decoder_heads, False),
            )
        )
        matrices = {"use_bias": False, "kernel_initializer": _fan_in(1.0), **dtype}

        def attention(
            heads: int, name: str, bias: RelativeBias | None, relation: Any = None
        ) -> MultiHeadAttention:
            return MultiHeadAttention(
                heads,
                key_dim,
                relation=relation,
                position_encoding=bias,
                score=ScaledDotProduct(scale=1.0),
                dropout=dropout,
                query_initializer=_fan_in(1 / key_dim),
                name=name,
                **matrices,
            )

        def feed_forward(size: int) -> FeedForward:
            return FeedForward(size, activation, dropout, name="feed_forward", **matrices)

        block = {
            "norm": "rms",
            "epsilon": epsilon,
            "dropout": dropout,
            "rematerialize": rematerialize == "blocks",
            **dtype,
        }
        self.encoder_blocks = [
            EncoderBlock(
                attention(num_heads, "attention", self.encoder_bias, self.encoder_relation),
                feed_forward(hidden_dim),
                name=f"encoder_{i}",
                **block,
            )
            for i in range(num_layers)
        ]
        self.decoder_blocks = [
            DecoderBlock(
                attention(self.num_decoder_heads, "self_attention", self.decoder_bias, self.decoder_relation),
                feed_forward(self.decoder_hidden_dim),
                attention(self.num_decoder_heads, "cross_attention", None),
                name=f"decoder_{i}",
                **block,
            )
            for i in range(self.num_decoder_layers)
        ]
        self.final_norms = {
            name: new_norm("rms", epsilon=epsilon, name=name, **dtype)
            for name in ("encoder_norm", "decoder_norm")
        }
        # Logits are float32.
        self.head = (
            None
            if tied
            else keras.layers.Dense(
                vocabulary_size,
                use_bias=False,
                kernel_initializer=_fan_in(1.0),
                name="head",
                **matrix_arguments("float32"),
            )
        )
        self._build_weights()

    def logits(self, hidden: Tensor, kernel: Any = None) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D)."""
        if self.head is None:
            return self.embedding.logits(hidden * self.model_dim**-0.5, kernel)
        return self.head(hidden) if kernel is None else ops.matmul(ops.cast(hidden, kernel.dtype), kernel)

    def output_kernel(self, token_ids: Sequence[int] | None = None) -> Any:
        """Return the matrix that `logits` derives from E, or that of some tokens; None for all of a separate one."""
        if self.head is None:
            return super().output_kernel(token_ids)
        if token_ids is None or self.head.quantization_mode is not None:
            return None
        kernel = ops.take(self.head.kernel, ops.convert_to_tensor(token_ids, "int32"), axis=1)
        return ops.cast(kernel, "float32")

    def _build_weights(self) -> None:
        for bias in (self.encoder_bias, self.decoder_bias):
            bias.build((None,))
        if self.head is not None:
            self.head.build((None, None, self.model_dim))
        super()._build_weights()

    def _final_norm(self, name: str, hidden: Tensor, training: bool | None = None) -> Tensor:
        return self.drop(super()._final_norm(name, hidden), training=training)


def _fan_in(scale: float) -> keras.initializers.Initializer:
    """Return a normal initializer with a variance of `scale` / (input size)."""
    return keras.initializers.VarianceScaling(scale, mode="fan_in", distribution="untruncated_normal")
