"""The residual connections of a block, with their normalisations."""

import functools
from typing import Any

import keras

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of

NORMALIZATIONS = ("pre", "post", "sandwich", "none")
NORMS = {
    "layer": keras.layers.LayerNormalization,
    "layer_without_bias": functools.partial(keras.layers.LayerNormalization, center=False),
    "rms": keras.layers.RMSNormalization,
}


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(ConfiguredLayer):
    r"""The residual connection around a sublayer f of a block: dropout, addition and normalisation.

    $$\text{pre: } x + \mathrm{drop}(f(\mathrm{norm}(x))), \qquad
    \text{post: } \mathrm{norm}(x + \mathrm{drop}(f(x))), \qquad
    \text{sandwich: } x + \mathrm{norm}'(\mathrm{drop}(f(\mathrm{norm}(x)))), \qquad
    \text{none: } x + \mathrm{drop}(f(x))$$

    Call `normalize_input` before f and `add_residual` after it.

    Args:
        normalization: "pre", "post", "sandwich" or "none".
        dropout: dropout rate for the output of f.
        epsilon: epsilon of the normalisation.
        norm: "layer" (LayerNorm), "layer_without_bias" or "rms" (RMSNorm), which compute their statistics in float32
            under mixed precision.
        **kwargs: arguments of `keras.layers.Layer`.

    References:
        Vaswani et al. (2017) for post; Xiong et al., "On Layer Normalization in the Transformer
        Architecture" (2020) for pre; Ding et al., "CogView" (2021), section 2.4, for sandwich; Zhang and Sennrich,
        "Root Mean Square Layer Normalization" (2019), equation 4.
    """

    def __init__(
        self,
        normalization: str = "pre",
        dropout: float = 0.0,
        epsilon: float = 1e-6,
        norm: str = "layer",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_one_of(NORMALIZATIONS, normalization=normalization)
        self.normalization = normalization
        self.dropout = check_rate("dropout", dropout)
        self.epsilon = epsilon
        self.norm_kind = norm
        self.norm = None if normalization == "none" else self._new_norm("norm")
        self.output_norm = self._new_norm("output_norm") if normalization == "sandwich" else None
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape: Any) -> None:
        """Create the normalisation's weights."""
        for layer in (self.norm, self.output_norm, self.drop):
            if layer is not None:
                layer.build(input_shape)

    def normalize_input(self, inputs: Tensor) -> Tensor:
        """Return the input of the sublayer, which is not normalized if `normalization` is "post" or "none"."""
        return inputs if self.norm is None or self.normalization == "post" else self.norm(inputs)

    def add_residual(self, inputs: Tensor, output: Tensor, training: bool | None = None) -> Tensor:
        """Add the output of the sublayer to the inputs of the block, with dropout and normalisation."""
        output = self.drop(output, training=training)
        if self.output_norm is not None:
            output = self.output_norm(output)
        total = inputs + output
        return self.norm(total) if self.norm is not None and self.normalization == "post" else total

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "norm": self.norm_kind}

    def _new_norm(self, name: str) -> keras.layers.Layer:
        return new_norm(self.norm_kind, self.epsilon, dtype=self.dtype_policy, name=name)


def new_norm(norm: str, epsilon: float = 1e-6, **kwargs: Any) -> keras.layers.Layer:
    """Create a normalisation layer, "layer", "layer_without_bias" or "rms"."""
    check_one_of(tuple(NORMS), norm=norm)
    layer = NORMS[norm](epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # or Keras' RMSNormalization would warn of the mask
    return layer
