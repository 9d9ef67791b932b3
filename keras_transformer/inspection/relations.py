"""Plot relations as matrices and graphs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import relations
from keras_transformer_options.arguments import is_integer

_MAX_NODES = 64
_BEFORE, _AFTER, _BOTH, _UNRELATED, _INK = "#2a6fbb", "#d1622b", "#66788a", "#eef1f4", "#2b3440"
_ARC = 0.4  # height of an arc relative to its length


def plot_relation(
    relation: relations.Relation | str | dict[str, Any],
    num_queries: int,
    num_keys: int | None = None,
    axes: Sequence[Any] | None = None,
    title: str | None = None,
) -> Any:
    """Plot a relation as a matrix, with a row for each query and a column for each key, and as a graph.

    An arrow points from a key to a query that may attend to it: blue if the key is at or before the query, orange if it
    is after. Nodes that may attend to themselves are solid.

    - If the relation has a finite bandwidth, positions are on a line, with arrows from earlier keys above it.
    - Otherwise they are on a circle, where a grey line without arrowheads stands for both directions.
    - If queries and keys are different sets, they are in two columns.

    Args:
        relation: a relation, its name or its config.
        num_queries: T, at most 64.
        num_keys: S, if keys and queries are different.
        axes: two matplotlib axes, for the matrix and the graph; by default new ones.
        title: the title of the figure.

    Returns:
        The matplotlib figure.
    """
    import matplotlib.pyplot as plt

    relation = relations.get(relation)
    for name, number in (("num_queries", num_queries), ("num_keys", num_keys)):
        if not (is_integer(number) and 1 <= number <= _MAX_NODES) and (name, number) != ("num_keys", None):
            raise ValueError(f"`{name}` must be an integer in [1, {_MAX_NODES}]. Received: {name}={number!r}")
    if axes is None:
        _, axes = plt.subplots(1, 2, figsize=(8.4, 4.2), layout="constrained")
    elif np.size(axes) != 2:
        raise ValueError(f"`axes` must be two axes, for the matrix and the graph. Received: axes={axes!r}")
    matrix_axes, graph_axes = axes
    matrix = relation.matrix(num_queries, num_keys)
    comparable = not isinstance(relation, relations.Bipartite)
    _draw_matrix(matrix, comparable, matrix_axes)
    if num_keys is not None or not comparable:
        _draw_columns(matrix, comparable, graph_axes)
    elif relation.edges() is None and relation.bandwidth() != (None, None):
        _draw_line(matrix, graph_axes)
    else:
        _draw_circle(matrix, graph_axes)
    figure = matrix_axes.figure
    if title:
        figure.suptitle(title)
    return figure


def _draw_matrix(matrix: np.ndarray, comparable: bool, axes: Any) -> None:
    from matplotlib.colors import ListedColormap

    rows, columns = matrix.shape
    classes = np.where(np.tri(rows, columns, dtype=bool), 1, 2) if comparable else 3
    palette = ListedColormap([_UNRELATED, _BEFORE, _AFTER, _BOTH])
    axes.imshow(np.where(matrix, classes, 0), cmap=palette, vmin=0, vmax=3, interpolation="nearest")
    for axis, length in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(range(0, length, -(-length // 16)))
        axis.set_ticks(np.arange(length + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=40 / (20 + max(rows, columns)))
    axes.set(xlabel="key j", ylabel="query i")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _draw_line(matrix: np.ndarray, axes: Any) -> None:
    """Plot positions on a line, with arcs from earlier keys above it and from later keys below it."""
    length = len(matrix)
    points = np.stack([np.arange(length), np.zeros(length)], axis=1)
    before, after = np.tril(matrix, -1), np.triu(matrix, 1)
    size = _draw_nodes(points, matrix.diagonal(), axes)
    for related, colour in ((before, _BEFORE), (after, _AFTER)):
        for query, key in np.argwhere(related):
            _draw_edge(points[key], points[query], colour, size, axes, bend=-2 * _ARC, edges=related.sum())
    above, below = (
        max((abs(query - key) for query, key in np.argwhere(side)), default=0) * _ARC + 0.7
        for side in (before, after)
    )
    axes.set(xlim=(-0.6, length - 0.4), ylim=(-below, above), aspect="equal")


def _draw_circle(matrix: np.ndarray, axes: Any) -> None:
    length = len(matrix)
    angles = np.pi / 2 - 2 * np.pi * np.arange(length) / length
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    size = _draw_nodes(points, matrix.diagonal(), axes)
    for query, key in np.argwhere(matrix & ~np.eye(length, dtype=bool)):
        both = matrix[key, query]
        if not both or key < query:
            colour = _BOTH if both else _BEFORE if key < query else _AFTER
            _draw_edge(points[key], points[query], colour, size, axes, arrow=not both, edges=matrix.sum())
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")


def _draw_columns(matrix: np.ndarray, comparable: bool, axes: Any) -> None:
    """Plot keys on the left and queries on the right."""
    sides = []
    for x, length in ((0.0, matrix.shape[1]), (1.0, matrix.shape[0])):
        heights = np.linspace(1, 0, length) if length > 1 else np.array([0.5])
        sides.append(np.stack([np.full(length, x), heights], axis=1))
    keys, queries = sides
    size = min(_draw_nodes(side, np.ones(len(side), bool), axes) for side in sides)
    for query, key in np.argwhere(matrix):
        colour = (_BEFORE if key <= query else _AFTER) if comparable else _BOTH
        _draw_edge(keys[key], queries[query], colour, size, axes, edges=matrix.sum())
    for x, name in ((0, "keys"), (1, "queries")):
        axes.text(x, 1.12, name, ha="center", va="bottom", color=_INK)
    axes.set(xlim=(-0.25, 1.25), ylim=(-0.12, 1.25))
    axes.set_axis_off()


def _draw_nodes(points: np.ndarray, self_loops: np.ndarray, axes: Any) -> float:
    """Plot numbered nodes, and return their diameter in points."""
    count = len(points)
    size = float(np.clip(150 / count, 3, 17))
    axes.scatter(
        *points.T,
        s=size**2,
        c=np.where(self_loops, _INK, "white"),
        edgecolors=_INK,
        linewidths=1,
        zorder=3,
    )
    if size > 8:
        for node, (point, fill) in enumerate(zip(points, self_loops, strict=True)):
            colour = "white" if fill else _INK
            axes.text(
                *point,
                str(node),
                color=colour,
                fontsize=size * 0.55,
                ha="center",
                va="center_baseline",
                zorder=4,
            )
    axes.set_axis_off()
    return size


def _draw_edge(
    start: np.ndarray,
    end: np.ndarray,
    colour: str,
    size: float,
    axes: Any,
    *,
    edges: int,
    bend: float = 0.0,
    arrow: bool = True,
) -> None:
    """Plot an edge between two nodes, more transparent if there are more edges."""
    from matplotlib.patches import FancyArrowPatch

    axes.add_patch(
        FancyArrowPatch(
            tuple(start),
            tuple(end),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>" if arrow else "-",
            mutation_scale=np.clip(size * 0.6, 4, 9),
            shrinkA=size / 2,
            shrinkB=size / 2,
            color=colour,
            linewidth=1.1,
            alpha=float(np.clip(12 / edges**0.7, 0.15, 0.9)),
        )
    )
