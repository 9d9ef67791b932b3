"""The original Transformer, an encoder–decoder."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import separate_config
from keras_transformer.layers import (
    DecoderBlock,
    Dropout,
    EncoderBlock,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    SinusoidalPositions,
    TokenEmbedding,
    score_layers,
)
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.positions.sinusoids import LAYOUTS
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.encoder_decoder import EncoderDecoder, size_of_decoder
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of, check_positive_integer

LOWEST = -3e38  # below any logit


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(EncoderDecoder):
    r"""Encoder–decoder for sequence-to-sequence tasks, with one vocabulary and one embedding matrix E.

    $$\mathrm{logits} = \mathrm{Decoder}(\mathrm{target}, \mathrm{Encoder}(\mathrm{source}))\, E^\top$$

    Args:
        vocabulary_size: the size of the vocabulary of source and target.
        num_layers: the number of encoder blocks, and by default of decoder blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`; by default also in the decoder.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default also in the decoder.
        dropout: dropout rate for embeddings, sublayer outputs, hidden units and attention weights.
        activation: the activation of the feed-forward networks, including gated ones such as "swiglu".
        normalization: "pre" (trains without a long warm-up), "post" (as in the paper) or "sandwich" (before and after
            each sublayer).
        norm: "layer" or "rms".
        epsilon: the epsilon of the norms.
        position_encoding: "sinusoidal" (as in the paper), or "learned" with one table for the source and one for the
            target (BART).
        position_layout: the layout of the sinusoidal positions, "interleaved" (as in the paper), "halves" (Marian,
            Pegasus) or "fairseq" (M2M-100, NLLB: in halves, λ^(−2i/(D−2)), from position `pad_id` + 1).
        max_length: the number of learned positions; sinusoidal positions do not limit the length.
        scale_embedding: whether to multiply embeddings by √D.
        embedding_norm: whether to normalize the sum of embeddings and positions (BART, mBART).
        output_bias: whether to add a bias to the logits (Marian, BART).
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        hidden_dropout: dropout rate for hidden units of the feed-forward networks, by default `dropout`.
        num_decoder_layers: the number of decoder blocks, by default `num_layers`.
        num_decoder_heads: the number of attention heads in the decoder, by default `num_heads`.
        decoder_hidden_dim: the hidden size of the decoder's feed-forward networks, by default `hidden_dim`.
        pad_id: the padding id, never attended to.
        start_id: the id of the decoder's first input; may be the `pad_id`, as in Marian.
        end_id: the id that ends a sequence.
        encoder_relation: which source tokens may attend to which in self-attention (see `relations`), by default all.
        decoder_relation: which target tokens may attend to which in self-attention, by default "causal"; never to later
            ones. If it is a window, the cache of generation holds only the tokens in the window.
        score: the score of all attention layers, or its name (see `MultiHeadAttention`); each layer has separate
            weights.
        shared_query_key: whether queries and keys of self-attention have the same projection.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)} of integers. The target starts with `start_id`. Optionally
            "source_lengths" and "target_lengths" (B,), the lengths of sequences padded at the end (see
            `data.with_lengths`); for several pairs packed in a row, "source_segment_ids" and "source_positions" (B, S),
            "target_segment_ids" and "target_positions" (B, T) (see `data.translation_pairs`).

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each target position

    Raises:
        ValueError: if a number of heads does not divide `model_dim`, learned positions have no `max_length`, or
            `decoder_relation` relates a token to a later one.

    Example:
        >>> model = Transformer(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> ids = keras.ops.array([[5, 6, 3]])
        >>> model({"source_ids": ids, "target_ids": ids}).shape
        TensorShape([1, 3, 100])

    References:
        Vaswani et al., "Attention Is All You Need" (2017); Lewis et al., "BART" (2020); Liu et al., "mBART" (2020);
        Fan et al., "Beyond English-Centric Multilingual Machine Translation" (M2M-100, 2020); Zhang et al., "PEGASUS"
        (2020).
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        num_heads: int = 8,
        model_dim: int = 512,
        hidden_dim: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        normalization: str = "pre",
        norm: str = "layer",
        *,
        epsilon: float = 1e-6,
        position_encoding: str = "sinusoidal",
        position_layout: str = "interleaved",
        max_length: int | None = None,
        scale_embedding: bool = True,
        embedding_norm: bool = False,
        output_bias: bool = False,
        attention_dropout: float | None = None,
        hidden_dropout: float | None = None,
        num_decoder_layers: int | None = None,
        num_decoder_heads: int | None = None,
        decoder_hidden_dim: int | None = None,
        pad_id: int = 0,
        start_id: int = 2,
        end_id: int = 3,
        encoder_relation: Any = None,
        decoder_relation: Any = "causal",
        score: Any = "scaled_dot_product",
        shared_query_key: bool = False,
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
        check_positive_integer(num_heads=num_heads, model_dim=model_dim, hidden_dim=hidden_dim)
        check_one_of(("sinusoidal", "learned"), position_encoding=position_encoding)
        check_one_of((*LAYOUTS, "fairseq"), position_layout=position_layout)
        is_learned = position_encoding == "learned"
        if is_learned:
            check(max_length is not None, "be passed for learned positions", max_length=max_length)
        else:
            check(model_dim % 2 == 0, "be even", model_dim=model_dim)
        self.num_heads = num_heads
        self.num_decoder_heads = size_of_decoder("num_decoder_heads", num_decoder_heads, num_heads)
        self.model_dim = model_dim
        self.hidden_dim = hidden_dim
        self.decoder_hidden_dim = size_of_decoder("decoder_hidden_dim", decoder_hidden_dim, hidden_dim)
        if num_decoder_heads is not None:
            divides = model_dim % num_decoder_heads == 0
            check(divides, "divide {model_dim}", num_decoder_heads=num_decoder_heads, model_dim=model_dim)
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.hidden_dropout = check_rate("hidden_dropout", hidden_dropout, dropout)
        self.activation = get_activation(activation)
        self.normalization = normalization
        self.norm = norm
        self.epsilon = epsilon
        self.position_encoding, self.position_layout = position_encoding, position_layout
        self.max_length = max_length if is_learned else None
        self.scale_embedding, self.embedding_norm = scale_embedding, embedding_norm
        # Stored as a config, from which each attention layer gets a separate score.
        self.score = separate_config(score_layers.get(score))
        self.shared_query_key = shared_query_key
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(
            vocabulary_size, model_dim, scale_embedding, pad_id=self._masked_id, name="embedding", **dtype
        )
        self.embedding_norms = {
            side: new_norm(norm, epsilon=epsilon, name=f"{side}_embedding_norm", **dtype)
            for side in (("encoder", "decoder") if embedding_norm else ())
        }
        self.positions = self._new_positions()
        self.drop = Dropout(dropout, name="dropout", **dtype)

        def attention(
            heads: int, name: str, relation: Any = None, shared: bool = False
        ) -> MultiHeadAttention:
            return MultiHeadAttention(
                heads,
                relation=relation,
                score=score_layers.get(dict(self.score)),
                dropout=self.attention_dropout,
                shared_query_key=shared,
                name=name,
                **dtype,
            )

        def feed_forward(size: int) -> FeedForward:
            return FeedForward(size, activation, self.hidden_dropout, name="feed_forward", **dtype)

        block = {
            "normalization": normalization,
            "norm": norm,
            "epsilon": epsilon,
            "dropout": dropout,
            "rematerialize": rematerialize == "blocks",
            **dtype,
        }
        self.encoder_blocks = [
            EncoderBlock(
                attention(num_heads, "attention", self.encoder_relation, shared_query_key),
                feed_forward(hidden_dim),
                name=f"encoder_{i}",
                **block,
            )
            for i in range(num_layers)
        ]
        self.decoder_blocks = [
            DecoderBlock(
                attention(self.num_decoder_heads, "self_attention", self.decoder_relation, shared_query_key),
                feed_forward(self.decoder_hidden_dim),
                attention(self.num_decoder_heads, "cross_attention"),
                name=f"decoder_{i}",
                **block,
            )
            for i in range(self.num_decoder_layers)
        ]
        # Only post-norm blocks normalize their output.
        final_norms = () if normalization == "post" else ("encoder_norm", "decoder_norm")
        self.final_norms = {name: new_norm(norm, epsilon=epsilon, name=name, **dtype) for name in final_norms}
        self.output_bias = (
            self.add_weight(
                shape=(vocabulary_size,), initializer="zeros", name="output_bias", dtype="float32"
            )
            if output_bias
            else None
        )
        self._build_weights()

    @classmethod
    def small(cls, vocabulary_size: int, **kwargs: Any) -> "Transformer":
        """Create a small model to train on a CPU: 3+3 layers, D 256 (7.6 million parameters for 8,000 tokens)."""
        sizes = {"num_layers": 3, "num_heads": 8, "model_dim": 256, "hidden_dim": 1024}
        return cls(vocabulary_size, **{**sizes, **kwargs})

    @classmethod
    def base(cls, vocabulary_size: int = 37000, **kwargs: Any) -> "Transformer":
        """Create the paper's base model: 6+6 layers, D 512, post-norm, ReLU (table 3: 65 million parameters)."""
        sizes = {"num_layers": 6, "num_heads": 8, "model_dim": 512, "hidden_dim": 2048, "dropout": 0.1}
        return cls(vocabulary_size, **{**sizes, "normalization": "post", **kwargs})

    @classmethod
    def big(cls, vocabulary_size: int = 37000, **kwargs: Any) -> "Transformer":
        """Create the paper's big model: 6+6 layers, D 1024, post-norm, ReLU (table 3: 213 million parameters)."""
        sizes = {"num_layers": 6, "num_heads": 16, "model_dim": 1024, "hidden_dim": 4096, "dropout": 0.3}
        return cls(vocabulary_size, **{**sizes, "normalization": "post", **kwargs})

    def logits(self, hidden: Tensor, kernel: Any = None) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D)."""
        kernel, bias = kernel if isinstance(kernel, tuple) else (kernel, self.output_bias)
        logits = self.embedding.logits(hidden, kernel)
        if bias is None:
            return logits
        # `maximum` stops XLA on a CPU from fusing the sum into the matrix–vector product and recomputing both.
        # `reshape` tells tf2onnx how many axes the bias has, which it does not know of weights in a loop in a loop.
        return ops.maximum(logits, LOWEST) + ops.reshape(bias, [-1])

    def output_kernel(self, token_ids: Sequence[int] | None = None) -> Any:
        """Return the matrix that `logits` derives from the weights; for some tokens, with their bias if any."""
        kernel = super().output_kernel(token_ids)
        if kernel is None or token_ids is None or self.output_bias is None:
            return kernel
        return kernel, ops.take(self.output_bias, ops.convert_to_tensor(token_ids, "int32"), axis=0)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "output_bias": self.output_bias is not None}

    def _new_positions(self) -> dict[str, Any]:
        """Return the position encodings of encoder and decoder, the same layer if it has no weights."""
        if self.max_length is not None:
            return {
                side: LearnedPositions(self.max_length, name=f"{side}_positions", dtype=self.dtype_policy)
                for side in ("encoder", "decoder")
            }
        is_fairseq = self.position_layout == "fairseq"
        layer = SinusoidalPositions(
            layout="halves" if is_fairseq else self.position_layout,
            endpoint=is_fairseq,
            first_position=self.pad_id + 1 if is_fairseq else 0,
            name="positions",
            dtype=self.dtype_policy,
        )
        return dict.fromkeys(("encoder", "decoder"), layer)

    def _build_weights(self) -> None:
        shape = (None, None, self.model_dim)
        for layer in (*self.positions.values(), *self.embedding_norms.values()):
            layer.build(shape)
        super()._build_weights()

    def _embed(
        self, side: str, ids: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        hidden = self.positions[side](self.embedding(ids), positions=positions)
        if side in self.embedding_norms:
            hidden = self.embedding_norms[side](hidden)
        return self.drop(hidden, training=training)
