"""Datasets of batches for `fit`: a `tf.data.Dataset` where TensorFlow is installed, else a `keras.utils.PyDataset`.

A batch is a NumPy function of the numbers of its epoch and of itself, and both kinds of dataset have the same batches.
"""

import copy
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np

from keras_transformer.data.epochs import Batch, Epochs, Objective, Order
from keras_transformer_options.arguments import check, is_integer

if TYPE_CHECKING:
    import tensorflow as tf

Dataset: TypeAlias = "tf.data.Dataset | keras.utils.PyDataset"
ReadBatch = Callable[[int, int], tuple[Any, ...]]
"""A function of the number of an epoch and the number of a batch."""

_HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
_PREFETCHED = 4  # batches


class BatchDataset(keras.utils.PyDataset):
    """Batches of NumPy arrays; each iteration is an epoch.

    Args:
        read: a function from the numbers of an epoch and of a batch to the batch.
        epochs: the position in the epochs.

    Attributes:
        epochs: the position in the epochs.
    """

    def __init__(self, read: ReadBatch, epochs: Epochs) -> None:
        super().__init__()
        self.read, self.epochs = read, epochs

    def __len__(self) -> int:
        return self.epochs.count - self.epochs.current[1]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return a batch of the current epoch, `index` batches after the one that it started with."""
        epoch, first = self.epochs.current
        if index >= len(self):
            raise IndexError(
                f"`index` must be less than {len(self)}, the number of batches of an epoch that starts at batch "
                f"{first}. Received: index={index}"
            )
        return self.read(epoch, first + index)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Begin the next epoch, and yield its batches."""
        self.on_epoch_begin()
        epoch, first = self.epochs.current
        return (self.read(epoch, number) for number in range(first, self.epochs.count))

    def on_epoch_begin(self) -> None:
        """Begin the next epoch; called by Keras."""
        self.epochs.begin()

    def on_epoch_end(self) -> None:
        """End the epoch; called by Keras."""
        self.epochs.end()


def batches(
    order: Order,
    objective: Objective,
    seed: int,
    content: Iterable[np.ndarray | str],
    nondeterministic_tokenizer: str = "",
) -> Dataset:
    """Make a dataset of batches, each a function of its number.

    Args:
        order: the rows of each batch.
        objective: a function from the rows of a batch to its inputs and labels.
        seed: the seed of all random numbers, beside the numbers of epochs and batches.
        content: the arrays that the batches are made of, or hashes of them, for `Epochs.fingerprint`.
        nondeterministic_tokenizer: see `Epochs`.

    Returns:
        The dataset, with its `Epochs` as the attribute `epochs`.
    """
    check(is_integer(seed), "be an integer", seed=seed)
    count, shard, unsigned = order.count, order.shard, int(seed) % 2**63
    digest = hashlib.blake2b(f"{count} {seed} {shard.count}".encode(), digest_size=16)
    for item in (*content, *order.content):
        if isinstance(item, str):
            digest.update(item.encode())
            continue
        array = np.ascontiguousarray(item)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data if array.size else b"")
    epochs = Epochs(count, digest.hexdigest(), nondeterministic_tokenizer)

    def read(epoch: int, number: int) -> tuple[Any, Any]:
        seeds = unsigned, epoch
        return objective(Batch(*order(number, seeds), (*seeds, number * shard.count + shard.index), seeds))

    if not _HAS_TENSORFLOW:
        return BatchDataset(read, epochs)
    examples = [objective(Batch(*rows, (0, 0, 0), (0, 0))) for rows in order.of_each_shape()]
    return _in_tensorflow(read, epochs, examples)


