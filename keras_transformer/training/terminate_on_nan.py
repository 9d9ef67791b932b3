"""A callback that terminates training if the loss is not finite."""

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.models.host_batches import epochs_of

_SHOWN = 3


class TerminateOnNaN(keras.callbacks.TerminateOnNaN):
    """Terminate training when the loss is NaN or infinite, and report the batch and the weights that are not finite.

    As `keras.callbacks.TerminateOnNaN`, it checks the loss after each batch; an update that a `LossScaleOptimizer`
    skips does not terminate training. The report names the epoch and the batch, numbered as in the progress bar, and
    the rows of the batch and the weights that are not finite. For a model of this package and an unchanged dataset from
    `keras_transformer.data`, the batch is read again and saved as an `.npz` file. With `steps_per_execution=n`, it is
    the last of n batches.

    Args:
        folder: the folder of the file, created if it does not exist.
        raise_error: whether to raise a RuntimeError with the report instead of printing it and ending `fit`.

    Raises:
        RuntimeError: in `fit`, if the loss is not finite and `raise_error` is True.

    Example:
        >>> model.fit(batches, epochs=10, callbacks=[TerminateOnNaN("runs/x")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str] = ".", raise_error: bool = False) -> None:
        super().__init__(raise_error)
        self.folder = pathlib.Path(folder)
        self._data: Any = None
        self._epoch = 0

    @contextlib.contextmanager
    def fit_context(self, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Store the data of `fit`, for models of this package."""
        self._data = None if epochs_of(arguments["x"]) is None else arguments["x"]
        yield

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Store the number of the epoch."""
        self._epoch = epoch

    def on_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Check the loss."""
        loss = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss):
            return
        report = self._report(batch, loss)
        if self.raise_error:
            raise RuntimeError(report)
        print(f"\n{report}", flush=True)  # noqa: T201
        self.model.stop_training = True

    def _report(self, batch: int, loss: float) -> str:
        arrays = {} if self._data is None else self._arrays(batch)
        sentences = [
            f"Training is terminated: the loss is {loss} after batch {batch + 1:,} of epoch {self._epoch + 1}."
        ]
        sentences += [
            f"`{name}` of the batch is not finite in {_listed('row', rows)}."
            for name, array in arrays.items()
            if (rows := _rows_not_finite(array))
        ]
        weights = self.model.weights
        bad = [weight.path for weight in weights if not _is_finite(weight)]
        sentences.append(
            f"{len(bad)} of {len(weights)} weights are not finite: {_listed('', bad)}."
            if bad
            else "All weights are finite."
        )
        if arrays:
            path = self.folder / f"batch-{batch + 1}-of-epoch-{self._epoch + 1}.npz"
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                np.savez(path, **arrays)  # type: ignore[arg-type]
                sentences.append(f"The batch is in {path}.")
            except OSError as error:
                sentences.append(f"The batch could not be saved: {error}.")
        return " ".join(sentences)

    def _arrays(self, batch: int) -> dict[str, np.ndarray]:
        """Read a batch of the current epoch again, and return its arrays by name."""
        epochs = self._data.epochs
        following, (epoch, first) = epochs.next_epoch, epochs.current
        epochs.start_at(epoch, first + batch)
        element = next(iter(self._data))
        epochs.start_at(following)
        arrays = {}
        elements = keras.utils.unpack_x_y_sample_weight(element)
        for name, values in zip(("x", "y", "sample_weight"), elements, strict=True):
            named = values if isinstance(values, dict) else {name: values}
            for key, value in named.items():
                if value is not None:
                    arrays[f"y/{key}" if name == "y" and isinstance(values, dict) else key] = np.asarray(
                        value
                    )
        return arrays


def _is_finite(weight: Any) -> bool:
    return "float" not in weight.dtype or bool(ops.all(ops.isfinite(weight.value)))


def _rows_not_finite(array: np.ndarray) -> list[int]:
    if array.dtype.kind != "f":
        return []
    finite = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
    return [int(row) for row in np.flatnonzero(~finite)]


def _listed(noun: str, values: list[Any]) -> str:
    shown = ", ".join(map(str, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")
    return f"{noun}{'s' * (noun != '' and len(values) > 1)} {shown}".strip()
