"""States of training in files, for `ExactResume`."""

import json
import os
import pathlib
import tempfile
import warnings
import zipfile
from typing import Any

import numpy as np

_FORMAT = 2
_GENERATIONS = 2
_DATA = ("x", "validation_data")


class State:
    """A state of training, as read from a file.

    Attributes:
        path: the file.
        position: the epoch, and the number of its batches that are done.
        stopped: whether training is complete.
        seconds: the duration of training.
        history, epoch: the attributes of `keras.callbacks.History`.
        variables, metrics: the values of variables.
        callbacks: the state of each of the other callbacks.

    Raises:
        ValueError: if the file is of another format.
    """

    def __init__(self, path: pathlib.Path) -> None:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}  # reads and checks every byte
        meta = json.loads(arrays.pop("meta").tobytes())
        if meta["format"] != _FORMAT:
            raise ValueError(f"`{path}` must have the format {_FORMAT}. Received: format {meta['format']}")
        self.path = path
        self.position = int(meta["position"][0]), int(meta["position"][1])
        self.stopped, self.seconds = meta["stopped"], meta["seconds"]
        self.history, self.epoch = meta["history"], meta["epoch"]
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
                    received, expected = "other data", "the same examples, tokenizer, options, shard and seed"
                raise ValueError(
                    f"`{name}` must be that of the interrupted training, whose state is in {self.path}; choose "
                    f"another folder to begin anew. Received: {received}, expected: {expected}"
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
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
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
    meta = {"format": _FORMAT, **meta}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".state-", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                text = np.frombuffer(json.dumps(meta, default=float).encode(), np.uint8)
                # As `np.savez` does, which leaves its archive open when writing fails.
                with zipfile.ZipFile(file, "w") as archive:
                    for name, array in {"meta": text, **arrays}.items():
                        with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                            np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        size = sum(array.nbytes for array in arrays.values())
        raise OSError(
            f"`folder` must have room for states of training of {size / 2**20:,.1f} MiB, three at a time. Received: "
            f"{folder}, {error}. Its states are kept, from the last of which the same call of fit continues"
        ) from error
    # A state after this one is damaged: training continued from one before.
    before = [one for one in _paths(folder) if one <= path]
    for one in {*_paths(folder)} - {*before[-_GENERATIONS:]}:
        one.unlink()


def as_json(value: Any) -> Any:
    """Return a value as JSON gives it back, with names in place of other objects."""
    return json.loads(json.dumps(value, default=str))


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of states, by number of batches."""
    return sorted(folder.glob("state-*.npz"))


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
