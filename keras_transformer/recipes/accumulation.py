"""Accumulation of the gradients of several batches."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.data.transforms import mapped

_COUNTED = 100


def weighted_by_labels(batches: tf.data.Dataset, loss: Any) -> tf.data.Dataset:
    r"""Weight batches by their numbers of labels, so that all labels have equal weight in accumulated gradients.

    A loss is the mean over the n labels of a batch, and accumulation takes the mean over batches. With the weight n / N
    of a batch, where N is the mean of n over the first 100 batches, the gradient equals that of one batch with all
    labels. Unlike `normalizer` of `LabelSmoothedCrossentropy`, it works with Keras' losses, and the validation loss
    stays a mean over labels.

    Args:
        batches: a dataset of `data`, with or without weights.
        loss: the loss; labels that it ignores do not count.

    Returns:
        Elements `(inputs, labels, weights)`.
    """

    def count(labels: tf.Tensor) -> tf.Tensor:
        if not hasattr(loss, "pad_id"):
            return tf.size(labels)
        return tf.math.count_nonzero(
            labels >= 0 if loss.pad_id is None else labels != loss.pad_id, dtype=tf.int32
        )

    counts = [count(labels) for _, labels, *_ in batches.take(_COUNTED)]
    batches.epochs.start_at(0)
    mean = np.mean(counts, dtype="float32")

    def weighted(inputs: Any, labels: tf.Tensor, *others: tf.Tensor) -> Any:
        weight = tf.repeat(tf.cast(count(labels), tf.float32) / mean, tf.shape(labels)[0])
        return inputs, labels, weight * others[0] if others else weight

    return mapped(batches, weighted, mean)
