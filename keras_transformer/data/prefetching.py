"""The last step of each dataset: batches prepared in the background."""

import tensorflow as tf

_BATCHES = 4  # as many as fit next to a training step; each is small


def prefetched(dataset: tf.data.Dataset, cardinality: int | None = None) -> tf.data.Dataset:
    """Prefetch the batches of a dataset, without autotuning.

    With autotuning, TensorFlow (2.20 and 2.21) only ends an epoch when its tuner next wakes, at 1.3, 2.6, 5.1, …,
    82 seconds after the start and then each minute: an epoch of 21 seconds takes 41.

    Args:
        dataset: batches.
        cardinality: the number of batches, where TensorFlow cannot derive it.

    Returns:
        The same batches.
    """
    if cardinality is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_BATCHES).with_options(options)
