"""Transformations of batches that `training.ExactResume` supports."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, element_spec, mapped, on_host
from keras_transformer_options.arguments import is_number

LENGTHS = {"token_ids": "lengths", "source_ids": "source_lengths", "target_ids": "target_lengths"}


def with_class_weight(dataset: Dataset, class_weight: Mapping[int, float]) -> Dataset:
    """Weight examples by their classes, as `fit(class_weight=...)`, for training that `training.ExactResume` continues.

    With `fit(class_weight=...)`, Keras wraps the dataset, so that it cannot be resumed within an epoch.

    Args:
        dataset: elements `(inputs, labels)` with classes, integers (B,), or `(inputs, labels, weights)`.
        class_weight: a weight for each class; 1 for the classes that are absent.

    Returns:
        Elements `(inputs, labels, weights)` with weights float32 (B,), the dataset's weights times those of the
        classes.

    Example:
        >>> import tensorflow as tf
        >>> batches = tf.data.Dataset.from_tensors(([[5, 6], [7, 8]], [0, 1]))
        >>> next(iter(with_class_weight(batches, {1: 3.0})))[2].numpy()
        array([1., 3.], dtype=float32)
    """
    spec = element_spec(dataset)
    classes = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not hasattr(classes, "dtype") or "int" not in classes.dtype.name or len(classes.shape) != 1:
        raise ValueError(
            f"`dataset` must have classes, integers (B,), as its labels. Received: element_spec={spec}"
        )
    for number, weight in class_weight.items():
        if int(number) != number or number < 0 or not is_number(weight) or not 0 <= weight < np.inf:
            raise ValueError(
                "`class_weight` must have a finite weight of at least 0 for each of several classes. "
                f"Received: {number!r}: {weight!r}"
            )
    table = np.ones(max(class_weight, default=0) + 2, "float32")  # the last one is for all greater classes
    table[list(class_weight)] = list(class_weight.values())

    def weights(labels: np.ndarray) -> np.ndarray:
        return table[np.clip(labels, 0, len(table) - 1)]

    def weighted(inputs: Any, labels: Any, *others: Any) -> Any:
        class_weights = on_host(weights, "float32", labels)
        return inputs, labels, class_weights * others[0] if others else class_weights

    return mapped(dataset, weighted, table)


def with_lengths(dataset: Dataset, pad_id: int = 0) -> Dataset:
    """Add the lengths of rows to batches whose padding is at the end, as in all batches of `data`.

    The models pass them to `ops.attention` as `key_lengths`, with which the kernel "fused" can be used: a mask does not
    say that padding is at the end.

    Args:
        dataset: elements of inputs, or of inputs and labels and weights; inputs are a dictionary with ids (B, T) under
            "token_ids", or under "source_ids" and "target_ids".
        pad_id: the padding id. A first target id is never padding.

    Returns:
        The same elements, with "lengths" (B,), or "source_lengths" and "target_lengths", in the inputs. Iteration
        raises an error if padding is before the end of a row: `tf.errors.InvalidArgumentError` on TensorFlow, or a
        ValueError.

    Example:
        >>> import tensorflow as tf
        >>> batches = tf.data.Dataset.from_tensors({"token_ids": [[5, 6, 0], [7, 0, 0]]})
        >>> next(iter(with_lengths(batches)))["lengths"].numpy()
        array([2, 1], dtype=int32)
    """
    spec = element_spec(dataset)
    inputs_spec = spec[0] if isinstance(spec, tuple) else spec
    ids = [name for name in LENGTHS if isinstance(inputs_spec, dict) and name in inputs_spec]
    if not ids:
        raise ValueError(
            f"`dataset` must have inputs with ids: one of {sorted(LENGTHS)}. Received: element_spec={spec}"
        )

    def add(inputs: dict[str, Any], *others: Any) -> Any:
        lengths = {
            LENGTHS[name]: on_host(functools.partial(_lengths, name, pad_id), "int32", inputs[name])
            for name in ids
        }
        inputs_and_lengths = {**inputs, **lengths}
        return (inputs_and_lengths, *others) if isinstance(spec, tuple) else inputs_and_lengths

    return mapped(dataset, add)


def _lengths(name: str, pad_id: int, ids: np.ndarray) -> np.ndarray:
    """Return the lengths, int32 (B,), if padding is at the end."""
    places = np.arange(1, ids.shape[1] + 1)
    real = ids != pad_id
    if name == "target_ids":  # the start id may be the padding id
        real[:, 0] = True
    lengths = np.where(real, places, 0).max(axis=1)
    if not (real | (places > lengths[:, None])).all():
        raise ValueError(f"Padding of `{name}` must be at the end of each row, but some is before other ids.")
    return lengths.astype(np.int32)
