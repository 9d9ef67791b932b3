"""Attention weights as pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

Tensor = Any


def cross_attention_weights(
    model: Any, source_ids: Tensor, target_ids: Tensor, layer: int = -1
) -> np.ndarray:
    """How much each target position of an encoder–decoder attends to each source position.

    Args:
        model: such as `models.Transformer`.
        source_ids: integers (B, S).
        target_ids: integers (B, T), starting with the model's `start_id`.
        layer: which decoder block.

    Returns:
        float32 (B, N, T, S), a map for each head.

    Raises:
        ValueError: where there is no such layer.
    """
    count = len(model.decoder_blocks)
    if not -count <= layer < count:
        raise ValueError(f"`layer` must be from {-count} to {count - 1}. Received: layer={layer}")
    return ops.convert_to_numpy(model.cross_attention_weights(source_ids, target_ids)[layer])


def plot_attention(
    weights: Any,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """Draw one attention map: a row for each query, a column for each key, darker for more weight.

    Args:
        weights: (T, S), one head's or a mean over heads.
        query_labels: T strings.
        key_labels: S strings.
        axes: matplotlib's, by default new ones.
        title: shown above.

    Returns:
        The matplotlib axes.

    Raises:
        ValueError: where the labels do not fit the weights.
    """
    import matplotlib.pyplot as plt

    weights = np.asarray(weights)
    if weights.shape != (len(query_labels), len(key_labels)):
        raise ValueError(
            f"`weights` must have a row for each of {len(query_labels)} query labels and a column for each of "
            f"{len(key_labels)} key labels. Received: weights.shape={weights.shape}"
        )
    if axes is None:
        size = (1.5 + 0.45 * len(key_labels), 1.2 + 0.38 * len(query_labels))
        _, axes = plt.subplots(figsize=size, layout="constrained")
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(key_labels)), key_labels, rotation=60, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(query_labels)), query_labels)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.figure.colorbar(image, ax=axes, label="attention weight")
    if title:
        axes.set_title(title)
    return axes
