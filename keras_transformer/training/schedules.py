"""Learning-rate schedules."""

from typing import Any, Self

import keras
from keras import ops

from keras_transformer.configuration import constructor_arguments
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    r"""Linear warm-up, then inverse square root decay.

    $$\eta(t) = s\, D^{-1/2} \min\big(t^{-1/2},\; t\, w^{-3/2}\big), \quad t = 1, 2, \dots$$

    Args:
        model_dim: D, the model size.
        warmup_steps: w, the step with the peak learning rate.
        scale: s, a factor on the learning rate.

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
        return constructor_arguments(self)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PerUpdate(keras.optimizers.schedules.LearningRateSchedule):
    r"""A schedule over weight updates, for an optimizer that accumulates gradients.

    Keras calls a schedule with the number of batches, so that with `gradient_accumulation_steps=K` it advances K times
    for each update of the weights. This schedule returns the rate of the update that a batch belongs to:

    $$\eta'(b) = \eta(\lfloor b / K \rfloor), \quad b = 0, 1, \dots$$

    Args:
        schedule: η, a schedule over updates.
        gradient_accumulation_steps: K, the same as of the optimizer; 1 or None changes nothing.

    Example:
        >>> schedule = PerUpdate(TransformerSchedule(512), gradient_accumulation_steps=8)
        >>> optimizer = keras.optimizers.Adam(schedule, gradient_accumulation_steps=8)
    """

    def __init__(
        self,
        schedule: keras.optimizers.schedules.LearningRateSchedule,
        gradient_accumulation_steps: int | None,
    ) -> None:
        if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            raise TypeError(
                f"`schedule` must be a LearningRateSchedule. Received: schedule={schedule!r}, whose rate does not "
                "depend on the number of batches"
            )
        steps = 1 if gradient_accumulation_steps is None else gradient_accumulation_steps
        check_positive_integer(gradient_accumulation_steps=steps)
        self.schedule = schedule
        self.gradient_accumulation_steps = steps

    def __call__(self, step: Tensor) -> Tensor:
        """Return the learning rate of the update that batch `step` belongs to."""
        return self.schedule(ops.floor_divide(step, self.gradient_accumulation_steps))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return constructor_arguments(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create the schedule from its config."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["gradient_accumulation_steps"])
