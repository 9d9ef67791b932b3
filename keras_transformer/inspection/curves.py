"""Training curves."""

from collections.abc import Mapping, Sequence
from typing import Any


def plot_history(history: Any) -> Any:
    """Plot a training history, with one panel of training and validation curves for each metric.

    Args:
        history: the return value of `fit`, or its `history` dictionary.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: if the history is empty.
    """
    import matplotlib.pyplot as plt

    records: Mapping[str, Sequence[float]] = getattr(history, "history", history)
    names = [name for name in records if not name.startswith("val_")]
    if not names:
        raise ValueError(f"`history` must have at least one metric. Received: history={dict(records)}")
    figure, panels = plt.subplots(
        1, len(names), figsize=(4.2 * len(names), 3.2), layout="constrained", squeeze=False
    )
    for name, axes in zip(names, panels[0], strict=True):
        for label, key in (("training", name), ("validation", f"val_{name}")):
            if key in records:
                axes.plot(range(1, 1 + len(records[key])), records[key], marker="o", ms=4, label=label)
        axes.set(xlabel="epoch", title=name.replace("_", " "))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure
