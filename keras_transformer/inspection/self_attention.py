"""The attention of a model's own positions to each other."""

from typing import Any

import numpy as np
from keras import ops

Tensor = Any

_KNOWN = ("attention_mask", "padding_mask", "segment_ids", "edges", "positions")


def self_attention_weights(model: Any, inputs: Tensor | dict[str, Tensor], layer: int = -1) -> np.ndarray:
    """How much each position attends to each other one, in one block of a model.

    The model runs on `inputs`, and the weights are made of what the block's attention is given there: padding,
    segments and positions count as they do in the model.

    Args:
        model: with `blocks`, such as `models.GPT`, `models.BERT` or `models.ViT`, or with such an `encoder`, such as
            `models.SequenceClassifier`.
        inputs: what the model takes.
        layer: which block.

    Returns:
        float32 (B, N, T, T), a map for each head; rows are the positions that attend. A `ViT` with a class token
        has it at position 0.

    Raises:
        ValueError: where the model has no blocks, or no such one.

    Example:
        >>> from keras_transformer.models import GPT
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> self_attention_weights(model, np.array([[5, 6, 3]])).shape
        (1, 2, 3, 3)
    """
    blocks = getattr(getattr(model, "encoder", model), "blocks", None)
    if not blocks:
        raise ValueError(f"`model` must have blocks, or an encoder that has. Received: model={model!r}")
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"`layer` must be from {-len(blocks)} to {len(blocks) - 1}. Received: layer={layer}")
    block = blocks[layer]
    attention = getattr(block, "self_attention", None) or block.attention
    seen: list[Tensor] = []

    def call(query: Tensor, **options: Any) -> Tensor:
        known = {name: options.get(name) for name in _KNOWN}
        seen.append(attention.attention_weights(query, **known))
        return type(attention).call(attention, query, **options)

    attention.call = call  # of this layer alone, while the model runs
    try:
        model(inputs, training=False)
    finally:
        del attention.call
    return ops.convert_to_numpy(seen[0])
