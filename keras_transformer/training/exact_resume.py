"""Resuming of interrupted training, with the result of an uninterrupted one."""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import tempfile
import types
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.arguments import is_integer

_GENERATIONS = 2
_FORMAT = 1
# What Keras' callbacks change while they run, by attribute.
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
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ExactResume(keras.callbacks.Callback):
    """Save the whole state of training, and continue from it when the same `fit` is called again.

    The resumed run sees the batches that the interrupted one would have seen, with the same dropout: on a CPU its
    weights equal those of an uninterrupted run bit for bit. A state has the model's variables, those of optimizer,
    metrics and seed generators, the state of the other callbacks (`EarlyStopping`, `ReduceLROnPlateau`,
    `ModelCheckpoint`, `TimeBudget`, and any with methods `get_state` and `set_state`), the history, and the position in
    the data. The last two states are kept; if the last is damaged, the one before is used, with a warning.

    Ctrl-C and SIGTERM end training after the current batch, with a state; a second Ctrl-C ends it at once.

    It works with `fit` of the models of this package, on a data set of `keras_transformer.data` as it was returned.

    Args:
        folder: the folder of the states, created when the first is saved.
        save_freq: "epoch", or the number of batches after which a state is saved, in addition to the start of each
            epoch.

    Raises:
        ValueError: if `save_freq` is neither "epoch" nor a positive integer; in `fit`, if the data is not a data set of
            `keras_transformer.data`, or the state is of another model, optimizer, data or list of callbacks.

    Example:
        >>> model.fit(batches, epochs=10, shuffle=False, callbacks=[ExactResume("runs/x", save_freq=500)])
    """

    def __init__(self, folder: str | os.PathLike[str], save_freq: str | int = "epoch") -> None:
        super().__init__()
        if save_freq != "epoch" and not (is_integer(save_freq) and int(save_freq) > 0):
            raise ValueError(
                f'`save_freq` must be "epoch" or a positive integer. Received: save_freq={save_freq!r}'
            )
        self.folder, self.save_freq = pathlib.Path(folder), save_freq
        self._dataset: Any = None
        self._data: Any = None  # the position in it
        self._validation_data: Any = None
        self._identity: dict[str, Any] = {}
        self._others: list[Any] = []
        self._state: _State | None = None  # the state to restore
        self._position = 0, 0  # the epoch and the number of its batches that are done
        self._first_batch = 0  # of the running epoch
        self._signal: int | None = None
        self._end_of_epoch = _EndOfEpoch()

    @contextlib.contextmanager
    def training(self, data: Any, validation_data: Any, callbacks: list[Any]) -> Iterator[list[Any]]:
        """Prepare `fit` on a data set with the other callbacks; models of this package call it.

        Args:
            data: the argument `x` of `fit`.
            validation_data: the argument of `fit`.
            callbacks: the other callbacks.

        Yields:
            All callbacks, in the order that `fit` has to call them.
        """
        if not hasattr(data, "epochs"):
            raise ValueError(
                "`x` must be a data set as a function of keras_transformer.data returned it, for ExactResume: another "
                f"order of batches cannot be repeated. Received: a {type(data).__name__}, or a data set that was "
                "changed by a method such as map, shuffle or take"
            )
        if data.epochs.unseeded:
            raise ValueError(
                "`x` must be a data set whose batches can be repeated, for ExactResume: use `sampling=0`, or a "
                f"BytePairTokenizer. Received: segmentations sampled by a {data.epochs.unseeded}, whose sampler "
                "takes no seed"
            )
        self._dataset, self._data, self._others, self._signal = data, data.epochs, callbacks, None
        self._validation_data = getattr(validation_data, "epochs", None)
        with _handlers(self._receive):
            yield [self._end_of_epoch, *callbacks, self]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the last state, and let `fit` start with its epoch."""
        if self._data is None:
            raise ValueError(
                "`model` must be a model of keras_transformer for ExactResume. "
                f"Received: a {type(self.model).__name__}"
            )
        if self.params["steps"] != self._data.count:
            raise ValueError(
                f"`fit` must go through whole epochs of {self._data.count} batches for ExactResume, without "
                f"`steps_per_epoch` and `class_weight`. Received: epochs of {self.params['steps']} batches"
            )
        self._identity = self._new_identity()
        self._state = _last_state(self.folder)
        self._position = 0, 0
        if self._state is not None:
            self._state.check(self._identity)
            self._position = self._state.position
            for callback, saved in zip(self._others, self._state.callbacks, strict=True):
                _set_state(callback, saved)
            finished = self._state.stopped or self._position[0] >= self.params["epochs"]
            # The only way to skip epochs from a callback; Keras' BackupAndRestore uses it too.
            self.model._initial_epoch = self.params["epochs"] if finished else self._position[0]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restore the state if this is the epoch to continue; save it otherwise."""
        self._first_batch = self._position[1]
        if self._state is not None:
            self._restore()
        self._data.start_at(*self._position)
        if self._validation_data is not None:
            self._validation_data.start_at(epoch)
        if not self._first_batch:
            self._save()
        self._end_if_interrupted()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save the state if it is time, or if training is to end."""
        epoch, done = self._position[0], self._first_batch + batch + 1
        if done >= self._data.count:  # the next epoch or the end of training saves it, after the validation
            if self._first_batch:
                self._end_of_epoch.end(self.model)
            return
        self._position = epoch, done
        updates = epoch * self._data.count + done
        if self._signal is not None or (self.save_freq != "epoch" and updates % int(self.save_freq) == 0):
            self._save()
        self._end_if_interrupted()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Move to the next epoch."""
        self._position = epoch + 1, 0

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save the state of complete training, or restore it."""
        self.model._initial_epoch = None
        if self._state is not None:  # no epoch was left
            self._restore()
            return
        self._save(stopped=self.model.stop_training)

    def _receive(self, number: int) -> None:
        self._signal = number

    def _end_if_interrupted(self) -> None:
        if self._signal is None:
            return
        print(  # noqa: T201
            f"\nTraining is interrupted after batch {self._position[1]:,} of epoch {self._position[0] + 1}. "
            f"The same call of fit continues from the state in {self.folder}",
            flush=True,
        )
        raise KeyboardInterrupt if self._signal == signal.SIGINT else SystemExit(128 + self._signal)

    def _variables(self) -> list[Any]:
        model, optimizer = self.model, self.model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        return [*model.variables, *optimizer.variables]

    def _new_identity(self) -> dict[str, Any]:
        """Return what must be the same when training is resumed, by argument of `compile` and `fit`."""
        model, optimizer = self.model, self.model.optimizer
        shapes = [(tuple(variable.shape), str(variable.dtype)) for variable in self._variables()]
        config = optimizer.get_config()
        inner = config.get("inner_optimizer", {}).get("config", {})  # of a LossScaleOptimizer
        for each in (config, inner):
            if isinstance(each.get("learning_rate"), float):
                del each["learning_rate"]  # callbacks change it
        return {
            "model": f"{type(model).__name__} {_digest([_without_names(model.get_config()), shapes])}",
            "optimizer": f"{type(optimizer).__name__} {_digest(_without_names(config))}",
            "gradient_accumulation_steps": getattr(
                optimizer, "inner_optimizer", optimizer
            ).gradient_accumulation_steps,
            "x": self._data.fingerprint,
            "callbacks": [type(callback).__name__ for callback in self._others],
        }

    def _save(self, stopped: bool = False) -> None:
        history = self.model.history
        metrics = self.model.metrics_variables if self._position[1] else []  # an epoch resets them
        groups = {"variable": self._variables(), "metric": metrics}
        arrays = {
            f"{group}/{i}": _array(value)
            for group, values in groups.items()
            for i, value in enumerate(values)
        }
        states = [_get_state(callback) for callback in self._others]
        for i, state in enumerate(states):
            for name in [name for name, value in state.items() if isinstance(value, list)]:
                arrays |= {f"callback/{i}/{name}/{n}": each for n, each in enumerate(state.pop(name))}
        meta = {
            "format": _FORMAT,
            "identity": self._identity,
            "position": self._position,
            "stopped": stopped,
            "history": history.history,
            "epoch": history.epoch,
            "callbacks": states,
        }
        updates = self._position[0] * self._data.count + self._position[1]
        _write(self.folder, f"state-{updates:010d}.npz", meta, arrays)

    def _restore(self) -> None:
        state, self._state = self._state, None
        assert state is not None
        if state.metrics:
            self._build_metrics()
            if len(state.metrics) != len(self.model.metrics_variables):
                raise ValueError(
                    "`metrics` must be those of the interrupted training. Received: metrics with "
                    f"{len(self.model.metrics_variables)} variables, expected: {len(state.metrics)}"
                )
            for variable, value in zip(self.model.metrics_variables, state.metrics, strict=True):
                variable.assign(value)
        for variable, value in zip(self._variables(), state.variables, strict=True):
            variable.assign(value)
        self.model.history.history, self.model.history.epoch = state.history, state.epoch

    def _build_metrics(self) -> None:
        """Create the variables of losses and metrics, which on TensorFlow do not exist before the first batch."""
        x, y = next(iter(self._dataset))
        outputs = self.model(x, training=False)
        self.model.compute_loss(x, y, outputs)
        self.model.compute_metrics(x, y, outputs)


class _EndOfEpoch(keras.callbacks.Callback):
    """The first of all callbacks: end an epoch that has begun in its middle, but not training.

    An epoch must not run out of data: Keras' function for a batch would advance seeds and optimizer once more.
    """

    _stops_training: bool | None = None

    def end(self, model: keras.Model) -> None:
        """End the epoch after this batch."""
        self._stops_training, model.stop_training = model.stop_training, True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Let the callbacks after this one, or those of the batch, decide whether training stops."""
        if self._stops_training is not None:
            self.model.stop_training, self._stops_training = self._stops_training, None


