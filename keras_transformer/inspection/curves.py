"""Training curves."""

from collections.abc import Mapping, Sequence
from typing import Any


def plot_history(history: Any) -> Any:
    """Draw what `fit` recorded: a panel for each quantity, training and validation in each.

    Args:
        history: what `fit` returned, or its `history` dictionary.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: where nothing was recorded.
    """
    import matplotlib.pyplot as plt

    records: Mapping[str, Sequence[float]] = getattr(history, "history", history)
    names = [name for name in records if not name.startswith("val_")]
    if not names:
        raise ValueError(f"`history` must hold at least one quantity. Received: history={dict(records)}")
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
