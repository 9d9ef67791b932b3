"""The position-wise feed-forward network."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers import initializers
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.quantization import matrix_arguments
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU, ½ x · (1 + erf(x / √2)).

    Keras computes it with erfc, which takes TensorFlow twice the time of erf on a CPU, but has a smaller error in types
    of 16 bits.
    """
    if keras.backend.standardize_dtype(x.dtype) != "float32":
        return keras.activations.gelu(x, approximate=False)
    return 0.5 * x * (1.0 + keras.ops.erf(x * 0.5**0.5))


# GPT uses the tanh approximation of GELU, BERT the exact GELU.
_NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": functools.partial(keras.activations.gelu, approximate=True),
}
# T5 v1.1, mT5 and Gemma gate with the tanh approximation of GELU; Shazeer's GEGLU uses the exact GELU.
_GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": keras.activations.sigmoid,
    "reglu": keras.activations.relu,
    "geglu": gelu,
    "geglu_tanh": functools.partial(keras.activations.gelu, approximate=True),
    "swiglu": keras.activations.silu,
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ConfiguredLayer):
    r"""Position-wise feed-forward network: two dense layers with an activation between them.

    $$\mathrm{FFN}(x) = f(x W_1 + b_1) W_2 + b_2$$

    In a gated network, the hidden units are multiplied by a third projection:

    $$\mathrm{FFN}(x) = (f(x W_1 + b_1) \odot (x V + c)) W_2 + b_2$$

    Args:
        hidden_dim: the number of hidden units. A gated network has 3/2 times as many weights as a plain one with the
            same `hidden_dim`.
        activation: f, an identifier for `keras.activations.get` or "gelu_tanh" (GPT); or the name of a gated network,
            given with its f: "swiglu" (SiLU), "geglu" (GELU), "geglu_tanh" (tanh approximation of GELU: T5 v1.1),
            "reglu" (ReLU), "glu" (sigmoid).
        dropout: dropout rate for hidden units.
        use_bias: whether the projections have biases.
        kernel_initializer: initializer of the matrices.
        output_initializer: initializer of W₂, by default `kernel_initializer`.
        **kwargs: arguments of `keras.layers.Layer`.

    Shapes:
        input and output: (…, D)

    Example:
        >>> FeedForward(64)(keras.ops.ones((2, 5, 16))).shape
        TensorShape([2, 5, 16])

    References:
        Vaswani et al. (2017), equation 2. Gated: Shazeer, "GLU Variants Improve Transformer" (2020), equations 5
        and 6 (without biases). In LLaMA's weights, V is called "up" and W₁ "gate".
    """

    def __init__(
        self,
        hidden_dim: int,
        activation: Any = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        output_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(hidden_dim=hidden_dim)
        self.hidden_dim = hidden_dim
        self.activation = get_activation(activation)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.output_initializer = initializers.get(output_initializer)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Create the projections for inputs of size D."""
        model_dim = input_shape[-1]
        gated = self.activation in _GATED
        output_initializer = self.output_initializer or self.kernel_initializer
        self.hidden = self._dense("hidden", self.hidden_dim, activation=activation_function(self.activation))
        self.gate = self._dense("gate", self.hidden_dim) if gated else None
        self.output_projection = self._dense("output", model_dim, output_initializer)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        hidden_shape = (*input_shape[:-1], self.hidden_dim)
        self.hidden.build(input_shape)
        if self.gate is not None:
            self.gate.build(input_shape)
        self.drop.build(hidden_shape)
        self.output_projection.build(hidden_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return FFN(inputs)."""
        hidden = self.hidden(inputs)
        if self.gate is not None:
            hidden = hidden * self.gate(inputs)
        return self.output_projection(self.drop(hidden, training=training))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return input_shape

    def _dense(
        self, name: str, size: int, initializer: Any = None, activation: Any = None
    ) -> keras.layers.Dense:
        return keras.layers.Dense(
            size,
            activation=activation,
            use_bias=self.use_bias,
            kernel_initializer=initializers.clone(initializer or self.kernel_initializer),
            name=name,
            **matrix_arguments(self.dtype_policy),
        )


def get_activation(activation: Any) -> Any:
    """Retrieve an activation: the name unchanged if it is defined in this module, else a function of Keras."""
    is_defined_here = isinstance(activation, str) and (activation in _NAMED or activation in _GATED)
    return activation if is_defined_here else keras.activations.get(activation)


def activation_function(activation: Any) -> Callable[[Tensor], Tensor]:
    """Return the function of an activation from `get_activation`; for a gated network, f."""
    return {**_NAMED, **_GATED, keras.activations.gelu: gelu}.get(activation, activation)
