"""Callbacks that log the speed and the progress of training."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.models.host_batches import is_dataset, observed

_SECONDS_BETWEEN_READS = 1.0


class Progress(keras.callbacks.Callback):
    r"""Log the learning rate, the tokens per second and the minutes left.

    `fit` shows them in its progress bar, and its history has "learning_rate" and "tokens_per_second" of each epoch:

    - "tokens_per_second": the number of tokens in the epoch's batches, without padding, divided by the time of
      training, without validation and without the first batch, which includes compilation. For an encoder–decoder,
      source and target tokens are counted. It is logged for models of this package that take ids.
    - "learning_rate": the rate of the next update, read once a second.
    - "minutes_left": the time until all epochs are done at the average speed; with `TimeBudget`, until its end.

    Tokens are counted on the host while batches are read, so that training steps do not wait for it.

    Example:
        >>> history = model.fit(batches, epochs=10, callbacks=[Progress()])  # doctest: +SKIP
        >>> history.history["tokens_per_second"]  # doctest: +SKIP
    """

    async_safe = True  # so that Keras does not wait for the loss of each batch
    writes_logs = True  # so that `fit` calls it before callbacks that read logs

    def __init__(self) -> None:
        super().__init__()
        self._tokens_of_arrays: float | None = None
        self._tokens = self._read = 0  # the tokens and batches read in this epoch
        self._steps: int | None = None  # batches per epoch
        self._epoch, self._epoch_began = 0, 0.0
        self._done = self._done_before = 0  # the batches trained on in this epoch, and in previous epochs
        self._rate, self._rate_read = 0.0, 0.0
        # The clock begins after the first batch of training, and anew in each epoch.
        self._started: float | None = None
        self._untimed = 0
        self._began = self._ended = 0.0
        self._untimed_in_epoch = 0

    @contextlib.contextmanager
    def fit_context(self, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Count the tokens of arrays, or of batches of a dataset when they are read; called by `fit`.

        Args:
            model: the model, which has `count_tokens`.
            arguments: the arguments of `fit`, by name.
        """
        data, self._tokens_of_arrays = arguments["x"], None
        if is_dataset(data):
            specs = model.input_specs()
            arguments["x"] = observed(data, lambda x, y: self._add(model.count_tokens(x)), specs)
        else:
            self._tokens_of_arrays = (1 - arguments["validation_split"]) * model.count_tokens(data)
        yield

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the clock."""
        self._started, self._done_before, self._steps = None, 0, self.params["steps"]
        self._read_rate()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start counting the tokens of an epoch."""
        self._epoch = epoch
        self._tokens = self._read = self._done = self._untimed_in_epoch = 0
        self._epoch_began = self._began = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Read the learning rate about once a second, in the training thread."""
        if time.monotonic() - self._rate_read > _SECONDS_BETWEEN_READS:
            self._read_rate()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the values for the progress bar."""
        self._ended, self._done = time.monotonic(), max(self._done, batch + 1)
        if self._started is None:
            self._started = self._began = self._ended
            self._untimed = self._untimed_in_epoch = self._done
        elif logs is not None:
            self._log_speed(logs)
            self._log_end(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the values of the epoch."""
        self._read_rate()
        self._log_speed({} if logs is None else logs)
        self._done_before += self._done
        self._steps = self._steps or self._done

    def _add(self, tokens: int) -> None:
        self._tokens += tokens
        self._read += 1

    def _read_rate(self) -> None:
        self._rate = float(ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self._rate_read = time.monotonic()

    def _log_speed(self, logs: dict[str, Any]) -> None:
        logs.setdefault("learning_rate", self._rate)
        batches, began = self._done - self._untimed_in_epoch, self._began
        if not batches:  # only one batch was trained on
            batches, began = self._done, self._epoch_began
        tokens = self._tokens_per_batch() * batches
        if tokens and self._ended > began:
            logs["tokens_per_second"] = tokens / (self._ended - began)

    def _tokens_per_batch(self) -> float:
        # Batches are read in advance, so more batches have been read than trained on.
        if self._tokens_of_arrays is not None:
            return self._tokens_of_arrays / (self._steps or 1)
        return self._tokens / (self._read or 1)

    def _log_end(self, logs: dict[str, Any]) -> None:
        if self._started is None or not self._steps:
            return
        seconds = (self._ended - self._started) / (self._done_before + self._done - self._untimed)
        batches = (self.params["epochs"] - self._epoch) * self._steps - self._done
        logs.setdefault("minutes_left", batches * seconds / 60)


class EpochLines(keras.callbacks.Callback):
    """Print a line for each epoch, without colours, for output that is not a terminal.

    Args:
        total: the number of epochs, None if it is not known.
    """

    async_safe = True  # as Keras' progress bar

    def __init__(self, total: int | None = None) -> None:
        super().__init__()
        self._of = "" if total is None else f"/{total}"
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the values of the epoch."""
        values = [f"{name}: {float(value):.4g}" for name, value in (logs or {}).items()]
        sys.stdout.write(
            f"Epoch {epoch + 1}{self._of}, {time.monotonic() - self._began:.0f} s - {' - '.join(values)}\n"
        )
        sys.stdout.flush()


class EpochsWithoutTotal(keras.callbacks.ProgbarLogger):
    """The progress bar of `fit` without the total number of epochs, for `TimeBudget`.

    It shows "Epoch 6" instead of "Epoch 6/1000000".
    """

    async_safe = True  # as Keras' progress bar

    def set_params(self, params: dict[str, Any]) -> None:
        """Set the parameters; Keras' bar prints no title for one epoch."""
        super().set_params({**params, "epochs": 1})

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the title of an epoch."""
        if self.verbose:
            sys.stdout.write(f"Epoch {epoch + 1}\n")
        super().on_epoch_begin(epoch, logs)
