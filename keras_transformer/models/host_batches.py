"""Observers of batches on the host: functions called with each batch of a dataset when it is read."""

import sys
import types
from collections.abc import Callable, Generator, Mapping
from typing import Any

import keras
import numpy as np

Observer = Callable[[Any, Any], None]
"""A function of the inputs and labels of a batch, as NumPy arrays. If it raises an error, iteration stops."""


def is_dataset(data: Any) -> bool:
    """Return True for a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator."""
    tensorflow = sys.modules.get("tensorflow")
    is_tensorflow = tensorflow is not None and isinstance(data, tensorflow.data.Dataset)
    return is_tensorflow or isinstance(data, keras.utils.PyDataset | types.GeneratorType)


def epochs_of(data: Any) -> Any:
    """Return the attribute `epochs` of a dataset of `keras_transformer.data`, or None for other data."""
    epochs = getattr(data, "epochs", None)
    return epochs if hasattr(epochs, "start_at") else None


def observed(data: Any, observer: Observer, specs: Mapping[str, Any]) -> Any:
    """Return a dataset with the same batches, which calls `observer` on the host with each batch that is read.

    It keeps the attribute `epochs` of a dataset of `keras_transformer.data`.

    Args:
        data: a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator. A `tf.data.Dataset` with elements that are
            not tensors, such as ragged ones, is returned unchanged.
        observer: the function. In place of finite inputs of floats of a `tf.data.Dataset`, such as images, it receives
            zeros of the same shape, so that they are not copied.
        specs: the `InputSpec` of each input, by name; an input without one is one of floats.
    """
    if isinstance(data, keras.utils.PyDataset):
        return _with_epochs_of(data, _ObservedPyDataset(data, observer))
    if isinstance(data, types.GeneratorType):
        return _generator(data, observer)
    return _dataset(data, observer, specs)


def _generator(batches: Generator[Any, None, None], observer: Observer) -> Generator[Any, None, None]:
    for batch in batches:
        observer(*keras.utils.unpack_x_y_sample_weight(batch)[:2])
        yield batch


def _dataset(dataset: Any, observer: Observer, specs: Mapping[str, Any]) -> Any:
    tensorflow = sys.modules["tensorflow"]
    flatten = tensorflow.nest.flatten
    if not all(isinstance(spec, tensorflow.TensorSpec) for spec in flatten(dataset.element_spec)):
        return dataset

    def observed_batch(*batch: Any) -> Any:
        element = batch if isinstance(dataset.element_spec, tuple) else batch[0]
        x, y, _ = keras.utils.unpack_x_y_sample_weight(element)
        structure = (x,) if y is None else (x, y)
        sent = [
            _shape_if_finite(tensor)
            if part == 0 and tensor.dtype.is_floating and _is_float(path, specs)
            else tensor
            for (part, *path), tensor in keras.tree.flatten_with_path(structure)
        ]

        def observe(*arrays: np.ndarray) -> Any:
            given = iter(arrays)
            leaves = [
                _zeros_if_finite(next(given), next(given)) if isinstance(item, tuple) else next(given)
                for item in sent
            ]
            inputs, *labels = tensorflow.nest.pack_sequence_as(structure, leaves)
            observer(inputs, labels[0] if labels else None)
            return np.bool_(True)

        done = tensorflow.numpy_function(observe, flatten(sent), tensorflow.bool)
        with tensorflow.control_dependencies([done]):
            return tensorflow.nest.map_structure(tensorflow.identity, element)

    # Observe a batch during the previous step.
    return _with_epochs_of(dataset, dataset.map(observed_batch).prefetch(1))


def _is_float(path: list[Any], specs: Mapping[str, Any]) -> bool:
    """Return whether an input is one of floats, not of integers that are given as floats; without a path, the only."""
    required = [name for name, spec in specs.items() if spec.required]
    spec = specs.get(*path or required) if len(path or required) == 1 else None
    return spec is None or spec.is_float


def _shape_if_finite(tensor: Any) -> tuple[Any, Any]:
    """Return the shape of a tensor, and no values if all are finite, so that images are not copied."""
    tensorflow = sys.modules["tensorflow"]
    flat = tensorflow.reshape(tensor, [-1])
    is_finite = tensorflow.reduce_all(tensorflow.math.is_finite(flat))
    return tensorflow.shape(tensor), flat[: tensorflow.where(is_finite, 0, tensorflow.size(flat))]


def _zeros_if_finite(shape: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the values of a tensor, or zeros if they were finite and not sent."""
    return values.reshape(shape) if values.size else np.broadcast_to(np.float32(0), shape)


def _with_epochs_of(dataset: Any, result: Any) -> Any:
    if (epochs := epochs_of(dataset)) is not None:
        result.epochs = epochs
    return result


class _ObservedPyDataset(keras.utils.PyDataset):
    """A `PyDataset` that calls an observer with each batch that is read."""

    def __init__(self, dataset: Any, observer: Observer) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._observer = dataset, observer

    @property
    def num_batches(self) -> int | None:
        """The number of batches, or None if unlimited."""
        return self._dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        """Return a batch."""
        batch = self._dataset[index]
        self._observer(*keras.utils.unpack_x_y_sample_weight(batch)[:2])
        return batch

    def on_epoch_begin(self) -> None:
        """Begin an epoch."""
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """End an epoch."""
        self._dataset.on_epoch_end()
