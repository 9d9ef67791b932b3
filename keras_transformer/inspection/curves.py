"""Training curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_options.arguments import check_one_of

Records = Mapping[str, Sequence[float]]

_COLUMNS = 3
_LAST = ("learning_rate", "tokens_per_second")
_MANY_EPOCHS = 30


def plot_history(history: Any, monitor: str = "val_loss", mode: str = "min") -> Any:
    """Plot a training history, with one panel of training and validation curves for each quantity.

    Loss comes first, learning rate and tokens per second last. A dotted line marks the best epoch.

    Args:
        history: the return value of `fit`, or its `history` dictionary.
        monitor: the quantity that determines the best epoch. If the history lacks it, none is marked.
        mode: "min" if the lowest value is the best, or "max".

    Returns:
        The matplotlib figure.

    Example:
        >>> figure = plot_history({"loss": [2.0, 1.0, 0.5], "val_loss": [2.1, 1.4, 1.6]})
    """
    import matplotlib.pyplot as plt

    check_one_of(("max", "min"), mode=mode)
    records: Records = getattr(history, "history", history)
    quantities = curves(records)
    if not quantities:
        raise ValueError(f"`history` must have at least one metric. Received: history={dict(records)}")
    first = 1 + (getattr(history, "epoch", None) or [0])[0]
    best = best_epoch(records, monitor, mode)
    columns = min(_COLUMNS, len(quantities))
    rows = -(-len(quantities) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(4.2 * columns, 3.1 * rows), layout="constrained", squeeze=False
    )
    for panel in panels.flat[len(quantities) :]:
        panel.remove()
    for (name, pair), axes in zip(quantities.items(), panels.flat, strict=False):
        for label, values, color in zip(("training", "validation"), pair, ("C0", "C1"), strict=True):
            if len(values):
                marker = "o" if len(values) <= _MANY_EPOCHS else None
                epochs = range(first, first + len(values))
                axes.plot(epochs, values, marker=marker, ms=3.5, lw=1.6, label=label, color=color)
        _decorate(axes, name)
        if best is not None:
            axes.axvline(first + best, color="0.5", lw=1, ls=":", zorder=0)
            if monitor.removeprefix("val_") == name:
                _annotate(axes, first, first + best, records[monitor])
        if len(pair[1]):
            axes.legend(frameon=False)
    return figure


def curves(history: Records) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    """Return the training and validation values of each quantity of a history; those it does not have are empty."""
    names = list(dict.fromkeys(name.removeprefix("val_") for name in history))
    names.sort(key=lambda name: (name in _LAST, name != "loss"))
    return {name: (history.get(name, []), history.get(f"val_{name}", [])) for name in names}


def best_epoch(history: Records, monitor: str = "val_loss", mode: str = "min") -> int | None:
    """Return the index of the best epoch of a history, or None if it has no finite value of `monitor`."""
    values = np.asarray(history.get(monitor, []), "float64") * (1 if mode == "min" else -1)
    values[~np.isfinite(values)] = np.inf
    return int(values.argmin()) if np.isfinite(values).any() else None


def _decorate(axes: Any, name: str) -> None:
    axes.set(xlabel="epoch", title=name.replace("_", " "))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if name == "tokens_per_second":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    if name == "learning_rate":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2), useMathText=True)


def _annotate(axes: Any, first: int, best: int, values: Sequence[float]) -> None:
    """Label the best of the values, which begin with the epoch `first`, on the side with enough space."""
    value = values[best - first]
    axes.margins(y=0.14)
    axes.plot(best, value, "o", ms=9, mfc="none", color="C1")
    axes.annotate(
        f"{value:.4g} in epoch {best}",
        (best, value),
        xytext=(0, 9),
        textcoords="offset points",
        ha=("left", "center", "right")[min(2, 3 * (best - first) // len(values))],
        size=8.5,
        color="C1",
    )