class _State:
    """A state of training, as read from a file."""

    def __init__(self, path: pathlib.Path) -> None:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}  # reads and checks every byte
        meta = json.loads(arrays.pop("meta").tobytes())
        if meta["format"] != _FORMAT:
            raise ValueError(f"`{path}` must have the format {_FORMAT}. Received: format {meta['format']}")
        self.path, self.identity = path, meta["identity"]
        self.position = int(meta["position"][0]), int(meta["position"][1])
        self.stopped, self.history, self.epoch = meta["stopped"], meta["history"], meta["epoch"]
        self.variables, self.metrics = _group(arrays, "variable"), _group(arrays, "metric")
        self.callbacks = meta["callbacks"]
        for name in sorted(arrays, key=lambda name: (name.rpartition("/")[0], len(name), name)):
            if name.startswith("callback/"):
                _, i, attribute, _ = name.split("/")
                self.callbacks[int(i)].setdefault(attribute, []).append(arrays[name])

    def check(self, identity: dict[str, Any]) -> None:
        """Raise unless training is the one that was interrupted."""
        for argument, value in identity.items():
            if self.identity[argument] != value:
                raise ValueError(
                    f"`{argument}` must be that of the interrupted training, whose state is in {self.path}; choose "
                    f"another folder to begin anew. Received: {value}, expected: {self.identity[argument]}"
                )


