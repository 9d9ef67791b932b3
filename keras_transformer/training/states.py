"""Files with states of training, for `ExactResume`."""

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
        position: the epoch, and the number of batches of it that are done.
        stopped: whether training is complete.
        seconds: the duration of training.
        history, epoch: the attributes of `keras.callbacks.History`.
        learning_rates: the learning rates at the beginning of training and in this state, None for a schedule.
        variables, metrics: the values of variables.
        callbacks: the states of the other callbacks.

    Raises:
        Exception: if the file is damaged; the type depends on the damage.
        ValueError: if the file has another format.
    """

    def __init__(self, path: pathlib.Path) -> None:
        with zipfile.ZipFile(path) as archive:
            # If the size of an array is damaged, NumPy does not read it to its end and does not check its checksum.
            if (damaged := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {damaged} differs")
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        if meta["format"] != _FORMAT:
            raise ValueError(f"`{path}` must have the format {_FORMAT}. Received: format {meta['format']}")
        if len(arrays) != meta["num_arrays"]:  # a damaged list of contents may lack some
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
        """Raise a ValueError unless training has the settings of the interrupted training.

        Args:
            identity: the values that must be equal, by the name of the argument of `compile` or `fit`.
        """
        for argument, value in as_json(identity).items():
            if self._identity[argument] != value:
                name, received, expected = _difference(argument, value, self._identity[argument])
                if argument in _DATA:  # hashes do not help the reader
                    received = received and "other data"
                    expected = expected and "the same examples, tokenizer, options, shard and seed"
                raise ValueError(
                    f"`{name}` must be the same as in the interrupted training, whose state is in {self.path}; choose "
                    f"another folder to start again. Received: {received}, expected: {expected}"
                )

    def check_learning_rate(self, rate: float | None) -> None:
        """Warn if the learning rate differs from those of the state, whose learning rate is used."""
        if rate not in self.learning_rates:
            warnings.warn(
                f"`optimizer.learning_rate` is {self.learning_rates[1]}, as in the state in {self.path}; choose "
                f"another folder to start again. Received: {rate}",
                stacklevel=2,
            )


def last_state(folder: pathlib.Path) -> State | None:
    """Return the last undamaged state, with a warning for each damaged one, or None if there are no states.

    Raises:
        ValueError: if all states are damaged.
    """
    paths = _paths(folder)[::-1]
    for path in paths:
        try:
            return State(path)
        except Exception as error:
            damage = f"`{path}` is damaged: {error}"
            if path == paths[-1]:
                raise ValueError(f"{damage}. Remove the states in the folder to start again") from error
            warnings.warn(f"{damage}. The previous state is used", stacklevel=2)
    return None


def num_batches(folder: pathlib.Path) -> int | None:
    """Return the number of batches before the last state, or None if there is no state."""
    paths = _paths(folder)
    return int(paths[-1].stem.partition("-")[2]) if paths else None


def write(folder: pathlib.Path, batches: int, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a state to a temporary file, rename it, and remove all other states except the previous one.

    Args:
        folder: the folder of the states.
        batches: the number of batches before this state.
        meta: the other attributes of `State`, as JSON values.
        arrays: the arrays by name.

    Raises:
        OSError: if the state cannot be written, for example to a full disk; previous states are kept.
    """
    path = folder / f"state-{batches:010d}.npz"
    meta = {"format": _FORMAT, "num_arrays": len(arrays), **meta}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary, open(temporary, "wb") as file:
            text = np.frombuffer(json.dumps(meta, default=float).encode(), np.uint8)
            # The same as `np.savez`, which leaves its archive open if writing fails.
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in {"meta": text, **arrays}.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        size = sum(array.nbytes for array in arrays.values())
        expected = "be a writable folder"
        if error.errno in _FULL:
            expected = f"have space for three states of training of {size / 2**20:,.1f} MiB each"
        kept = (
            "Its states are kept; the same call of fit continues from the last one" if _paths(folder) else ""
        )
        raise OSError(
            f"`folder` must {expected}. Received: {folder}, {error}. {kept}".removesuffix(". ")
        ) from error
    # States after this one are damaged, because training continued from a previous one.
    valid = [state for state in _paths(folder) if state <= path]
    for obsolete in {*_paths(folder), *folder.glob(f"{_TEMPORARY}*")} - {*valid[-_GENERATIONS:]}:
        obsolete.unlink()


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
    """Return a value as JSON restores it, with strings in place of other objects."""
    return json.loads(json.dumps(value, default=str))


def described(value: Any) -> Any:
    """Return the class and config of a model, an optimizer or a loss as JSON values."""
    if not hasattr(value, "get_config"):
        return getattr(value, "__name__", value)
    return {"class": type(value).__name__, **_comparable(value.get_config())}


def _comparable(config: Any) -> Any:
    """Remove names, which Keras numbers in each process, and rates, which callbacks change, from a config."""
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
    """Return the files of states, sorted by number of batches."""
    files = [path for path in folder.glob("state-*.npz") if path.is_file()]
    return sorted(path for path in files if re.fullmatch(r"state-\d+", path.stem))


def _difference(name: str, received: Any, expected: Any) -> tuple[str, Any, Any]:
    """Return the name and both values of the first difference between two JSON values."""
    if isinstance(received, dict) and isinstance(expected, dict):
        for key in {**expected, **received}:
            if key not in received or key not in expected or received[key] != expected[key]:
                return _difference(f"{name}.{key}", received.get(key), expected.get(key))
    return name, received, expected


def _group(arrays: dict[str, np.ndarray], group: str) -> list[np.ndarray]:
    count = sum(name.startswith(f"{group}/") for name in arrays)
    return [arrays[f"{group}/{i}"] for i in range(count)]
