"""Cross-attention weights of models, and plots of attention weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.typing import Tensor


def cross_attention_weights(
    model: Any, source_ids: Tensor, target_ids: Tensor, layer: int = -1
) -> np.ndarray:
    """Return the cross-attention weights of a decoder block.

    Args:
        model: an encoder–decoder such as `models.Transformer`.
        source_ids: integers (B, S).
        target_ids: integers (B, T), starting with the model's `start_id`.
        layer: the index of the decoder block.

    Returns:
        float32 (B, N, T, S), one map for each head.

    Raises:
        ValueError: if `layer` is out of range.
    """
    count = len(model.decoder_blocks)
    if not -count <= layer < count:
        raise ValueError(f"`layer` must be in [{-count}, {count}). Received: layer={layer}")
    return ops.convert_to_numpy(model.cross_attention_weights(source_ids, target_ids)[layer])


def plot_attention(
    weights: Any,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """Plot one attention map, with a row for each query and a column for each key.

    Args:
        weights: (T, S), the weights of one head, or a mean over heads.
        query_labels: T strings.
        key_labels: S strings.
        axes: matplotlib axes, by default new ones.
        title: the title of the figure.

    Returns:
        The matplotlib axes.

    Raises:
        ValueError: if the labels do not match the weights.
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
