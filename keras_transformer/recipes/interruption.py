"""Stopping of a training by SIGINT or SIGTERM."""

import signal
import threading
from types import FrameType
from typing import Any, Self

import keras

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(keras.callbacks.Callback):
    """Stop `fit` after the current batch at SIGINT (Ctrl-C) or SIGTERM; a second signal has its usual effect.

    Signals are caught between the beginning of training and the end of the `with` statement, in the main thread only.

    Attributes:
        signal: the number of the signal that stopped training, or None.

    Example:
        >>> with Interruption() as interruption:
        ...     model.fit(batches, callbacks=[interruption])
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Catch the signals."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._stop) for number in _SIGNALS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self.model.stop_training = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
