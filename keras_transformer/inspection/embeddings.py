"""Nearest tokens and plots of embeddings."""

import numbers
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer_options.arguments import check_positive_integer

# Candidate positions of a label: directions, and distances from its point in typographic points.
_DIRECTIONS = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)])
_DISTANCES = (4.0, 10.0, 18.0, 28.0, 40.0)
_LINE_FROM = 10.0


def nearest_tokens(
    embeddings: Any, tokens: Sequence[str], query: str | int | Any, k: int = 10
) -> list[tuple[str, float]]:
    r"""Return the tokens whose embeddings have the highest cosine similarity to a query.

    $$\cos(q, e) = \frac{q \cdot e}{\lVert q \rVert\, \lVert e \rVert}$$

    Args:
        embeddings: (V, D), or an embedding layer.
        tokens: V strings, in the order of ids.
        query: a token, its id, or a vector (D,), such as king − man + woman.
        k: the number of tokens to return; all others if there are fewer.

    Returns:
        Pairs (token, cosine similarity), in descending order of similarity, without the query itself. The similarity to
        a zero vector is 0.

    Example:
        >>> nearest_tokens([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]], ["a", "b", "c"], "a", k=1)
        [('b', 0.6)]
    """
    matrix = _matrix(embeddings)
    if len(tokens) != len(matrix):
        raise ValueError(
            "`tokens` must have a string for each row of `embeddings`. "
            f"Received: {len(tokens)} tokens, embeddings.shape={matrix.shape}"
        )
    check_positive_integer(k=k)
    vector, query_id = _query(matrix, tokens, query)
    similarities = _unit(matrix) @ _unit(vector)
    order = [index for index in np.argsort(-similarities, kind="stable") if index != query_id]
    return [(tokens[index], float(similarities[index])) for index in order[:k]]


def plot_embeddings(
    embeddings: Any,
    labels: Sequence[str],
    groups: Sequence[str] | None = None,
    axes: Any = None,
    title: str | None = None,
) -> Any:
    r"""Plot the first two principal components of embeddings.

    The rows are centred, $X - \bar X = U \Sigma V^\top$; point i is $(U\Sigma)_{i,1:2}$, and component c explains
    $\sigma_c^2 / \sum_d \sigma_d^2$ of the variance, which its axis shows. Points that are close in the plot need not
    be close in the embedding space.

    Args:
        embeddings: (n, D), or an embedding layer.
        labels: n strings, readable for up to about 40 points.
        groups: n names; each group has one colour.
        axes: matplotlib axes, by default new ones.
        title: the title of the figure.

    Returns:
        The matplotlib axes.
    """
    import matplotlib.pyplot as plt

    matrix = _matrix(embeddings)
    for name, strings in (("labels", labels), ("groups", groups)):
        if strings is not None and len(strings) != len(matrix):
            raise ValueError(
                f"`{name}` must have a string for each row of `embeddings`. "
                f"Received: {len(strings)} {name}, embeddings.shape={matrix.shape}"
            )
    points, explained = _principal_components(matrix)
    if axes is None:
        _, axes = plt.subplots(figsize=(8, 6.5), layout="constrained")
    groups_in_order = list(dict.fromkeys(groups or [""]))
    for group in groups_in_order:
        in_group = [groups is None or name == group for name in groups or labels]
        axes.scatter(*points[in_group].T, s=18, label=group, zorder=2)
    if groups is not None:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    for number, (ratio, axis) in enumerate(zip(explained, (axes.xaxis, axes.yaxis), strict=True), start=1):
        axis.set_label_text(f"component {number} ({ratio:.0%} of the variance)")
    axes.margins(0.08)
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title)
    _write_labels(axes, points, labels)
    return axes


def _matrix(embeddings: Any) -> np.ndarray:
    """Return the matrix (V, D) in float64."""
    if isinstance(embeddings, keras.layers.Layer):
        layer = getattr(embeddings, "embedding", embeddings)  # `TokenEmbedding` wraps a Keras layer
        if not hasattr(layer, "embeddings") or not layer.built:
            raise ValueError(
                "`embeddings` must be a matrix or a built embedding layer. "
                f"Received: embeddings={embeddings!r}, built={embeddings.built}"
            )
        embeddings = keras.ops.convert_to_numpy(layer.embeddings)
    matrix = np.asarray(embeddings, "float64")
    if matrix.ndim != 2:
        raise ValueError(f"`embeddings` must be (V, D). Received: embeddings.shape={matrix.shape}")
    return matrix