def _in_tensorflow(read: ReadBatch, epochs: Epochs, examples: Sequence[Any]) -> "tf.data.Dataset":
    """Return a `tf.data.Dataset`, in which an axis has a static size if the examples of batches agree on it."""
    import tensorflow as tf

    def spec(*arrays: np.ndarray) -> tf.TensorSpec:
        shapes = zip(*(array.shape for array in arrays), strict=True)
        return tf.TensorSpec(
            [sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes], arrays[0].dtype
        )

    structure = tf.nest.map_structure(spec, *examples)
    specs = tf.nest.flatten(structure)

    def arrays(epoch: np.int64, number: np.int64) -> list[np.ndarray]:
        return tf.nest.flatten(read(int(epoch), int(number)))

    def numbers(_: tf.Tensor) -> tf.data.Dataset:
        epoch, first = tf.numpy_function(
            lambda: tuple(map(np.int64, epochs.begin())), [], (tf.int64, tf.int64), stateful=True
        )
        epoch, first = (tf.ensure_shape(number, ()) for number in (epoch, first))
        return tf.data.Dataset.range(first, epochs.count).map(lambda number: (epoch, number))

    def batch(epoch: tf.Tensor, number: tf.Tensor) -> Any:
        tensors = tf.numpy_function(arrays, [epoch, number], [spec.dtype for spec in specs], stateful=False)
        shaped = [tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, specs, strict=True)]
        return tf.nest.pack_sequence_as(structure, shaped)

    dataset = tf.data.Dataset.range(1).flat_map(numbers).map(batch)
    dataset = _prefetched(dataset.apply(tf.data.experimental.assert_cardinality(epochs.count)))
    dataset.epochs = epochs
    return dataset


def _prefetched(dataset: "tf.data.Dataset") -> "tf.data.Dataset":
    """Prefetch the batches of a dataset, without autotuning.

    With autotuning, TensorFlow (2.20 and 2.21) ends an epoch only when its tuner next wakes: 1.3, 2.6, 5.1, …, 82
    seconds after the start, then every minute. An epoch of 21 seconds takes 41.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED).with_options(options)


def element_spec(dataset: Dataset) -> Any:
    """Return a batch of a dataset, or tensor specs of its batches, of which the dtypes and ranks are known."""
    if is_tensorflow(dataset):
        return dataset.element_spec
    if isinstance(dataset, BatchDataset):
        return dataset.read(0, 0)
    raise TypeError(
        "`dataset` must be a dataset of keras_transformer.data or a tf.data.Dataset. "
        f"Received: dataset={dataset!r}"
    )


def is_tensorflow(dataset: Any) -> bool:
    """Return whether data is a `tf.data.Dataset`."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(dataset, tensorflow.data.Dataset)


def mapped(dataset: Dataset, function: Callable[..., Any], content: np.ndarray | None = None) -> Dataset:
    """Apply a function to the batches of a dataset, so that `training.ExactResume` still supports it.

    Args:
        dataset: a `tf.data.Dataset` or a `BatchDataset`.
        function: a function of the arrays or tensors of a batch, such as `on_host` computes, which neither draws random
            numbers nor keeps a state.
        content: the values that the function depends on, for `Epochs.fingerprint`.
    """
    epochs = copy.copy(getattr(dataset, "epochs", None))
    if epochs is not None and content is not None:
        digest = hashlib.blake2b(epochs.fingerprint.encode() + content.tobytes(), digest_size=16)
        epochs.fingerprint = digest.hexdigest()
    if not is_tensorflow(dataset):
        return BatchDataset(lambda epoch, number: function(*dataset.read(epoch, number)), epochs)
    result = _prefetched(dataset.map(function))
    if epochs is not None:
        result.epochs = epochs
    return result


def on_host(function: Callable[..., np.ndarray], dtype: str, *inputs: Any) -> Any:
    """Call a NumPy function (B,) with arrays (B, …) or, in `mapped` for TensorFlow, with tensors."""
    if all(isinstance(each, np.ndarray) for each in inputs):
        return function(*inputs)
    import tensorflow as tf

    result = tf.numpy_function(function, inputs, dtype, stateful=False)
    return tf.ensure_shape(result, inputs[0].shape[:1])
