"""Arguments of `fit`: callbacks, the order of epochs, and what must be equal in all processes."""

import contextlib
from typing import Any

import keras

from keras_transformer import processes
from keras_transformer.models.host_batches import epochs_of


class _EpochOrder(keras.callbacks.Callback):
    """Start training at the right epoch of the data, because Keras reads a batch beforehand to build the model.

    Args:
        data: the `epochs` of the dataset to train on.
        validation_data: the `epochs` of the validation data, or None.
    """

    def __init__(self, data: Any, validation_data: Any) -> None:
        super().__init__()
        self._data, self._validation_data = data, validation_data
        self._first: int | None = data.next_epoch

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the epoch of the training data at the first call, and of the validation data at every call."""
        if self._first is not None:
            self._data.start_at(epoch or self._first)
            self._first = None
        if self._validation_data is not None:
            self._validation_data.start_at(epoch)


def prepare_callbacks(model: keras.Model, arguments: dict[str, Any], stack: contextlib.ExitStack) -> None:
    """Put the callbacks of `fit` in order, and let them change its arguments."""
    if isinstance(arguments["callbacks"], keras.callbacks.CallbackList):
        return
    # Callbacks that write logs come before those that read them.
    callbacks = keras.tree.flatten(arguments["callbacks"] or [])
    callbacks.sort(key=lambda callback: not getattr(callback, "writes_logs", False))
    arguments["callbacks"] = callbacks
    for callback in callbacks:
        if hasattr(callback, "fit_context"):
            stack.enter_context(callback.fit_context(model, arguments))
    if (epochs := epochs_of(arguments["x"])) is not None:
        epochs.end()  # an epoch in which an earlier call of `fit` was interrupted
        arguments["shuffle"] = False  # the order of batches is part of the dataset
        order = _EpochOrder(epochs, epochs_of(arguments["validation_data"]))
        arguments["callbacks"] = [order, *arguments["callbacks"]]


def settings_of_fit(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `fit` that must be equal in all processes."""
    if processes.current().count == 1:
        return {}
    optimizer = model.optimizer
    return {
        "model": [
            type(model).__name__,
            model.get_config(),
            [tuple(weight.shape) for weight in model.weights],
        ],
        "optimizer": None if optimizer is None else [type(optimizer).__name__, optimizer.get_config()],
        **{name: _sizes(arguments[name]) for name in ("x", "y", "validation_data")},
        **{name: arguments[name] for name in ("batch_size", "epochs")},
    }


def _sizes(data: Any) -> Any:
    """Return the shapes of arrays; for a dataset the number of batches, with the data's hash or a batch's shape."""
    if (epochs := epochs_of(data)) is not None:
        return epochs.count, epochs.fingerprint
    if hasattr(data, "element_spec"):
        return int(data.cardinality()), str(data.element_spec)
    return keras.tree.map_structure(lambda leaf: list(getattr(leaf, "shape", [])), data)
