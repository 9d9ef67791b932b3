"""States of training in files, for `ExactResume`."""

import contextlib
import errno
import json
import os
import pathlib
import re
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

_FORMAT = 3
_GENERATIONS = 2
_TEMPORARY = ".state-"  # a killed process leaves its file
_DATA = ("x", "validation_data")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class State:
    """A state of training, as read from a file.

    Attributes:
        path: the file.
        position: the epoch, and the number of its batches that are done.
        stopped: whether training is complete.
        seconds: the duration of training.
        history, epoch: the attributes of `keras.callbacks.History`.
        learning_rates: the learning rates at the beginning of training and in this state, None for a schedule.
        variables, metrics: the values of variables.
        callbacks: the state of each of the other callbacks.

    Raises:
        Exception: if the file is damaged; damaged bytes can raise any.
        ValueError: if the file is of another format.
    """

    def __init__(self, path: pathlib.Path) -> None:
        with zipfile.ZipFile(path) as archive:
            # NumPy does not read an array to its end, and so does not check its sum, if its size is damaged.
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the sum of {damaged} differs")
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        if meta["format"] != _FORMAT:
            raise ValueError(f"`{path}` must have the format {_FORMAT}. Received: format {meta['format']}")
        if len(arrays) != meta["num_arrays"]:  # a damaged list of contents lacks some
            raise ValueError(f"`{path}` must have {meta['num_arrays']} arrays. Received: {len(arrays)}")
        self.path = path
        self.position = int(meta["position"][0]), int(meta["position"][1])
        self.stopped, self.seconds = meta["stopped"], meta["seconds"]
        self.history, self.epoch = meta["history"], meta["epoch"]
        self.learning_rates = meta["learning_rates"]
        self.variables, self.metrics = _group(arrays, "variable"), _group(arrays, "metric")
        self.callbacks = meta["callbacks"]
        self._identity = meta["identity"]
        for name in sorted(arrays, key=lambda name: (name.rpartition("/")[0], len(name), name)):
            if name.startswith("callback/"):
                _, i, attribute, _ = name.split("/")
                self.callbacks[int(i)].setdefault(attribute, []).append(arrays[name])

    def check(self, identity: dict[str, Any]) -> None:
        """Raise unless training is the one that was interrupted.

        Args:
            identity: the values that must be equal, by the name of the argument of `compile` or `fit`.
        """
        for argument, value in as_json(identity).items():
            if self._identity[argument] != value:
                name, received, expected = _difference(argument, value, self._identity[argument])
                if argument in _DATA:  # hashes say nothing to a reader
                    received = received and "other data"
                    expected = expected and "the same examples, tokenizer, options, shard and seed"
                raise ValueError(
                    f"`{name}` must be that of the interrupted training, whose state is in {self.path}; choose "
                    f"another folder to begin anew. Received: {received}, expected: {expected}"
                )

    def check_learning_rate(self, rate: float | None) -> None:
        """Warn unless the learning rate is one that training had: that of the state is used."""
        if rate not in self.learning_rates:
            warnings.warn(
                f"`optimizer.learning_rate` is {self.learning_rates[1]}, as in the state in {self.path}; choose "
                f"another folder to begin anew. Received: {rate}",
                stacklevel=2,
            )


def last_state(folder: pathlib.Path) -> State | None:
    """Return the last state that can be read, with a warning if one cannot; None if there is none.

    Raises:
        ValueError: if none can be read.
    """
    paths = _paths(folder)[::-1]
    for path in paths:
        try:
            return State(path)
        except Exception as error:
            damage = f"`{path}` is damaged: {error}"
            if path == paths[-1]:
                raise ValueError(f"{damage}. Remove the folder's states to begin anew") from error
            warnings.warn(f"{damage}. The state before it is used", stacklevel=2)
    return None


def num_batches(folder: pathlib.Path) -> int | None:
    """Return the number of batches before the last state, or None if there is no state."""
    paths = _paths(folder)
    return int(paths[-1].stem.partition("-")[2]) if paths else None


def write(folder: pathlib.Path, batches: int, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a state to a temporary file, put it in place, and remove all but the one before.

    Args:
        folder: the folder of the states.
        batches: the number of batches before this state.
        meta: all but the arrays, as in `State`.
        arrays: the arrays by name.

    Raises:
        OSError: if the state cannot be written, such as to a full disk; those before are kept.
    """
    path = folder / f"state-{batches:010d}.npz"
    meta = {"format": _FORMAT, "num_arrays": len(arrays), **meta}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary, open(temporary, "wb") as file:
            text = np.frombuffer(json.dumps(meta, default=float).encode(), np.uint8)
            # As `np.savez` does, which leaves its archive open when writing fails.
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in {"meta": text, **arrays}.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        size = sum(array.nbytes for array in arrays.values())
        room = f"have room for states of training of {size / 2**20:,.1f} MiB, three at a time"
        raise OSError(
            f"`folder` must {room if error.errno in _FULL else 'be a folder that can be written'}. Received: {folder}, "
            f"{error}. Its states are kept, from the last of which the same call of fit continues"
        ) from error
    # A state after this one is damaged: training continued from one before.
    before = [one for one in _paths(folder) if one <= path]
    for one in {*_paths(folder), *folder.glob(f"{_TEMPORARY}*")} - {*before[-_GENERATIONS:]}:
        one.unlink()


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Iterator[str]:
    """Yield the name of a temporary file that replaces `path` at the end, unless there is an error."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def as_json(value: Any) -> Any:
    """Return a value as JSON gives it back, with names in place of other objects."""
    return json.loads(json.dumps(value, default=str))


def described(value: Any) -> Any:
    """Return a model, an optimizer or a loss as values of JSON."""
    if not hasattr(value, "get_config"):
        return getattr(value, "__name__", value)
    return {"class": type(value).__name__, **_comparable(value.get_config())}


def _comparable(config: Any) -> Any:
    """Remove from a configuration the names, which Keras numbers in each process, and rates that callbacks change."""
    if isinstance(config, list | tuple):
        return [_comparable(value) for value in config]
    if not isinstance(config, dict):
        return config
    return {
        key: _comparable(value)
        for key, value in config.items()
        if key != "name" and not (key == "learning_rate" and isinstance(value, float))
    }


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of states, by number of batches."""
    files = [path for path in folder.glob("state-*.npz") if path.is_file()]
    return sorted(path for path in files if re.fullmatch(r"state-\d+", path.stem))


def _difference(name: str, received: Any, expected: Any) -> tuple[str, Any, Any]:
    """Return the name and both values of the first difference of two values of JSON."""
    if isinstance(received, dict) and isinstance(expected, dict):
        for key in {**expected, **received}:
            if key not in received or key not in expected or received[key] != expected[key]:
                return _difference(f"{name}.{key}", received.get(key), expected.get(key))
    return name, received, expected


def _group(arrays: dict[str, np.ndarray], group: str) -> list[np.ndarray]:
    count = sum(name.startswith(f"{group}/") for name in arrays)
    return [arrays[f"{group}/{i}"] for i in range(count)]
