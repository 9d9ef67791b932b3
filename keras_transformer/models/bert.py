"""BERT: a bidirectional text encoder."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer import relations
from keras_transformer.layers import (
    Dropout,
    EncoderBlock,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    TokenEmbedding,
)
from keras_transformer.layers.embeddings import embed
from keras_transformer.layers.feed_forward import activation_function, get_activation
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.block_arguments import padding_arguments, real_tokens
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.models.model import Model, PublishedSizes
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_ids, check_not_negative, check_positive_integer


class Encoder(Model):
    """Base class of bidirectional encoders of token ids, with an optional pooler."""

    vocabulary_size: int
    max_length: int
    num_segments: int
    pad_id: int
    model_dim: int
    pooler: keras.layers.Dense | None

    @property
    def pooler_layers(self) -> list[keras.layers.Layer]:
        """The layers with weights of `pool`."""
        return [] if self.pooler is None else [self.pooler]

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name; "masked_positions" is for heads."""
        # Batches of `data` have segments for every encoder; one without segments ignores them.
        segments = InputSpec(self.num_segments or None, required=False, exported=self.num_segments > 1)
        return {
            "token_ids": InputSpec(self.vocabulary_size, max_length=self.max_length),
            "segment_ids": segments,
            "masked_positions": InputSpec(self.max_length, ("B", "M"), required=False),
            "lengths": InputSpec(None, ("B",), required=False),
        }

    def padding_mask(self, inputs: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the mask (B, T), False for padding."""
        ids = inputs["token_ids"] if isinstance(inputs, dict) else inputs
        return ops.not_equal(ids, self.pad_id)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor:
        """Return the mask (B, T), False for padding."""
        named = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        return real_tokens(named["token_ids"], self.padding_mask(named), named.get("lengths"))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T, D)."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape, self.model_dim)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "pooler": self.pooler is not None}


@keras.saving.register_keras_serializable(package="keras_transformer")
class BERT(PublishedSizes, Encoder):
    r"""Bidirectional encoder of token ids with learned positions and segments.

    $$h_0 = \mathrm{drop}(\mathrm{norm}(E_w + P + S_s)), \qquad h_l = \mathrm{Block}_l(h_{l-1}), \qquad
    \mathrm{pool}(h_L) = \tanh(W h_{L,0} + b)$$

    E_w is the embedding of token w, P of its position, S_s of its segment s, and L = `num_layers`.
    Models with heads: `MaskedLanguageModel`, `Pretraining`, `SequenceClassifier`,
    `TokenClassifier` and `SpanClassifier`.

    Args:
        vocabulary_size: the number of rows of E.
        num_layers: the number of blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default 4 D.
        max_length: the number of learned positions.
        num_segments: the number of segments; 0 for a model without segments (DistilBERT), which ignores "segment_ids".
        dropout: dropout rate for embeddings, attention weights and sublayer outputs.
        activation: the activation of the feed-forward networks.
        normalization: "post" (as in the paper), "pre" or "sandwich" (before and after each sublayer).
        relation: which positions may attend to which (see `relations`), by default all; "causal" as in GPT.
        epsilon: the epsilon of the norms.
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        pooler: whether the model has a pooler, which `pool` and models with `pooling="pooler"` need.
        pooler_activation: the activation of the pooler.
        embedding_dim: the size of the embeddings, by default D; embeddings of another size are projected to D
            (ALBERT).
        shared_blocks: whether all blocks share their weights (ALBERT).
        pad_id: the padding id, never attended to.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, T); or {"token_ids": (B, T)}, and optionally "segment_ids" (B, T), by default 0, and "lengths"
            (B,), the lengths of sequences padded at the end (see `data.with_lengths`).

    Shapes:
        output: (B, T, D)

    Example:
        >>> model = BERT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> model(keras.ops.array([[2, 5, 6, 3]])).shape
        TensorShape([1, 4, 16])

    References:
        Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (2019),
        section 3; Liu et al., "RoBERTa" (2019); Sanh et al., "DistilBERT" (2019); Lan et al., "ALBERT" (2020), section
        3.1. Weights are drawn from a truncated normal with a standard deviation of 0.02, as in the authors' code.
    """

    # "base" and "large" as in the paper; the others as in Turc et al., "Well-Read Students Learn Better" (2019).
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        name: {"vocabulary_size": 30522, "num_layers": layers, "num_heads": size // 64, "model_dim": size}
        for name, layers, size in (
            ("tiny", 2, 128),
            ("mini", 4, 256),
            ("small", 4, 512),
            ("medium", 8, 512),
            ("base", 12, 768),
            ("large", 24, 1024),
        )
    }

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 12,
        num_heads: int = 12,
        model_dim: int = 768,
        hidden_dim: int | None = None,
        max_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        activation: Any = "gelu",
        normalization: str = "post",
        *,
        relation: Any = None,
        epsilon: float = 1e-12,
        attention_dropout: float | None = None,
        pooler: bool = True,
        pooler_activation: Any = "tanh",
        embedding_dim: int | None = None,
        shared_blocks: bool = False,
        pad_id: int = 0,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(
            vocabulary_size=vocabulary_size,
            num_layers=num_layers,
            model_dim=model_dim,
        )
        check_not_negative(num_segments=num_segments)
        if embedding_dim is not None:
            check_positive_integer(embedding_dim=embedding_dim)
        check_ids(vocabulary_size, pad_id=pad_id)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.model_dim = model_dim
        self.hidden_dim = 4 * model_dim if hidden_dim is None else hidden_dim
        self.max_length = max_length
        self.num_segments = num_segments
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.activation = get_activation(activation)
        self.normalization = normalization
        self.relation = relations.get(relation)
        self.epsilon = epsilon
        self.pooler_activation = get_activation(pooler_activation)
        self.embedding_dim = model_dim if embedding_dim is None else embedding_dim
        self.shared_blocks = shared_blocks
        self.pad_id = pad_id
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(
            vocabulary_size,
            self.embedding_dim,
            scale=False,
            pad_id=pad_id,
            embeddings_initializer=weight_initializer(),
            name="embedding",
            **dtype,
        )
        self.positions = LearnedPositions(max_length, weight_initializer(), name="positions", **dtype)
        self.segments = (
            keras.layers.Embedding(
                num_segments, self.embedding_dim, weight_initializer(), name="segments", **dtype
            )
            if num_segments
            else None
        )
        self.embedding_norm = new_norm("layer", epsilon, name="embedding_norm", **dtype)
        self.drop = Dropout(dropout, name="dropout", **dtype)
        self.projection = (
            keras.layers.Dense(model_dim, kernel_initializer=weight_initializer(), name="projection", **dtype)
            if self.embedding_dim != model_dim
            else None
        )
        blocks = [
            EncoderBlock(
                MultiHeadAttention(
                    num_heads,
                    relation=self.relation,
                    dropout=self.attention_dropout,
                    kernel_initializer=weight_initializer(),
                    name="attention",
                    **dtype,
                ),
                FeedForward(
                    self.hidden_dim,
                    activation,
                    kernel_initializer=weight_initializer(),
                    name="feed_forward",
                    **dtype,
                ),
                normalization=normalization,
                epsilon=epsilon,
                dropout=dropout,
                rematerialize=rematerialize == "blocks",
                name=f"block_{i}",
                **dtype,
            )
            for i in range(1 if shared_blocks else num_layers)
        ]
        self.blocks = blocks * num_layers if shared_blocks else blocks
        # Only post-norm blocks normalize their output.
        self.final_norm = (
            None if normalization == "post" else new_norm("layer", epsilon, name="final_norm", **dtype)
        )
        self.pooler = (
            keras.layers.Dense(
                model_dim,
                activation=activation_function(self.pooler_activation),
                kernel_initializer=weight_initializer(),
                name="pooler",
                **dtype,
            )
            if pooler
            else None
        )
        self._build_weights()

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the last hidden states (B, T, D)."""
        named = self.named_inputs(inputs)
        ids = named["token_ids"]
        hidden = self.positions(self.embedding(ids))
        if self.segments is not None:
            segment_ids = named.get("segment_ids")
            segment_ids = ops.zeros_like(ids) if segment_ids is None else segment_ids
            hidden = hidden + embed(self.segments, segment_ids, training)
        hidden = self.drop(self.embedding_norm(hidden), training=training)
        if self.projection is not None:
            hidden = self.projection(hidden)
        padding = padding_arguments(self.padding_mask(named), named.get("lengths"))
        for block in self.blocks:
            hidden = block(hidden, **padding, training=training)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def pool(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Return the pooled hidden state (B, D) of the first token of (B, T, D)."""
        if self.pooler is None:
            raise ValueError("`pool` needs a model with a pooler. Received: pooler=False")
        return self.pooler(hidden[:, 0])

    def _build_weights(self) -> None:
        embedding_shape, shape = (None, None, self.embedding_dim), (None, None, self.model_dim)
        for layers, input_shape in (
            ((self.embedding, self.segments), (None, None)),
            ((self.positions, self.embedding_norm, self.drop, self.projection), embedding_shape),
            ((*self.blocks[: 1 if self.shared_blocks else None], self.final_norm), shape),
        ):
            for layer in layers:
                if layer is not None:
                    layer.build(input_shape)
        for layer in self.pooler_layers:
            layer.build((None, self.model_dim))
        self.built = True


def weight_initializer() -> keras.initializers.Initializer:
    """Return the initializer of matrices and embeddings in the authors' code."""
    return keras.initializers.TruncatedNormal(stddev=0.02)