def _query(matrix: np.ndarray, tokens: Sequence[str], query: Any) -> tuple[np.ndarray, int | None]:
    """Return the query's vector, and its id if it has one."""
    if isinstance(query, str):
        if query not in tokens:
            raise ValueError(f"`query` must be one of the {len(tokens)} tokens. Received: query={query!r}")
        query = list(tokens).index(query)
    if isinstance(query, numbers.Integral):
        if not 0 <= query < len(matrix):
            raise ValueError(f"`query` must be an id in [0, {len(matrix)}). Received: query={query}")
        return matrix[int(query)], int(query)
    vector = np.asarray(query, "float64")
    if vector.shape != matrix.shape[1:]:
        raise ValueError(
            f"`query` must be a token, an id or a vector of {matrix.shape[1]} numbers. "
            f"Received: query.shape={vector.shape}"
        )
    return vector, None


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Normalize vectors to length 1, except zero vectors."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms == 0, 1, norms)


def _principal_components(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first two principal components, (n, 2), and their explained variance ratios."""
    if min(matrix.shape) < 2:
        raise ValueError(
            f"`embeddings` must have at least two rows and two columns. Received: embeddings.shape={matrix.shape}"
        )
    left, values, right = np.linalg.svd(matrix - matrix.mean(axis=0), full_matrices=False)
    # A component's sign is arbitrary: make its largest weight positive, for reproducible plots.
    largest = np.take_along_axis(right, np.abs(right).argmax(axis=1)[:, None], axis=1)[:, 0]
    points = left * values * np.where(largest < 0, -1, 1)
    total = (values**2).sum()
    return points[:, :2], values[:2] ** 2 / (total or 1)


def _write_labels(axes: Any, points: np.ndarray, labels: Sequence[str]) -> None:
    """Place each label with the least overlap, crowded points first, and join distant labels to their points."""
    figure = axes.figure
    figure.draw_without_rendering()  # fixes the layout and so the positions of points
    pixels = axes.transData.transform(points)
    scale = figure.dpi / 72
    near = np.linalg.norm(pixels[:, None] - pixels[None], axis=-1) < 60 * scale
    frame = axes.get_window_extent().extents.reshape(2, 2)
    boxes = np.empty((0, 2, 2))
    for index in np.argsort(-near.sum(axis=1), kind="stable"):
        text = axes.annotate(labels[index], points[index], xytext=(0, 0), textcoords="offset points", size=9)
        size = np.array(text.get_window_extent().size)
        offsets = np.concatenate(
            [_DIRECTIONS * distance for distance in _DISTANCES]
        )  # of the label's near edge
        lower = pixels[index] + offsets * scale + (np.tile(_DIRECTIONS, (len(_DISTANCES), 1)) - 1) / 2 * size
        candidates = np.stack([lower, lower + size], axis=1)  # (C, 2 corners, 2)
        markers = np.stack([pixels - 4 * scale, pixels + 4 * scale], axis=1)
        cost = _overlap(candidates, boxes).sum(1) + _overlap(candidates, markers).sum(1)
        cost += size.prod() - _overlap(candidates, frame[None]).sum(1)
        distances = np.repeat(_DISTANCES, len(_DIRECTIONS))
        best = int(np.argmin(cost + 0.2 * scale**2 * distances))
        boxes = np.concatenate([boxes, candidates[best : best + 1]])
        text.remove()
        axes.annotate(
            labels[index],
            points[index],
            xytext=(lower[best] - pixels[index]) / scale,
            textcoords="offset points",
            size=9,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6}
            if distances[best] >= _LINE_FROM
            else None,
        )


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the overlap areas (n, m) of boxes (n, 2, 2), lower and upper corners, with other boxes (m, 2, 2)."""
    lower = np.maximum(boxes[:, None, 0], others[None, :, 0])
    upper = np.minimum(boxes[:, None, 1], others[None, :, 1])
    return np.clip(upper - lower, 0, None).prod(axis=-1)
