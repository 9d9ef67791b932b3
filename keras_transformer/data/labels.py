"""Labels of classifiers, as their problem types need them."""

from typing import Any

import numpy as np


def checked_labels(labels: Any, count: int, *, classes_only: bool = False) -> np.ndarray:
    """Return labels as an array if they are valid.

    Args:
        labels: classes, integers (n,); 0 or 1 for each of several, integers (n, C); or numbers, floats (n,) or (n, C).
        count: n, the number of examples.
        classes_only: whether only classes are valid.

    Returns:
        Classes, int32 (n,); others float32 (n, C).

    Raises:
        ValueError: if they are none of these, or not one for each of at least one example.
    """
    found = np.asarray(labels)
    integers = found.dtype.kind in "iub"
    classes = integers and found.ndim == 1 and (found >= 0).all()
    several = integers and found.ndim == 2 and np.isin(found, (0, 1)).all()
    numbers = found.dtype.kind == "f" and found.ndim in (1, 2) and np.isfinite(found).all()
    valid = classes or ((several or numbers) and not classes_only)
    if not valid or not found.size or len(found) != count:
        others = "" if classes_only else ", 0 or 1 for each of several, or finite floats"
        raise ValueError(
            "`labels` must hold a label for each of at least one example: non-negative integers"
            f"{others}. Received: {count} examples and labels {str(labels)[:50]}"
        )
    return found.astype("int32") if classes else found.reshape(len(found), -1).astype("float32")
