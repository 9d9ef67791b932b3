"""Plots of texts as coloured tokens."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_PALETTE = ("#2a6fbb", "#d1622b", "#2f8f5b", "#7d5bb0", "#b8303f", "#a38a17", "#c9579a", "#66788a")
_UNCOLOURED = "#eef1f4"
_ADVANCE = 0.602  # width of a character relative to the font size, in matplotlib's monospaced font
_POINTS = 9.0
_LEADING = 2.1  # line height relative to the font size


def plot_tokens(
    tokens: Sequence[str],
    values: Any = None,
    groups: Sequence[str | None] | None = None,
    *,
    label: str = "",
    width: int = 96,
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """Plot the tokens of a text in boxes, coloured by value (darker for larger) or by group.

    Args:
        tokens: n strings, at most `width` characters each.
        values: n numbers; NaN for an uncoloured token.
        groups: n names in place of values; None for an uncoloured token.
        label: the label of the colour bar.
        width: the width of a line, in characters.
        axes: matplotlib axes, by default new ones with the size of the text.
        title: the title of the figure.

    Returns:
        The matplotlib axes.
    """
    import matplotlib.pyplot as plt

    _check(tokens, values, groups, width)
    places, lines = _places(tokens, width)
    lines = max(lines, 2)  # space for a legend
    if axes is None:
        size = (width * _ADVANCE * _POINTS / 72 + 1.4, lines * _LEADING * _POINTS / 72 + 0.5)
        _, axes = plt.subplots(figsize=size, layout="constrained")
    fills, colours = _colours(values, groups, len(tokens), label, axes)
    axes.set(xlim=(-0.5, width + 0.5), ylim=(lines - 0.4, -0.6))
    axes.set_axis_off()
    if title:
        axes.set_title(title, loc="left")
    axes.figure.draw_without_rendering()  # fixes the layout and so the size of a character
    inches = axes.get_window_extent().width / axes.figure.dpi
    points = inches * 72 / (width + 1) / _ADVANCE
    for (column, line), token, fill, colour in zip(places, tokens, fills, colours, strict=True):
        axes.add_patch(plt.Rectangle((column - 0.35, line - 0.38), len(token) + 0.7, 0.76, color=fill, lw=0))
        centre = column + len(token) / 2
        axes.text(
            centre, line, token, size=points, family="monospace", color=colour, ha="center", va="center"
        )
    return axes


def _check(tokens: Sequence[str], values: Any, groups: Any, width: int) -> None:
    if values is not None and groups is not None:
        raise ValueError("`values` and `groups` must not both be passed. Received: both")
    for name, entries in (("values", values), ("groups", groups)):
        if entries is not None and np.shape(entries) != (len(tokens),):
            raise ValueError(
                f"`{name}` must have one entry for each of {len(tokens)} tokens. "
                f"Received: {name}.shape={np.shape(entries)}"
            )
    max_length = max(map(len, tokens), default=0)
    if max_length > width:
        raise ValueError(
            f"`width` must be at least {max_length}, the length of the longest token. Received: width={width}"
        )


def _places(tokens: Sequence[str], width: int) -> tuple[list[tuple[int, int]], int]:
    """Return the column and line of each token, and the number of lines."""
    places, column, line = [], 0, 0
    for token in tokens:
        if column and column + len(token) > width:
            column, line = 0, line + 1
        places.append((column, line))
        column += len(token) + 1
    return places, line + 1


def _colours(
    values: Any, groups: Sequence[str | None] | None, count: int, label: str, axes: Any
) -> tuple[list[Any], list[str]]:
    """Return the colours of boxes and texts, and add a legend or a colour bar."""
    import matplotlib.pyplot as plt

    if groups is not None:
        names = [name for name in dict.fromkeys(groups) if name is not None]
        palette = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(names)}
        keys = [plt.Rectangle((0, 0), 1, 1, color=palette[name], lw=0) for name in names]
        axes.legend(keys, names, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        return [palette.get(name, _UNCOLOURED) for name in groups], [
            "black" if name is None else "white" for name in groups
        ]
    numbers = [math.nan] * count if values is None else np.asarray(values, "float64").tolist()
    if not np.isfinite(numbers).any():
        return [_UNCOLOURED] * count, ["black"] * count
    norm = plt.Normalize(min(0.0, np.nanmin(numbers)), np.nanmax(numbers))
    mapped = plt.cm.ScalarMappable(norm, "Blues")
    axes.figure.colorbar(mapped, ax=axes, label=label)
    fills = [_UNCOLOURED if math.isnan(number) else mapped.to_rgba(number) for number in numbers]
    return fills, ["white" if norm(number) > 0.55 else "black" for number in numbers]
