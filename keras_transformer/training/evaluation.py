"""A callback for validation with a custom function."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer_options.arguments import is_integer


class Evaluation(keras.callbacks.Callback):
    """Log the results of a function during training, such as the BLEU score of validation sentences.

    The results are in the logs and the history of `fit` with the prefix "val_", for `EarlyStopping`, `ModelCheckpoint`
    and others. Models of this package call this callback before them; for another `keras.Model`, put it before them in
    the list of callbacks.

    Args:
        function: a function without arguments that returns a number, or a dictionary of which the floats are logged,
            such as the return value of `pipelines.evaluate`.
        name: the name of the number, without the prefix.
        freq: "epoch" to call the function at the end of each epoch, or the number of batches after which it is called.
            The logs of an epoch then have the last results. An epoch without results ends with a call.

    Example:
        >>> bleu = Evaluation(lambda: kt.pipelines.evaluate(translator, pairs))  # doctest: +SKIP
        >>> stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)  # doctest: +SKIP
        >>> model.fit(batches, epochs=100, callbacks=[bleu, stop])  # doctest: +SKIP
    """

    writes_logs = True  # so that `fit` calls it before callbacks that read logs

    def __init__(self, function: Callable[[], Any], name: str = "score", freq: str | int = "epoch") -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(
                f"`function` must be a function without arguments. Received: function={function!r}"
            )
        if freq != "epoch" and not (is_integer(freq) and int(freq) > 0):
            raise ValueError(f'`freq` must be "epoch" or a positive integer. Received: freq={freq!r}')
        self.function, self.name, self.freq = function, name, freq
        self.async_safe = freq == "epoch"
        self._batches = 0
        self._results: dict[str, float] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the number of batches and the results."""
        self._batches, self._results = 0, {}

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Call the function after `freq` batches."""
        if self.freq == "epoch":
            return
        self._batches += 1
        if self._batches % int(self.freq) == 0:
            self._results = self._evaluate()
        if logs is not None:
            logs.update(self._results)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the results of the epoch."""
        results, self._results = self._results or self._evaluate(), {}
        if logs is not None:
            logs.update(results)

    def get_state(self) -> dict[str, Any]:
        """Return the number of batches and the results of the epoch, for `ExactResume`."""
        return {"batches": self._batches, "results": self._results}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the number of batches and the results of the epoch."""
        self._batches, self._results = state["batches"], state["results"]

    def _evaluate(self) -> dict[str, float]:
        _ = self.model  # on JAX, this updates the variables within an epoch
        value = self.function()
        if isinstance(value, Mapping):
            results = {name: item for name, item in value.items() if isinstance(item, float | np.floating)}
        else:
            try:
                results = {self.name: float(value)}
            except (TypeError, ValueError):
                results = {}
        if not results:
            raise TypeError(
                f"`function` must return a number, or a dictionary with values that are floats. Received: {value!r}"
            )
        return {f"val_{name}": float(value) for name, value in results.items()}
