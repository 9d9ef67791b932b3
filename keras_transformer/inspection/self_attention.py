"""Self-attention weights of models."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.typing import Tensor

_KNOWN = ("attention_mask", "padding_mask", "segment_ids", "edges", "positions")


def self_attention_weights(model: Any, inputs: Tensor | dict[str, Tensor], layer: int = -1) -> np.ndarray:
    """Return the self-attention weights of one block of a model.

    The model runs on `inputs`, and the weights are computed from the inputs of the block's attention, with the model's
    padding, segments and positions.

    Args:
        model: a model with `blocks`, such as `models.GPT`, `models.BERT` or `models.ViT`, or with such an `encoder`,
            such as `models.SequenceClassifier`.
        inputs: the inputs of the model.
        layer: the index of the block.

    Returns:
        float32 (B, N, T, T), one map for each head, with queries as rows. The class token of a `ViT` is at position 0.

    Raises:
        ValueError: if the model has no blocks, or `layer` is out of range.

    Example:
        >>> from keras_transformer.models import GPT
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> self_attention_weights(model, np.array([[5, 6, 3]])).shape
        (1, 2, 3, 3)
    """
    blocks = getattr(getattr(model, "encoder", model), "blocks", None)
    if not blocks:
        raise ValueError(
            f"`model` must have `blocks`, or an `encoder` with `blocks`. Received: model={model!r}"
        )
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"`layer` must be in [{-len(blocks)}, {len(blocks)}). Received: layer={layer}")
    block = blocks[layer]
    attention = getattr(block, "self_attention", None) or block.attention
    seen: list[Tensor] = []

    def call(query: Tensor, **options: Any) -> Tensor:
        known = {name: options.get(name) for name in _KNOWN}
        seen.append(attention.attention_weights(query, **known))
        return type(attention).call(attention, query, **options)

    attention.call = call  # overrides the method of this layer during the call
    try:
        model(inputs, training=False)
    finally:
        del attention.call
    return ops.convert_to_numpy(seen[0])
