"""The position-wise feed-forward network."""

from typing import Any

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.ops.dropout import check_rate

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    r"""Two affine maps with an activation between them, applied to each position alike.

    $$\mathrm{FFN}(x) = f(x W_1 + b_1) W_2 + b_2$$

    Args:
        hidden_dim: width between the two maps.
        activation: f, any that `keras.activations.get` takes.
        dropout: probability of dropping a hidden unit while training.
        use_bias: whether b₁ and b₂ exist.
        **kwargs: for `keras.layers.Layer`.

    Shapes:
        input and output: (…, D)

    Raises:
        ValueError: where `hidden_dim` is not positive or `dropout` outside [0, 1).

    Example:
        >>> FeedForward(64)(keras.ops.ones((2, 5, 16))).shape
        TensorShape([2, 5, 16])

    References:
        Vaswani et al. (2017), equation 2.
    """

    def __init__(
        self,
        hidden_dim: int,
        activation: Any = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if hidden_dim < 1:
            raise ValueError(f"`hidden_dim` must be positive. Received: hidden_dim={hidden_dim}")
        self.hidden_dim = hidden_dim
        self.activation = keras.activations.get(activation)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias = use_bias
        self.supports_masking = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create both maps for inputs of size D."""
        model_dim = input_shape[-1]
        options = {"use_bias": self.use_bias, "dtype": self.dtype_policy}
        self.hidden = keras.layers.Dense(
            self.hidden_dim, activation=self.activation, name="hidden", **options
        )
        self.output_projection = keras.layers.Dense(model_dim, name="output", **options)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        hidden_shape = (*input_shape[:-1], self.hidden_dim)
        self.hidden.build(input_shape)
        self.drop.build(hidden_shape)
        self.output_projection.build(hidden_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """FFN(inputs)."""
        return self.output_projection(self.drop(self.hidden(inputs), training=training))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The input's."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
        }
