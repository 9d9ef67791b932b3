"""Early stopping of recipes, and what it tells the user."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.inspection.curves import best_epoch

LEAST_UPDATES = 50


class EarlyStopping(keras.callbacks.EarlyStopping):
    """Keras' early stopping, with a patience that counts epochs of at least `LEAST_UPDATES` updates of the weights.

    Shorter epochs count together, as their losses say little. While the learning rate increases, no epoch counts.

    Args:
        monitor: the value to monitor.
        mode: "min" or "max".
        patience: the number of epochs without improvement after which training stops.
        accumulate: the number of batches of an update.
    """

    def __init__(self, monitor: str, mode: str, patience: int, accumulate: int = 1) -> None:
        super().__init__(monitor, mode=mode, patience=patience, restore_best_weights=True)
        self._epochs, self._accumulate = patience, accumulate
        self._rate = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Convert the patience to the epochs of this training."""
        super().on_train_begin(logs)
        updates = (self.params["steps"] or LEAST_UPDATES * self._accumulate) / self._accumulate
        self.patience = math.ceil(self._epochs * max(1.0, LEAST_UPDATES / updates))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Read the learning rate."""
        self._rate = self._learning_rate()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stop training if patience has run out."""
        if self._learning_rate() > self._rate:
            self.wait = -1  # which the base class increases
        super().on_epoch_end(epoch, logs)

    def _learning_rate(self) -> float:
        return float(ops.convert_to_numpy(self.model.optimizer.learning_rate))


def outcome(
    history: Mapping[str, Sequence[float]], monitor: str, mode: str, *, early: bool, minutes: float | None
) -> list[str]:
    """Return lines on why a training that no signal stopped has ended, and on the weights that it kept.

    Args:
        history: the history of `fit`.
        monitor: the value of which the best epoch was restored, with the prefix "val_".
        mode: "min" or "max".
        early: whether training had epochs or minutes left.
        minutes: the time limit, None if the number of epochs was the limit.
    """
    best, lines = best_epoch(history, monitor, mode), []
    if minutes is not None and not early:
        lines.append(f"Stopped after {minutes:g} minute{'s' * (minutes != 1)}, the time limit")
    if best is None:
        return lines
    name, waited = monitor.removeprefix("val_"), len(history[monitor]) - 1 - best
    if early:
        lines.append(
            f"Stopped early: the validation {name} did not improve in {waited} epoch{'s' * (waited != 1)} (patience)"
        )
    if waited:
        lines.append(f"Restored the weights of epoch {best + 1}, whose validation {name} is the best")
    else:
        lines.append(
            f"Kept the weights of the last epoch, whose validation {name} is the best: train for more "
            f"{'epochs' if minutes is None else 'minutes'} to improve it"
        )
    return lines
