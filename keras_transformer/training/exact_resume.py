"""Resume interrupted training with the same result as without interruption."""

import contextlib
import os
import pathlib
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_transformer import processes
from keras_transformer.models.host_batches import epochs_of
from keras_transformer.training import signals, states
from keras_transformer_options.arguments import check_one_of, is_integer

# The attributes of Keras' callbacks that change during training.
_CALLBACK_STATE = (
    "best",
    "best_epoch",
    "best_weights",
    "cooldown_counter",
    "stopped_epoch",
    "wait",
    "_batches_seen_since_last_saving",
    "_last_batch_seen",
)
# With `save_freq="auto"`: the minimum number of seconds between states, and the maximum fraction of time for saving.
_MIN_SECONDS, _MAX_FRACTION = 60, 0.01


class ExactResume(keras.callbacks.Callback):
    """Save the full state of training, and continue from it when the same `fit` is called again.

    The resumed run continues with the batches and the dropout that the interrupted run would have had: on a CPU its
    weights are equal to the weights of an uninterrupted run bit for bit. A state consists of the variables of model,
    optimizer, metrics and seed generators, the state of the other callbacks (`EarlyStopping`, `ReduceLROnPlateau`,
    `ModelCheckpoint`, `TimeBudget`, and any with methods `get_state` and `set_state`), the history, and the position in
    the data. The last two states are kept; if the last is damaged, the previous one is used, with a warning.

    Ctrl-C and SIGTERM save a state and end training after the current batch; a second signal ends it at once.

    It works with `fit` of the models of this package, on an unchanged dataset from `keras_transformer.data`.

    In several processes, process 0 saves the states, and the other processes must be able to read them. After a signal
    to any of them, all end after the same batch. Each must have all weights, as with `keras.distribution.DataParallel`.

    Args:
        folder: the folder of the states, created when the first is saved.
        save_freq: "epoch" to save a state at the start of each epoch; a number of batches, to also save a state after
            that many batches; or "auto" to save a state at most once a minute, using less than 1 % of the time.
        on_signal: "raise" a KeyboardInterrupt or SystemExit after Ctrl-C or SIGTERM; or "stop", so that `fit` returns
            as with `EarlyStopping`.

    Attributes:
        signal: the number of the signal that interrupted training, or None.
        seconds: the duration of training, including the interrupted runs.

    Raises:
        ValueError: if `save_freq` or `on_signal` is none of these; in `fit`, if the data is not a dataset of
            `keras_transformer.data`, or the state is of another model, optimizer, loss, data or list of callbacks.
        OSError: in `fit`, if a state cannot be written. Previous states are kept.

    Example:
        >>> model.fit(batches, epochs=10, shuffle=False, callbacks=[ExactResume("runs/x", save_freq=500)])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        on_signal: Literal["raise", "stop"] = "raise",
    ) -> None:
        super().__init__()
        if save_freq not in ("epoch", "auto") and not (is_integer(save_freq) and int(save_freq) > 0):
            raise ValueError(
                f'`save_freq` must be "epoch", "auto" or a positive integer. Received: save_freq={save_freq!r}'
            )
        check_one_of(("raise", "stop"), on_signal=on_signal)
        self.folder, self.save_freq, self.on_signal = pathlib.Path(folder), save_freq, on_signal
        self.signal: int | None = None
        self._received: int | None = None  # the signal to this process
        self._dataset: Any = None
        self._data: Any = None  # the position in the dataset
        self._validation_data: Any = None
        self._identity: dict[str, Any] = {}
        self._others: list[Any] = []
        self._state: states.State | None = None  # the state to restore
        self._position = 0, 0  # the epoch and the number of its batches that are done
        self._first_batch = 0  # of the current epoch
        self._first_rate: float | None = None  # the learning rate at the beginning of training
        self._interrupted = False  # the state of the interruption is saved
        self._unwritten: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
        self._began = self._next_save = 0.0
        self._end_of_epoch = _EndOfEpoch()

    @contextlib.contextmanager
    def fit_context(self, model: keras.Model, arguments: dict[str, Any]) -> Iterator[None]:
        """Read the last state, and start `fit` at its epoch; called by the models of this package.

        Args:
            model: the model.
            arguments: the arguments of `fit`, by name.
        """
        data = arguments["x"]
        callbacks = [callback for callback in arguments["callbacks"] if callback is not self]
        if epochs_of(data) is None:
            raise ValueError(
                "`x` must be an unchanged dataset from keras_transformer.data for ExactResume: another order of "
                f"batches cannot be repeated. Received: a {type(data).__name__}"
                + (", changed by a method such as map, shuffle or take" if hasattr(data, "map") else "")
            )
        if any(isinstance(callback, ExactResume) for callback in callbacks):
            raise ValueError("`callbacks` must have one ExactResume. Received: several")
        if data.epochs.nondeterministic_tokenizer:
            raise ValueError(
                "`x` must be a dataset whose batches can be repeated, for ExactResume: use `sampling=0`, or a "
                f"BytePairTokenizer. Received: segmentations sampled by a {data.epochs.nondeterministic_tokenizer}, "
                "whose sampler takes no seed"
            )
        self._dataset, self._data, self._others = data, data.epochs, callbacks
        self._validation_data = epochs_of(arguments["validation_data"])
        self.signal = self._received = self._unwritten = None
        self._interrupted = False
        self._state = states.last_state(self.folder)
        processes.check_agreement(folder="no state" if self._state is None else self._state.path.name)
        self._position = arguments["initial_epoch"], 0
        if self._state is not None:
            self._position = self._state.position
            arguments["initial_epoch"] = arguments["epochs"] if self._state.stopped else self._position[0]
        arguments["callbacks"] = [self._end_of_epoch, *callbacks, self]
        with signals.received_by(self._receive), warnings.catch_warnings():
            # A partial epoch of a PyDataset runs out of data.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            yield
        processes.exchange("end of training", "", wait=True)  # process 0 has written the last state
        if self.signal is not None and self.on_signal == "raise":
            self._raise()

    @property
    def seconds(self) -> float:
        """The duration of training, including the interrupted runs."""
        return time.monotonic() - self._began

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check the last state, and restore the state of the other callbacks."""
        if self._data is None:
            raise ValueError(
                "`model` must be a model of keras_transformer for ExactResume. "
                f"Received: a {type(self.model).__name__}"
            )
        if self.params["steps"] != self._data.count:
            raise ValueError(
                f"`fit` must train full epochs of {self._data.count} batches for ExactResume, without "
                "`steps_per_epoch` and `class_weight` (use data.with_class_weight). "
                f"Received: epochs of {self.params['steps']} batches"
            )
        self._check_replicated()
        self._identity = self._new_identity()
        self._first_rate = self._learning_rate()
        self._began, self._next_save = time.monotonic(), 0.0
        if self._state is not None:
            self._state.check(self._identity)
            self._state.check_learning_rate(self._first_rate)
            self._first_rate = self._state.learning_rates[0]
            self._began -= self._state.seconds
            self._next_save = time.monotonic() + _MIN_SECONDS
            for callback, saved in zip(self._others, self._state.callbacks, strict=True):
                _set_state(callback, saved)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restore the state if this is the epoch to continue; save it otherwise."""
        self._first_batch = self._position[1]
        restored = self._state is not None
        if restored:
            self._restore()
        self._data.start_at(*self._position)
        if not restored and (self.save_freq != "auto" or self._is_due()):
            self._save()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save the state if it is due, or if a signal ends training."""
        self._agree_on_signal()
        epoch, done = self._position[0], self._first_batch + batch + 1
        if done >= self._data.count:  # the end of the epoch follows
            if self._first_batch and not isinstance(self._dataset, keras.utils.PyDataset):
                self._end_of_epoch.end(self.model)
            return
        self._position = epoch, done
        if self.signal is not None or self._is_due():
            self._save()
        if self.signal is not None:
            self._interrupted = True
            if self.on_signal == "raise":
                self._raise()
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Move to the next epoch, or end training."""
        if self._interrupted:
            return
        self._position = epoch + 1, 0
        complete = self.model.stop_training or epoch + 1 >= self.params["epochs"]
        if self.signal is not None and not complete:
            # The history does not have this epoch yet, and other callbacks may restore weights at the end of training.
            self._unwritten = self._collected()
            self._interrupted = self.model.stop_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save the state of complete training, or restore it."""
        if self._state is not None:  # training was already complete
            self._restore()
        elif self._unwritten is not None:
            self._write(*self._unwritten)
        elif not self._interrupted:
            self._save(stopped=self.model.stop_training)

    def _receive(self, number: int) -> None:
        self._received = number
        if processes.current().count == 1:
            self.signal = number

    def _agree_on_signal(self) -> None:
        """Set `signal` after the same batch in all processes."""
        if processes.current().count > 1 and processes.should_stop():
            received = [int(number) for number in processes.exchange("signal", str(self._received or 0))]
            self.signal = max(received) or signal.SIGTERM

    def _raise(self) -> None:
        if self._interrupted and processes.current().is_main:
            print(  # noqa: T201
                f"\nTraining is interrupted after batch {self._position[1]:,} of epoch {self._position[0] + 1}. "
                f"The same call of fit continues from the state in {self.folder}",
                flush=True,
            )
        raise KeyboardInterrupt if self.signal == signal.SIGINT else SystemExit(128 + (self.signal or 0))

    def _is_due(self) -> bool:
        """Return whether a state must be saved according to `save_freq`."""
        if self.save_freq == "auto":
            return time.monotonic() >= self._next_save
        return self.save_freq != "epoch" and self._num_batches() % int(self.save_freq) == 0

    def _check_replicated(self) -> None:
        """Raise unless this process can save all weights."""
        for variable in self._variables() if processes.current().count > 1 else ():
            if not variable.value.is_fully_replicated:
                raise ValueError(
                    "`model` must have all weights in each process for ExactResume in several processes, as with "
                    f"DataParallel; use keras.callbacks.OrbaxCheckpoint. Received: {variable.path}, which is split"
                )

    def _num_batches(self) -> int:
        return int(self._position[0] * self._data.count + self._position[1])

    def _variables(self) -> list[Any]:
        model, optimizer = self.model, self.model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        return [*model.variables, *optimizer.variables]

    def _new_identity(self) -> dict[str, Any]:
        """Return the values that must be the same when training is resumed, by argument of `compile` and `fit`."""
        model, validation = self.model, self._validation_data
        shapes = [(tuple(variable.shape), str(variable.dtype)) for variable in self._variables()]
        return {
            "backend": keras.backend.backend(),
            "gradient_accumulation_steps": self._inner_optimizer().gradient_accumulation_steps,
            "optimizer": states.described(model.optimizer),
            "model": {**states.described(model), "variables": shapes},
            "loss": keras.tree.map_structure(states.described, model.loss),
            "x": self._data.fingerprint,
            "validation_data": validation and validation.fingerprint,
            "callbacks": [type(callback).__name__ for callback in self._others],
        }

    def _inner_optimizer(self) -> Any:
        """Return the optimizer, or the inner optimizer of a `LossScaleOptimizer`."""
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _learning_rate(self) -> float | None:
        """Return the learning rate, or None if a schedule sets it."""
        rate = self._inner_optimizer().get_config()["learning_rate"]
        return rate if isinstance(rate, float) else None

    def _save(self, stopped: bool = False) -> None:
        if not processes.current().is_main:
            return
        began = time.monotonic()
        self._write(*self._collected(stopped))
        ended = time.monotonic()
        self._next_save = ended + max(_MIN_SECONDS, (ended - began) / _MAX_FRACTION)

    def _write(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if processes.current().is_main:
            states.write(self.folder, self._num_batches(), meta, arrays)

    def _collected(self, stopped: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return a state: JSON values, of which the history may still change, and copies of arrays."""
        history = self.model.history
        metrics = self.model.metrics_variables if self._position[1] else []  # an epoch resets them
        groups = {"variable": self._variables(), "metric": metrics}
        arrays = {
            f"{group}/{i}": _array(value)
            for group, values in groups.items()
            for i, value in enumerate(values)
        }
        callbacks = [_get_state(callback) for callback in self._others]
        for i, state in enumerate(callbacks):
            for name in [name for name, value in state.items() if isinstance(value, list)]:
                arrays |= {f"callback/{i}/{name}/{n}": array for n, array in enumerate(state.pop(name))}
        meta = {
            "identity": states.as_json(self._identity),
            "position": self._position,
            "stopped": stopped,
            "seconds": self.seconds,
            "history": history.history,
            "epoch": history.epoch,
            "learning_rates": [self._first_rate, self._learning_rate()],
            "callbacks": callbacks,
        }
        return meta, arrays

    def _restore(self) -> None:
        state, self._state = self._state, None
        assert state is not None
        if state.metrics:
            self._build_metrics()
            if len(state.metrics) != len(self.model.metrics_variables):
                raise ValueError(
                    f"`metrics` must have {len(state.metrics)} variables, as in the interrupted training. "
                    f"Received: {len(self.model.metrics_variables)} variables"
                )
            for variable, value in zip(self.model.metrics_variables, state.metrics, strict=True):
                variable.assign(value)
        for variable, value in zip(self._variables(), state.variables, strict=True):
            variable.assign(value)
        self.model.history.history, self.model.history.epoch = state.history, state.epoch

    def _build_metrics(self) -> None:
        """Create the variables of losses and metrics, which on TensorFlow do not exist before the first batch."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(next(iter(self._dataset)))
        outputs = self.model(x, training=False)
        self.model.compute_loss(x, y, outputs, weights)
        self.model.compute_metrics(x, y, outputs, weights)


class _EndOfEpoch(keras.callbacks.Callback):
    """The first of all callbacks, which ends a partial epoch without ending training.

    A `tf.data.Dataset` must not run out of data, because Keras' training function would advance seeds and optimizer
    once more. A `PyDataset` must, because Keras does not end its epoch otherwise.
    """

    _stops_training: bool | None = None

    def end(self, model: keras.Model) -> None:
        """End the epoch after this batch."""
        self._stops_training, model.stop_training = model.stop_training, True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restore `stop_training` to its value before `end`, which other callbacks may have set."""
        if self._stops_training is not None:
            self.model.stop_training, self._stops_training = self._stops_training, None


def _get_state(callback: Any) -> dict[str, Any]:
    if hasattr(callback, "get_state"):
        return dict(callback.get_state())
    return {name: getattr(callback, name) for name in _CALLBACK_STATE if hasattr(callback, name)}


def _set_state(callback: Any, state: dict[str, Any]) -> None:
    if hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    for name, value in state.items():
        setattr(callback, name, value)


def _array(value: Any) -> np.ndarray:
    array = np.array(ops.convert_to_numpy(value))
    return array.astype("float32") if array.dtype.kind == "V" else array  # NumPy cannot save bfloat16
