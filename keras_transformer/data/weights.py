"""Weights of examples."""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import prefetched
from keras_transformer_options.arguments import is_number


def with_class_weight(dataset: tf.data.Dataset, class_weight: Mapping[int, float]) -> tf.data.Dataset:
    """Weight examples by their classes, as `fit(class_weight=...)`, for training that `training.ExactResume` continues.

    `fit` itself makes another data set of one with class weights, whose batches have no numbers.

    Args:
        dataset: elements `(inputs, labels)` with classes, integers (B,), or `(inputs, labels, weights)`.
        class_weight: a weight for each class; 1 for the classes that are absent.

    Returns:
        Elements `(inputs, labels, weights)` with weights float32 (B,), those of the data set multiplied by those of the
        classes.

    Raises:
        ValueError: if the data set has no classes, or a class or its weight is negative or no number.

    Example:
        >>> batches = tf.data.Dataset.from_tensors(([[5, 6], [7, 8]], [0, 1]))
        >>> next(iter(with_class_weight(batches, {1: 3.0})))[2].numpy()
        array([1., 3.], dtype=float32)
    """
    spec = dataset.element_spec
    classes = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not isinstance(classes, tf.TensorSpec) or not classes.dtype.is_integer or classes.shape.rank != 1:
        raise ValueError(
            f"`dataset` must have classes, integers (B,), as its labels. Received: element_spec={spec}"
        )
    for number, weight in class_weight.items():
        if int(number) != number or number < 0 or not is_number(weight) or not 0 <= weight < np.inf:
            raise ValueError(
                "`class_weight` must have a finite weight of at least 0 for each of several classes. "
                f"Received: {number!r}: {weight!r}"
            )
    table = np.ones(
        max(class_weight, default=0) + 2, "float32"
    )  # the last one is that of all classes after it
    table[list(class_weight)] = list(class_weight.values())
    with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
        weights = tf.constant(table)

    def weighted(inputs: Any, labels: tf.Tensor, *others: tf.Tensor) -> Any:
        found = tf.gather(weights, tf.clip_by_value(tf.cast(labels, tf.int64), 0, len(table) - 1))
        return inputs, labels, found * others[0] if others else found

    return mapped(dataset, weighted, table)


def mapped(dataset: tf.data.Dataset, function: Any, content: np.ndarray) -> tf.data.Dataset:
    """Apply a function to the batches of a data set, which `training.ExactResume` can continue afterwards too.

    Args:
        dataset: the data set.
        function: a function of an element, which neither draws random numbers nor keeps a state.
        content: the values that the function depends on, for `Epochs.fingerprint`.
    """
    found = prefetched(dataset.map(function, tf.data.AUTOTUNE, deterministic=True))
    if hasattr(dataset, "epochs"):
        found.epochs = copy.copy(dataset.epochs)
        digest = hashlib.blake2b(dataset.epochs.fingerprint.encode() + content.tobytes(), digest_size=16)
        found.epochs.fingerprint = digest.hexdigest()
    return found
