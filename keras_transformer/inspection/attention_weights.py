"""Attention weights of models."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.multi_head_attention import recorded_attention_weights
from keras_transformer.models.encoder_decoder import AttentionWeights
from keras_transformer.typing import Tensor


def attention_weights(model: Any, inputs: dict[str, Tensor]) -> AttentionWeights:
    """Return the weights of all attention layers of an encoder–decoder in a call.

    Args:
        model: an encoder–decoder, such as `models.Transformer` or `models.T5`.
        inputs: the inputs of the model; "target_ids" start with the model's `start_id`.

    Returns:
        A named tuple of lists with float32 weights for each block, with queries as rows: `encoder` (B, N, S, S) of the
        encoder's self-attention, `decoder` (B, N, T, T) of the decoder's masked self-attention, and `cross`
        (B, N, T, S) of the cross-attention.

    Example:
        >>> from keras_transformer.models import Transformer
        >>> model = Transformer(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> inputs = {"source_ids": np.array([[5, 6, 7, 3]]), "target_ids": np.array([[2, 8, 9]])}
        >>> weights = attention_weights(model, inputs)
        >>> [weights.encoder[0].shape, weights.decoder[0].shape, weights.cross[0].shape]
        [(1, 2, 4, 4), (1, 2, 3, 3), (1, 2, 3, 4)]
    """
    if not hasattr(model, "decoder_blocks"):
        raise ValueError(
            "`model` must be an encoder–decoder with `decoder_blocks`; use `self_attention_weights` for encoders and "
            f"decoders. Received: model={model!r}"
        )
    weights: AttentionWeights = keras.tree.map_structure(
        ops.convert_to_numpy, model.attention_weights(inputs)
    )
    return weights


def self_attention_weights(model: Any, inputs: Tensor | dict[str, Tensor], layer: int = -1) -> np.ndarray:
    """Return the self-attention weights of one block of an encoder or decoder in a call.

    Args:
        model: a model with `blocks`, such as `models.GPT`, `models.BERT` or `models.ViT`, or with an `encoder` that has
            them, such as `models.SequenceClassifier`.
        inputs: the inputs of the model.
        layer: the index of the block.

    Returns:
        float32 (B, N, T, T), one map for each head, with queries as rows. The class token of a `ViT` is at position 0.

    Example:
        >>> from keras_transformer.models import GPT
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> self_attention_weights(model, np.array([[5, 6, 3]])).shape
        (1, 2, 3, 3)
    """
    attention = self_attention(model, layer)
    with recorded_attention_weights([attention]) as weights:
        model(inputs, training=False)
    return ops.convert_to_numpy(weights[0])


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
    """
    _check_layer(model.decoder_blocks, layer)
    return attention_weights(model, {"source_ids": source_ids, "target_ids": target_ids}).cross[layer]


def self_attention(model: Any, layer: int) -> Any:
    """Return the self-attention of one block of an encoder or decoder; see `self_attention_weights`."""
    if hasattr(model, "decoder_blocks"):
        raise ValueError(
            "`model` must be an encoder or decoder; use `attention_weights` for an encoder–decoder. "
            f"Received: model={model!r}"
        )
    blocks = getattr(getattr(model, "encoder", model), "blocks", None)
    if not blocks:
        raise ValueError(
            f"`model` must have `blocks`, or an `encoder` with `blocks`. Received: model={model!r}"
        )
    _check_layer(blocks, layer)
    block = blocks[layer]
    return getattr(block, "self_attention", None) or block.attention


def _check_layer(blocks: list[Any], layer: int) -> None:
    if not -len(blocks) <= layer < len(blocks):
        raise ValueError(f"`layer` must be in [{-len(blocks)}, {len(blocks)}). Received: layer={layer}")
