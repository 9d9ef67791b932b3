"""Plots of attention weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.models.encoder_decoder import AttentionWeights


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


def plot_attention_weights(
    weights: AttentionWeights,
    source_labels: Sequence[str],
    target_labels: Sequence[str],
    row: int = 0,
    layer: int = -1,
    head: int | None = None,
    title: str | None = None,
) -> Any:
    """Plot the self-attention of encoder and decoder and the cross-attention of an encoder–decoder side by side.

    Args:
        weights: the return value of `attention_weights`.
        source_labels: a string for each source token, without padding.
        target_labels: a string for each target token, without padding, beginning with the start token.
        row: the index in the batch.
        layer: the index of the blocks.
        head: the index of a head, by default the mean over heads.
        title: the title of the figure.

    Returns:
        The matplotlib figure.

    Example:
        >>> weights = attention_weights(model, inputs)  # doctest: +SKIP
        >>> plot_attention_weights(weights, ["la", "casa"], ["<start>", "the", "house"])  # doctest: +SKIP
    """
    import matplotlib.pyplot as plt

    batch_size, num_heads = weights.cross[0].shape[:2]
    num_layers = min(len(weights.encoder), len(weights.decoder))
    for name, index, count in (
        ("row", row, batch_size),
        ("layer", layer, num_layers),
        ("head", 0 if head is None else head, num_heads),
    ):
        if not -count <= index < count:
            raise ValueError(f"`{name}` must be in [{-count}, {count}). Received: {name}={index}")
    panels = (
        ("encoder self-attention", weights.encoder, source_labels, source_labels),
        ("masked decoder self-attention", weights.decoder, target_labels, target_labels),
        ("cross-attention", weights.cross, target_labels, source_labels),
    )
    size = 1.5 + 0.45 * max(len(source_labels), len(target_labels))
    figure, axes = plt.subplots(1, 3, figsize=(3 * size, size), layout="constrained")
    for panel, (name, maps, queries, keys) in zip(axes, panels, strict=True):
        heads = np.asarray(maps[layer][row])
        map_ = heads.mean(axis=0) if head is None else heads[head]
        plot_attention(map_[: len(queries), : len(keys)], queries, keys, panel, name)
    if title:
        figure.suptitle(title)
    return figure
