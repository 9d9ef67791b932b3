"""Dropout whose pattern is the same in eager, graph and XLA."""

from typing import Any

import keras

from keras_transformer import ops as kt_ops
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Layer):
    """Zeros elements with probability `rate` while training, and scales the others by 1 / (1 − rate).

    The elements come from a counter hash (see `ops.dropout`), which XLA computes many times faster than the
    stateless generator of `keras.layers.Dropout`.

    Args:
        rate: in [0, 1).
        seed: makes the pattern reproducible; by default Keras' global seed.
        **kwargs: for `keras.layers.Layer`.

    Shapes:
        input and output: any, the same

    Raises:
        ValueError: if `rate` is outside [0, 1).
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("rate", rate)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Drop elements if `training`."""
        if not training or self.rate == 0:
            return inputs
        return kt_ops.dropout(inputs, self.rate, self.seed_generator.next())

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
