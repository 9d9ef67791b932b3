"""Averages of checkpoints."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops


def average_checkpoints(model: Any, files: Sequence[str | os.PathLike[str]]) -> None:
    """Give a model the mean of the weights that it has saved at several times.

    Args:
        model: whose weights were saved, and which they are written to. On an error it keeps its own.
        files: as `save_weights` or `save` have written them.

    Raises:
        ValueError: where there are none, or one does not fit the model.

    Example:
        >>> average_checkpoints(model, sorted(folder.glob("epoch-*.weights.h5"))[-5:])

    References:
        Vaswani et al., "Attention Is All You Need" (2017), section 6.1.
    """
    files = list(files)
    if not files:
        raise ValueError("`files` must not be empty. Received: files=[]")
    own = model.get_weights()
    try:
        sums = [np.zeros(weight.shape, np.float64) for weight in own]
        for file in files:
            model.load_weights(os.fspath(file))
            for total, weight in zip(sums, model.weights, strict=True):
                total += ops.convert_to_numpy(ops.cast(weight.value, "float32"))
        model.set_weights([total / len(files) for total in sums])
    except BaseException:
        model.set_weights(own)
        raise