def _last_state(folder: pathlib.Path) -> _State | None:
    """Return the last state that can be read."""
    paths = sorted(folder.glob("state-*.npz"), reverse=True)
    for path in paths:
        try:
            return _State(path)
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            damage = f"`{path}` is damaged: {error}"
            if path == paths[-1]:
                raise ValueError(f"{damage}. Remove the folder's states to begin anew") from error
            warnings.warn(f"{damage}. The state before it is used", stacklevel=2)
    return None


def _write(folder: pathlib.Path, name: str, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a state to a temporary file, put it in place, and remove the oldest."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(meta, default=float).encode()
    handle, temporary = tempfile.mkstemp(prefix=".state-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **{"meta": np.frombuffer(text, np.uint8), **arrays})
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
    except BaseException:
        os.unlink(temporary)
        raise
    for path in sorted(folder.glob("state-*.npz"))[:-_GENERATIONS]:
        path.unlink()


@contextlib.contextmanager
def _handlers(receive: Any) -> Iterator[None]:
    """Handle the first SIGINT or SIGTERM by `receive`; the next by the handlers of before."""
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        before.clear()

    def handle(number: int, frame: types.FrameType | None) -> None:
        restore()
        receive(number)

    with contextlib.suppress(ValueError):  # not in the main thread
        for number in _SIGNALS:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


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
    array = np.asarray(ops.convert_to_numpy(value))
    return array.astype("float32") if array.dtype.kind == "V" else array  # NumPy's files do not know bfloat16


def _group(arrays: dict[str, np.ndarray], group: str) -> list[np.ndarray]:
    count = sum(name.startswith(f"{group}/") for name in arrays)
    return [arrays[f"{group}/{i}"] for i in range(count)]


def _without_names(config: Any) -> Any:
    """Remove names, which Keras numbers in each process, from a configuration."""
    if isinstance(config, dict):
        return {key: _without_names(value) for key, value in config.items() if key != "name"}
    return [_without_names(value) for value in config] if isinstance(config, list | tuple) else config


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
