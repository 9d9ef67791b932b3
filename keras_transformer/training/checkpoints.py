"""Averaging of checkpoints."""

import os
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops


def average_checkpoints(model: Any, files: Iterable[str | os.PathLike[str]]) -> None:
    """Set the weights of a model to the mean of several checkpoints.

    Args:
        model: the model of the checkpoints. Its weights are unchanged if an error is raised.
        files: paths of files written by `save_weights` or `save`.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if there are no files, or a file does not match the model.

    Example:
        >>> average_checkpoints(model, sorted(folder.glob("epoch-*.weights.h5"))[-5:])

    References:
        Vaswani et al., "Attention Is All You Need" (2017), section 6.1.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a Keras model. Received: a {type(model).__name__}")
    is_list = isinstance(files, Iterable) and not isinstance(files, str | os.PathLike)
    listed: list[Any] = list(files) if is_list else [None]
    if not all(isinstance(file, str | os.PathLike) for file in listed):
        raise TypeError(f"`files` must be a list of paths. Received: files={files!r}")
    if not listed:
        raise ValueError("`files` must not be empty. Received: files=[]")
    for row, file in enumerate(listed):
        if not os.path.isfile(file):
            raise FileNotFoundError(
                f"`files` must be existing files. Received: files[{row}]={os.fspath(file)!r}"
            )
    original = model.get_weights()
    try:
        sums = [np.zeros(weight.shape, np.float64) for weight in original]
        for file in listed:
            model.load_weights(os.fspath(file))
            for total, weight in zip(sums, model.weights, strict=True):
                total += ops.convert_to_numpy(ops.cast(weight.value, "float32"))
        model.set_weights([total / len(listed) for total in sums])
    except BaseException:
        model.set_weights(original)
        raise
