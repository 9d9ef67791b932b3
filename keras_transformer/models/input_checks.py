"""Checks of ids and labels on the host in `fit`, `evaluate` and `predict`.

An id outside the vocabulary or a label outside the classes raises no error under XLA, which reads another row instead.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Self

import keras
import numpy as np

from keras_transformer.models.host_batches import is_dataset, observed
from keras_transformer.models.input_specs import (
    InputSpecs,
    as_dictionary,
    check_numbers,
    check_values,
    with_integers,
)

_ELEMENTWISE = (
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "huber",
    "log_cosh",
    "mean_absolute_error",
    "mean_squared_error",
)
"""Keras losses whose labels have the shape of the outputs."""


class InputCheck:
    """Check the ids and labels of `fit`, `evaluate` or `predict` on the host.

    Arrays are checked at once. The batches of a `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator are checked
    when they are read, so that no batch is read twice.

    Args:
        model: the model, compiled if there are labels.

    Attributes:
        error: the first error of a batch; the backend raises a different error in its place.
    """

    def __init__(self, model: Any) -> None:
        self.error: Exception | None = None
        self._specs: InputSpecs = model.input_specs()
        losses = keras.tree.flatten_with_path(getattr(model, "loss", None))
        self._losses = {path: loss for path, loss in losses if loss is not None}
        self._output_shape: Callable[[Any], Any] = model.compute_output_shape

    @contextlib.contextmanager
    def raised(self) -> Iterator[Self]:
        """Raise the first error of a batch in place of the backend's error."""
        try:
            yield self
        except Exception:
            if self.error is None:
                raise
            raise self.error from None

    def data(self, x: Any, y: Any = None) -> Any:
        """Check arrays, or return a dataset whose batches are checked when they are read."""
        if is_dataset(x):
            if hasattr(x, "element_spec"):  # strings of a `tf.data.Dataset` fail before a batch is read
                _check_types(*keras.utils.unpack_x_y_sample_weight(x.element_spec)[:2])
            return observed(x, self.batch, self._specs)
        self.batch(x, y)
        return x

    def validation_data(self, data: Any) -> Any:
        """Check the `validation_data` of `fit`: arrays, or a dataset as in `data`."""
        if not isinstance(data, tuple | list) or len(data) < 2:
            return data if data is None else self.data(data)
        self.batch(*data[:2])
        return data

    def batch(self, x: Any, y: Any = None) -> None:
        """Raise a ValueError for the first id or label of arrays that is out of range."""
        leaves = keras.tree.flatten((x, y))
        try:
            _check_types(x, y)
            if not all(leaf is None or hasattr(leaf, "shape") for leaf in leaves):
                return  # data of another type, which Keras accepts or rejects
            self._check(
                *keras.tree.map_structure(lambda leaf: None if leaf is None else np.asarray(leaf), (x, y))
            )
        except (TypeError, ValueError) as error:
            self.error = self.error or error
            raise

    def _check(self, x: Any, y: Any) -> None:
        if self._specs:
            as_dictionary(with_integers(x, self._specs), self._specs)
        if y is None:
            return
        shapes = self._output_shapes(x) if self._losses else None
        for path, labels in keras.tree.flatten_with_path(y):
            if labels is None:
                continue
            name, shape = "y" + "".join(f"[{key!r}]" for key in path), shapes
            if labels.dtype.kind == "f":
                check_values(name, labels, ~np.isfinite(labels), "finite")
            for key in path:
                shape = shape.get(key) if isinstance(shape, dict) else None
            if path in self._losses and isinstance(shape, tuple | list):
                _check_labels(name, self._losses[path], labels, tuple(shape))

    def _output_shapes(self, x: Any) -> Any:
        """Return the shapes of the model's outputs, or None if they are unknown."""
        try:
            return self._output_shape(keras.tree.map_structure(lambda leaf: leaf.shape, x))
        except NotImplementedError:
            return None


def _check_labels(name: str, loss: Any, labels: np.ndarray, shape: tuple[int | None, ...]) -> None:
    """Raise a ValueError if labels do not fit the loss and the output shape."""
    loss = keras.losses.get(loss)
    function = getattr(getattr(loss, "fn", loss), "__name__", "")
    if hasattr(loss, "ignore_class") or function == "sparse_categorical_crossentropy":
        *axes, classes = shape
        expected: Any = (tuple(axes), (*axes, 1))
    elif function in _ELEMENTWISE:
        expected, classes = (shape, shape[:-1] if shape[-1] == 1 else shape), None
    else:
        return
    if not any(_fits(labels.shape, option) for option in expected):
        raise ValueError(
            f"`{name}` must be labels of shape {_written(expected[0])} for outputs of shape {_written(shape)}. "
            f"Received: {name}.shape={labels.shape}"
        )
    if classes is None:
        return
    ignored = [getattr(loss, setting, None) for setting in ("ignore_class", "pad_id")]
    known = (labels >= 0) & (labels < classes) & (labels == np.floor(labels))
    known |= np.isin(labels, [label for label in ignored if label is not None])
    if getattr(loss, "pad_id", 0) is None:
        known |= labels < 0
    also = "".join(
        f", or {setting}={label}"
        for setting, label in zip(("ignore_class", "pad_id"), ignored, strict=True)
        if label is not None and not 0 <= label < classes
    )
    hint = "" if "ignore_class" in also else " (`ignore_class` of the loss excludes a label)"
    check_values(name, labels, ~known, f"integers in [0, {classes}){also}{hint}")


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(
        expected_size in (size, None) for size, expected_size in zip(shape, expected, strict=True)
    )


def _written(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)}{',' * (len(shape) == 1)})"


def _check_types(x: Any, y: Any) -> None:
    """Raise an error if inputs or labels are ragged tensors or strings."""
    for name, part in (("x", x), ("y", y)):
        for path, leaf in keras.tree.flatten_with_path(part):
            check_numbers(name + "".join(f"[{key!r}]" for key in path), leaf)
