"""Callbacks for `fit()`."""

import time
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer_options.arguments import check, check_fraction, check_positive_finite


class ResetState(keras.callbacks.Callback):
    """Reset the memory of a stateful model before each epoch, and before and after validation.

    Validation starts with an empty memory; afterwards, training continues with its own.

    Example:
        >>> from keras_transformer import data, models, text
        >>> texts, tokenizer = ["to be or not to be"] * 4, text.ByteTokenizer()
        >>> batches = data.language_modeling(texts, tokenizer, 2, length=8, contiguous=True)
        >>> model = models.TransformerXL(tokenizer.vocabulary_size, 1, 1, 8, memory_length=8, batch_size=2)
        >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> history = model.fit(batches, callbacks=[ResetState()], shuffle=False, verbose=0)
    """

    def __init__(self) -> None:
        super().__init__()
        self._state: list[Any] | None = None

    def set_model(self, model: Any) -> None:
        """Check the model."""
        check(hasattr(model, "reset_state"), "have a method `reset_state`", model=type(model).__name__)
        super().set_model(model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reset the memory."""
        self.model.reset_state()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keep the memory, and reset it."""
        self._state = [ops.convert_to_numpy(weight) for weight in self.model.non_trainable_weights]
        self.model.reset_state()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Restore the memory."""
        for weight, value in zip(self.model.non_trainable_weights, self._state or [], strict=True):
            weight.assign(value)
        self._state = None


class TimeBudget(keras.callbacks.Callback):
    r"""Stop training after a given time, with a learning rate that decays to zero at the end.

    The rate increases linearly during the warm-up and decreases linearly afterwards:

    $$\eta = \eta_{max} \min\Big(\frac{f}{w},\; \frac{1 - f}{1 - w}\Big), \quad f = \text{elapsed time} / \text{total
    time}$$

    The clock starts after the first batch, which includes compilation; if `ExactResume` continues training, the rest of
    the time is used. Compile the model with a constant learning rate, not a schedule, and call `fit` with more epochs
    than the time allows. The progress bar shows "minutes_left".

    Args:
        minutes: the training time.
        peak_rate: η_max, the peak learning rate.
        warmup: w, the fraction of the time during which the rate increases.
        clock: a function that returns seconds, by default `time.monotonic`; `time.process_time` counts the processor
            time of all threads, for comparisons on a machine that other programs use too.

    Example:
        >>> model.compile("adam", "mse")
        >>> model.fit(data, epochs=1000, callbacks=[TimeBudget(minutes=30, peak_rate=1e-3)])
    """

    def __init__(
        self,
        minutes: float,
        peak_rate: float,
        warmup: float = 0.1,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        check_positive_finite(minutes=minutes, peak_rate=peak_rate)
        check_fraction(warmup=warmup)
        self.seconds = 60 * minutes
        self.peak_rate = peak_rate
        self.warmup = warmup
        self.clock = time.monotonic if clock is None else clock
        self._started: float | None = None
        self._spent = 0.0  # seconds of interrupted runs

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the clock and the rate."""
        self._started, self._spent = None, 0.0
        self._set_rate(0.0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the learning rate of the next batch, or stop training."""
        if self._started is None:
            self._started = self.clock() - self._spent
        spent = (self.clock() - self._started) / self.seconds
        if spent >= 1:
            self.model.stop_training = True
        self._set_rate(spent)
        if logs is not None:
            logs["minutes_left"] = max(0.0, 1 - spent) * self.seconds / 60

    def get_state(self) -> dict[str, Any]:
        """Return the elapsed seconds, for `ExactResume`."""
        return {"spent": self._spent if self._started is None else self.clock() - self._started}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the elapsed seconds; the clock continues after the next batch."""
        self._spent = state["spent"]

    def _set_rate(self, spent: float) -> None:
        factor = min(spent / self.warmup, (1 - spent) / (1 - self.warmup))
        # Not zero, so that the first batch updates the weights.
        self.model.optimizer.learning_rate = self.peak_rate * max(factor, 1e-3)
