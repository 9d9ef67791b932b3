"""Labels of classifiers, as their problem types need them."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

_MISSING = object()


class Labels:
    """The labels of examples, which are checked while they are read.

    Args:
        labels: classes, integers (n,); 0 or 1 for each of several, integers (n, C); or numbers, floats (n,) or (n, C).
        classes_only: whether only classes are valid.
    """

    def __init__(self, labels: Any, classes_only: bool = False) -> None:
        self._classes_only = classes_only
        self._first: np.ndarray | None = None
        in_memory = (
            isinstance(labels, Sequence) or hasattr(labels, "__array__") or not isinstance(labels, Iterable)
        )
        array = self._array(labels) if in_memory else None
        self._labels = labels if array is None else array if array.ndim else ()

    def with_examples(self, examples: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each example with its label.

        Raises:
            ValueError: if there are not as many labels as examples, or no examples.
        """
        count = 0
        every = itertools.zip_longest(examples, self._labels, fillvalue=_MISSING)
        for count, (example, label) in enumerate(every, 1):
            if example is _MISSING:
                self._refuse(f"{count - 1} examples and more labels")
            if label is _MISSING:
                self._refuse(f"{count - 1} labels and more examples")
            yield example, label
        if not count:
            self._refuse("0 examples and labels")

    def checked(self, labels: Sequence[Any]) -> np.ndarray:
        """Return consecutive labels as an array: classes, int32 (n,), or others, float32 (n, C).

        Raises:
            ValueError: if they are none of these, or others than the labels before.
        """
        found = self._array(labels)
        integers = found.dtype.kind in "iub"
        classes = integers and found.ndim == 1 and (found >= 0).all()
        several = integers and found.ndim == 2 and np.isin(found, (0, 1)).all()
        numbers = found.dtype.kind == "f" and found.ndim in (1, 2) and np.isfinite(found).all()
        if not classes and (self._classes_only or not (several or numbers)):
            self._refuse(f"labels {str(labels)[:50]}")
        first = self._first = found if self._first is None else self._first
        if (found.dtype.kind == "f", found.shape[1:]) != (first.dtype.kind == "f", first.shape[1:]):
            self._refuse(f"{first[0]} and {found[0]}, which differ in type or shape")
        return found.astype("int32") if classes else found.reshape(len(found), -1).astype("float32")

    def _array(self, labels: Any) -> np.ndarray:
        try:
            return np.asarray(labels)
        except ValueError:  # of different shapes
            return self._refuse(f"labels {str(labels)[:50]}")

    def _refuse(self, received: str) -> NoReturn:
        others = "" if self._classes_only else ", 0 or 1 for each of several, or finite floats"
        raise ValueError(
            "`labels` must hold a label for each of at least one example: non-negative integers"
            f"{others}. Received: {received}"
        )
