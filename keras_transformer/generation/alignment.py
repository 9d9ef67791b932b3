"""Align target tokens with source tokens by cross-attention weights."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.compilation import ModelFunctions, cached
from keras_transformer.generation.generative_model import GenerativeModel
from keras_transformer.generation.validation import (
    check_finite,
    check_generates,
    checked_pair,
    checked_start,
)
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, is_integer


def align(
    model: GenerativeModel,
    source_ids: Any,
    target_ids: Any,
    *,
    layer: int = -1,
    head: int | Sequence[int] | None = None,
    start_ids: Any = None,
) -> np.ndarray:
    """Return the cross-attention weights of a decoder layer for targets.

    Args:
        model: an encoder–decoder with `cross_attention_weights`, such as `models.Transformer`.
        source_ids: integers (B, S).
        target_ids: integers (B, T) without a start token, such as `Generation.best`.
        layer: the index of the decoder layer.
        head: the index of a head, or a list of indices to average over; by default all heads.
        start_ids: integers (B,), the first input of the decoder in each row, by default the model's `start_id`.

    Returns:
        float32 (B, T, S): row t has the weights of the step that generates token t. Rows sum to 1, or to 0 for
            padding.

    Raises:
        ValueError: if the model has no such weights, layer or head, the weights are NaN, ids are invalid, a target has
            padding before a token, or the source of a target is empty.

    Example:
        >>> out = generate(model, source_ids)
        >>> align(model, source_ids, out.best).argmax(axis=-1)  # the source position of each token
    """
    if not hasattr(model, "cross_attention_weights"):
        raise ValueError(
            f"`model` must have `cross_attention_weights`. Received: model of type {type(model).__name__}"
        )
    heads = np.atleast_1d(np.array(head, object)).tolist()
    check(is_integer(layer), "be an integer", layer=layer)
    is_valid = head is None or all(map(is_integer, heads))
    check(is_valid, "be None, an integer or a list of integers", head=head)
    check_generates("model", model)
    source_ids, _, target_ids, real = checked_pair(model, source_ids, target_ids)
    if 0 in source_ids.shape or 0 in target_ids.shape:
        return np.zeros((*target_ids.shape, source_ids.shape[1]), np.float32)
    starts = np.full(len(source_ids), model.start_id) if start_ids is None else start_ids
    starts = checked_start(model, starts, len(source_ids))
    weights = cached(model, "align", _Aligner).weights(source_ids, target_ids, starts)
    count = len(weights)
    check(-count <= layer < count, f"be in [{-count}, {count})", layer=layer)
    layer_weights = keras.ops.convert_to_numpy(weights[layer])  # (B, N, T, S)
    num_heads = layer_weights.shape[1]
    heads = list(range(num_heads)) if head is None else heads
    is_valid = bool(heads) and all(0 <= index < num_heads for index in heads)
    check(is_valid, f"be in [0, {num_heads})", head=head)
    mean = layer_weights[:, heads].mean(axis=1)
    mean = mean[: len(target_ids), : target_ids.shape[1], : source_ids.shape[1]]
    mean = np.where(real[:, :, None], mean, 0).astype(np.float32)
    invalid = np.isnan(mean).any(axis=-1)
    check_finite(np.where(invalid.any(axis=1), invalid.argmax(axis=1), -1), "weights")
    return mean


class _Aligner(ModelFunctions):
    """The compiled cross-attention weights of a model."""

    def __init__(self, model: GenerativeModel) -> None:
        super().__init__(model)
        self._run = self._compile(self._weights)

    def weights(self, source_ids: np.ndarray, target_ids: np.ndarray, start_ids: np.ndarray) -> list[Tensor]:
        """Return the weights (B, N, T, S) of each layer, with shapes padded to a bucket."""
        arrays = {"source_ids": source_ids, "target_ids": target_ids, "start_ids": start_ids}
        return self._run(self._padded(arrays))

    def _weights(self, arrays: dict[str, Tensor]) -> list[Tensor]:
        target_ids = ops.cast(arrays["target_ids"], "int32")
        start = ops.cast(arrays["start_ids"], "int32")[:, None]
        target_ids = ops.concatenate([start, target_ids[:, :-1]], axis=1)
        model: Any = self.model  # `align` has checked that it has this method
        return model.cross_attention_weights(arrays["source_ids"], target_ids)
