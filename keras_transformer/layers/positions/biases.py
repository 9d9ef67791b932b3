"""Position encodings that are added to attention scores: the biases of `ops` as layers with weights."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions.absolute import table_initializer
from keras_transformer.layers.positions.position_encoding import PositionEncoding
from keras_transformer.ops.biases import BucketBias, LinearBias, PositionBias, check_buckets
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class BiasLayer(PositionEncoding, PositionBias):
    """Base class of position encodings that are biases for `ops.attention`.

    Subclasses implement `block` of `ops.PositionBias`. A subclass with trainable weights creates them in `build`,
    returns them as `parameters` and implements `backward`.

    Args:
        num_heads: N.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        query_positions: integers (T,) or (B, T).
        key_positions: integers (S,) or (B, S), by default `query_positions`.

    Shapes:
        output: the full bias, for inspection: (N, T, S), or (B, N, T, S) if positions have a batch axis; float32
    """

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

    def bias(self) -> PositionBias:
        """Return the layer itself, a bias for `ops.attention`."""
        return self

    def build(self, query_positions_shape: Any = None, key_positions_shape: Any = None) -> None:
        """Accept positions of any shape."""

    def call(self, query_positions: Tensor, key_positions: Tensor | None = None) -> Tensor:
        """Return the full bias, for inspection: float32 (N, T, S) or (B, N, T, S)."""
        key_positions = query_positions if key_positions is None else key_positions
        queries, keys = ops.expand_dims(query_positions, -1), ops.expand_dims(key_positions, -2)
        return self.block(self.parameters, queries, keys)

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
class ALiBi(BiasLayer, LinearBias):
    """Attention with linear biases (ALiBi): `ops.LinearBias` as a position encoding.

    The layer has no weights. Heads with steep slopes attend to near keys; heads with flat slopes also to distant keys.
    The paper's model is causal; |i − j| is the usual extension to both directions.

    Args:
        num_heads: N.
        **kwargs: arguments of `BiasLayer`.

    Example:
        >>> ALiBi(num_heads=4)(keras.ops.arange(5)).shape
        TensorShape([4, 5, 5])
    """


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativeBias(BiasLayer, BucketBias):
    """T5's relative bias: `ops.BucketBias` as a position encoding with a trainable table.

    T5 shares one such layer between all blocks, and does not scale the dot products. Share the layer between attention
    layers of a subclassed layer or model only: Keras cannot load functional models whose layers share a sublayer.

    Args:
        num_heads: N.
        num_buckets: the number of buckets of both directions together.
        max_distance: see `ops.BucketBias`.
        bidirectional: see `ops.BucketBias`; True for an encoder's self-attention.
        initializer: initializer of the table, by default normal with a standard deviation of 0.02.
        **kwargs: arguments of `BiasLayer`.

    Raises:
        ValueError: if `num_buckets` and `max_distance` are incompatible.

    Example:
        >>> RelativeBias(num_heads=4)(keras.ops.arange(5)).shape
        TensorShape([4, 5, 5])
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
