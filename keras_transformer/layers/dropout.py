"""Dropout that drops the same elements in eager, graph and compiled execution."""

from typing import Any

import keras

from keras_transformer import ops as kt_ops
from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(ConfiguredLayer):
    """Set elements to zero with probability `rate` during training, and scale the others by 1 / (1 − rate).

    A counter hash (see `ops.dropout`) selects the elements; XLA computes it many times faster than the stateless
    generator of `keras.layers.Dropout`.

    Args:
        rate: the probability of dropping an element, in [0, 1).
        seed: an integer for reproducible dropout; by default derived from Keras' global seed.
        **kwargs: arguments of `keras.layers.Layer`.

    Shapes:
        input and output: any shape
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("rate", rate)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the inputs, with dropout if `training`."""
        if not training or self.rate == 0:
            return inputs
        return kt_ops.dropout(inputs, self.rate, self.seed_generator.next())

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return input_shape
