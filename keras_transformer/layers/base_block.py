"""The base class of encoder and decoder blocks."""

from typing import Any

import keras

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.layers import initializers, score_layers
from keras_transformer.layers.feed_forward import FeedForward, get_activation, serialize_activation
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.layers.residual import NORMALIZATIONS, NORMS, Residual
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of, check_positive_integer


class BaseBlock(keras.layers.Layer):
    """Base class of encoder and decoder blocks: their common arguments and sublayers; see `EncoderBlock`."""

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        relation: relations.Relation | str | dict[str, Any] | None,
        activation: Any = "relu",
        normalization: str = "pre",
        dropout: float = 0.0,
        norm: str = "layer",
        num_kv_heads: int | None = None,
        position_encoding: Any = None,
        score: Any = "scaled_dot_product",
        kernel: str = "auto",
        *,
        key_dim: int | None = None,
        use_bias: bool = True,
        epsilon: float = 1e-6,
        hidden_dropout: float | None = None,
        attention_dropout: float | None = None,
        qkv_bias: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        query_initializer: Any = None,
        output_initializer: Any = None,
        rematerialize: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(num_heads=num_heads)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.relation = relations.get(relation)
        self.activation = get_activation(activation)
        check_one_of(NORMALIZATIONS, normalization=normalization)
        check_one_of(tuple(NORMS), norm=norm)
        self.normalization = normalization
        self.dropout = check_rate("dropout", dropout)
        self.norm = norm
        self.num_kv_heads = num_kv_heads
        self.position_encoding = attention_encodings.get(position_encoding, num_heads)
        self.score = score_layers.get(score)
        self.kernel = kt_ops.check_kernel(kernel)
        self.key_dim = key_dim
        self.use_bias = use_bias
        self.epsilon = epsilon
        self.hidden_dropout = check_rate("hidden_dropout", hidden_dropout, dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.query_initializer = initializers.get(query_initializer)
        self.output_initializer = initializers.get(output_initializer)
        self.rematerialize = rematerialize
        self.supports_masking = True

    def _attention(
        self, name: str, model_dim: int, relation: Any = None, position_encoding: Any = None
    ) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.num_heads,
            head_dim(model_dim, self.num_heads) if self.key_dim is None else self.key_dim,
            num_kv_heads=self.num_kv_heads,
            relation=relation,
            position_encoding=position_encoding,
            # Attentions do not share weights.
            score=score_layers.get(score_layers.serialize(self.score)),
            kernel=self.kernel,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            qkv_bias=self.qkv_bias,
            kernel_initializer=self.kernel_initializer,
            query_initializer=self.query_initializer,
            output_initializer=self.output_initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def _residual(self, name: str, shape: Any) -> Residual:
        residual = Residual(
            self.normalization, self.dropout, self.epsilon, self.norm, dtype=self.dtype_policy, name=name
        )
        residual.build(shape)
        return residual

    def _feed_forward(self, shape: Any) -> FeedForward:
        layer = FeedForward(
            self.hidden_dim,
            self.activation,
            self.hidden_dropout,
            self.use_bias,
            self.kernel_initializer,
            self.output_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        layer.build(shape)
        return layer

    def _feed(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        output = self.feed_forward(self.feed_forward_residual.enter(hidden), training=training)
        return self.feed_forward_residual.leave(hidden, output, training)

    def compute_output_shape(self, inputs_shape: Any, *_: Any, **__: Any) -> Any:
        """Return the shape of the inputs."""
        return inputs_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the first input."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "relation": keras.saving.serialize_keras_object(self.relation),
            "activation": serialize_activation(self.activation),
            "normalization": self.normalization,
            "dropout": self.dropout,
            "norm": self.norm,
            "num_kv_heads": self.num_kv_heads,
            "position_encoding": keras.saving.serialize_keras_object(self.position_encoding),
            "score": score_layers.serialize(self.score),
            "kernel": self.kernel,
            "key_dim": self.key_dim,
            "use_bias": self.use_bias,
            "epsilon": self.epsilon,
            "hidden_dropout": self.hidden_dropout,
            "attention_dropout": self.attention_dropout,
            "qkv_bias": self.qkv_bias,
            "kernel_initializer": initializers.serialize(self.kernel_initializer),
            "query_initializer": initializers.serialize(self.query_initializer),
            "output_initializer": initializers.serialize(self.output_initializer),
            "rematerialize": self.rematerialize,
        }


def head_dim(model_dim: int, num_heads: int) -> int:
    """Return `model_dim` / `num_heads`, which must be an integer."""
    if model_dim % num_heads:
        raise ValueError(
            f"`num_heads` must divide `model_dim`. Received: num_heads={num_heads}, model_dim={model_dim}"
        )
    return model_dim // num_heads
