"""Learning-rate schedules."""

from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_positive
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    r"""Linear warm-up, then inverse square root decay.

    $$\eta(t) = s\, D^{-1/2} \min\big(t^{-1/2},\; t\, w^{-3/2}\big), \quad t = 1, 2, \dots$$

    Args:
        model_dim: D, the model size.
        warmup_steps: w, the step with the peak learning rate.
        scale: s, a factor on the learning rate.

    Raises:
        ValueError: if an argument is not positive.

    Example:
        >>> optimizer = keras.optimizers.Adam(TransformerSchedule(512), beta_2=0.98, epsilon=1e-9)

    References:
        Vaswani et al. (2017), equation 3.
    """

    def __init__(self, model_dim: int, warmup_steps: int = 4000, scale: float = 1.0) -> None:
        check_positive(model_dim=model_dim, warmup_steps=warmup_steps, scale=scale)
        self.model_dim = model_dim
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step: Tensor) -> Tensor:
        """Return the learning rate of update t = `step` + 1."""
        count = ops.cast(step, "float32") + 1.0
        return (
            self.scale * self.model_dim**-0.5 * ops.minimum(ops.rsqrt(count), count * self.warmup_steps**-1.5)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"model_dim": self.model_dim, "warmup_steps": self.warmup_steps, "scale": self.scale}
