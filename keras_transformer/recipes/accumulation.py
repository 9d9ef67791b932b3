"""Accumulation of the gradients of several batches."""

import itertools
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, mapped, on_host

_COUNTED = 100


def weighted_by_labels(batches: Dataset, loss: Any) -> Dataset:
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

    def count(labels: np.ndarray) -> int:
        if not hasattr(loss, "pad_id"):
            return labels.size
        return np.count_nonzero(labels >= 0 if loss.pad_id is None else labels != loss.pad_id)

    counts = [count(np.asarray(labels)) for _, labels, *_ in itertools.islice(batches, _COUNTED)]
    batches.epochs.start_at(0)
    mean = np.mean(counts, dtype="float32")

    def weights(labels: np.ndarray) -> np.ndarray:
        return np.full(len(labels), count(labels) / mean, "float32")

    def weighted(inputs: Any, labels: Any, *others: Any) -> Any:
        batch_weights = on_host(weights, "float32", labels)
        return inputs, labels, batch_weights * others[0] if others else batch_weights

    return mapped(batches, weighted, mean)
