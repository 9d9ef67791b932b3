"""Positional encodings added to attention scores."""

import abc
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions.absolute import table_initializer
from keras_transformer.layers.positions.base import PositionEncoding
from keras_transformer.ops.biases import BucketBias, LinearBias, PositionBias, check_buckets
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


class _BiasLayer(PositionEncoding):
    """Base class of encodings that are a bias."""

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_integer(num_heads=num_heads)
        self.num_heads = num_heads
        self.supports_masking = True

    def check(self, num_heads: int, key_dim: int | None) -> None:
        """Check the number of heads."""
        if self.num_heads != num_heads:
            raise ValueError(
                f"`position_encoding` must have as many heads as the attention, {num_heads}. "
                f"Received: position_encoding.num_heads={self.num_heads}"
            )

    @abc.abstractmethod
    def bias(self) -> PositionBias:
        """Return the bias for `ops.attention`."""

    def build(self, query_positions_shape: Any = None, key_positions_shape: Any = None) -> None:
        """Accept positions of any shape."""

    def call(self, query_positions: Tensor, key_positions: Tensor | None = None) -> Tensor:
        """Return the whole bias, for inspection: float32 (N, T, S) or (B, N, T, S)."""
        key_positions = query_positions if key_positions is None else key_positions
        bias = self.bias()
        queries, keys = ops.expand_dims(query_positions, -1), ops.expand_dims(key_positions, -2)
        return bias.block(bias.parameters, queries, keys)

    def compute_output_shape(
        self, query_positions_shape: Any, key_positions_shape: Any = None
    ) -> tuple[int | None, ...]:
        """Return (N, T, S) or (B, N, T, S)."""
        keys = query_positions_shape if key_positions_shape is None else key_positions_shape
        longer = max(query_positions_shape, keys, key=len)
        return (*longer[:-1], self.num_heads, query_positions_shape[-1], keys[-1])

    def compute_output_spec(self, query_positions: Any, key_positions: Any = None) -> Any:
        """Return a float32 spec under any dtype policy."""
        keys_shape = None if key_positions is None else key_positions.shape
        return keras.KerasTensor(self.compute_output_shape(query_positions.shape, keys_shape), "float32")

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """Return None: the output has no time axis."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class ALiBi(_BiasLayer):
    r"""Attention with linear biases (ALiBi): a penalty proportional to the distance of a key.

    $$s_{ij} = \frac{q_i \cdot k_j}{\sqrt{H}} - m_n\, |i - j|$$

    The layer has no weights. The slopes m_n (see `ops.biases.slopes`) differ from head to head: heads with steep slopes
    attend to near keys, those with flat slopes to far ones too. The paper's model is causal; |i − j| is the usual
    extension to both directions.

    Args:
        num_heads: N.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        query_positions: integers (T,) or (B, T).
        key_positions: integers (S,) or (B, S), by default those of the queries.

    Shapes:
        output: (N, T, S), or (B, N, T, S) where positions have a batch axis; float32

    Raises:
        ValueError: if `num_heads` is not positive.

    Example:
        >>> ALiBi(num_heads=4)(keras.ops.arange(5)).shape
        TensorShape([4, 5, 5])

    References:
        Press et al., "Train Short, Test Long: Attention with Linear Biases" (2022), section 3.
    """

    def bias(self) -> LinearBias:
        """Return the bias for `ops.attention`."""
        return LinearBias(self.num_heads)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativeBias(_BiasLayer):
    r"""T5's relative bias: a trainable scalar for each head and each bucket of distances.

    $$s_{ij} = q_i \cdot k_j + E_{\beta(j - i),\, n}$$

    For the buckets β see `ops.biases.buckets`. T5 shares one such layer between all its blocks, and does
    not scale the dot products. Share the layer between attentions in a subclassed layer or model only: Keras cannot
    load functional models whose layers share a sublayer.

    Args:
        num_heads: N.
        num_buckets: the number of buckets of both directions together.
        max_distance: the distance from which on all distances share the last bucket.
        bidirectional: True for separate buckets of keys after the query (an encoder's self-attention).
        initializer: initializer of E, by default normal with a standard deviation of 0.02.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        query_positions: integers (T,) or (B, T).
        key_positions: integers (S,) or (B, S), by default those of the queries.

    Shapes:
        output: (N, T, S), or (B, N, T, S) where positions have a batch axis; float32

    Raises:
        ValueError: if `num_heads` is not positive, or `num_buckets` and `max_distance` are incompatible.

    Example:
        >>> RelativeBias(num_heads=4)(keras.ops.arange(5)).shape
        TensorShape([4, 5, 5])

    References:
        Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (2020),
        section 2.1; after Shaw et al., "Self-Attention with Relative Position Representations" (2018).
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, **kwargs)
        check_buckets(num_buckets, max_distance, bidirectional)
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.initializer = table_initializer(initializer)

    def build(self, query_positions_shape: Any = None, key_positions_shape: Any = None) -> None:
        """Create the table in float32 under any dtype policy."""
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, self.num_heads),
            initializer=self.initializer,
            dtype="float32",
            autocast=False,
        )

    def bias(self) -> BucketBias:
        """Return the bias of a built layer for `ops.attention`."""
        return BucketBias(ops.convert_to_tensor(self.table), self.max_distance, self.bidirectional)
