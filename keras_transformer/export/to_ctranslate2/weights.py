"""Weights of layers in specifications of CTranslate2."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer import layers
from keras_transformer.export.to_ctranslate2.checks import require
from keras_transformer.layers.positions import rotary_scaling

_LEAST_POSITIONS = 1024  # of a table of sinusoidal positions


class Weights:
    """Copies weights of layers into specifications, and refuses layers that CTranslate2 does not have."""

    def __init__(self) -> None:
        self._epsilons = set[float]()

    def epsilon(self) -> float:
        """Return the epsilon of all norms."""
        require(len(self._epsilons) == 1, "one epsilon for all norms", sorted(self._epsilons))
        return next(iter(self._epsilons))

    def linear(self, target: Any, layer: keras.layers.Dense) -> None:
        """Copy a dense layer."""
        target.weight = array_of(layer.kernel).T
        if layer.use_bias:
            target.bias = array_of(layer.bias)

    def norm(self, target: Any, layer: Any) -> None:
        """Copy a norm; one without a bias has zeros."""
        self._epsilons.add(float(layer.epsilon))
        if isinstance(layer, keras.layers.RMSNormalization):
            target.gamma = array_of(layer.scale)
        else:
            target.gamma = array_of(layer.gamma)
            target.beta = np.zeros_like(target.gamma) if layer.beta is None else array_of(layer.beta)

    def attention(self, target: Any, layer: Any, is_cross: bool = False) -> None:
        """Copy the four projections, the scale and the norms of heads."""
        from ctranslate2.converters import utils
        from ctranslate2.specs import common_spec

        parts = [common_spec.LinearSpec() for _ in range(3)]
        projections = (layer.query_projection, layer.key_projection, layer.value_projection)
        for part, projection in zip(parts, projections, strict=True):
            self.linear(part, projection)
        fused = 1 if is_cross else 3
        utils.fuse_linear(target.linear[0], parts[:fused])
        if is_cross:
            utils.fuse_linear(target.linear[1], parts[1:])
        self.linear(target.linear[-1], layer.output_projection)
        if layer.score.scale is not None:
            target.queries_scale = np.float32(layer.score.scale)
        if layer.head_norm is not None:
            self.norm(target.q_norm, layer.query_norm)
            self.norm(target.k_norm, layer.key_norm)
        encoding = layer.position_encoding
        if isinstance(encoding, layers.RelativeBias):
            target.relative_attention_bias = array_of(encoding.table)
            target.relative_attention_max_distance = np.int32(encoding.max_distance)
        scaling = getattr(encoding, "scaling", None)
        if isinstance(scaling, rotary_scaling.Llama3Scaling):
            target.rotary_low_freq_factor = np.float32(scaling.low_frequency_factor)
            target.rotary_high_freq_factor = np.float32(scaling.high_frequency_factor)
            # CTranslate2 reads it, but its specification has it for linear scaling only.
            vars(target)["rotary_scaling_factor"] = np.float32(scaling.factor)

    def block(self, target: Any, block: Any) -> None:
        """Copy a block of an encoder or decoder."""
        attention = getattr(block, block.sublayers[0])
        residual = getattr(block, f"{block.sublayers[0]}_residual")
        self.attention(target.self_attention, attention)
        feed_forward, feed_forward_residual = block.feed_forward, block.feed_forward_residual
        if residual.normalization == "sandwich":
            self.norm(target.input_layer_norm, residual.norm)
            self.norm(target.post_attention_layer_norm, residual.output_norm)
            self.norm(target.pre_feedforward_layer_norm, feed_forward_residual.norm)
            self.norm(target.post_feedforward_layer_norm, feed_forward_residual.output_norm)
        else:
            self.norm(target.self_attention.layer_norm, residual.norm)
            self.norm(target.ffn.layer_norm, feed_forward_residual.norm)
        if getattr(block, "cross_attention", None) is not None:
            self.attention(target.attention, block.cross_attention, is_cross=True)
            self.norm(target.attention.layer_norm, block.cross_attention_residual.norm)
        self.linear(target.ffn.linear_0, feed_forward.hidden)
        if feed_forward.gate is not None:
            self.linear(target.ffn.linear_0_noact, feed_forward.gate)
        self.linear(target.ffn.linear_1, feed_forward.output_projection)

    def stack(
        self, target: Any, blocks: Sequence[Any], embedding: Any, positions: Any, size: int, final_norm: Any
    ) -> None:
        """Copy an encoder or a decoder.

        Args:
            target: the specification.
            blocks: the blocks.
            embedding: the `TokenEmbedding`.
            positions: the encoding that is added to the embeddings, or None.
            size: the number of positions of an encoding without weights.
            final_norm: the norm of the output, or None.
        """
        embeddings = target.embeddings[0] if isinstance(target.embeddings, list) else target.embeddings
        embeddings.weight = array_of(embedding.embedding.embeddings)
        target.scale_embeddings = embedding.scale
        if isinstance(positions, layers.LearnedPositions):
            target.position_encodings.encodings = array_of(positions.table)
        elif positions is not None:
            numbers = np.arange(max(size, _LEAST_POSITIONS), dtype="int32")
            target.position_encodings.encodings = array_of(positions.encode(numbers, embedding.model_dim))
        elif hasattr(target, "position_encodings"):  # by default sinusoidal ones
            zeros = np.zeros((max(size, _LEAST_POSITIONS), embedding.model_dim), np.float32)
            target.position_encodings.encodings = zeros
        self.blocks(target, blocks, final_norm)

    def blocks(self, target: Any, blocks: Sequence[Any], final_norm: Any) -> None:
        """Copy the blocks of an encoder or a decoder, and the norm of its output unless that is None."""
        if final_norm is not None:
            self.norm(target.layer_norm, final_norm)
        for layer, block in zip(target.layer, blocks, strict=True):
            self.block(layer, block)

    def projection(self, target: Any, embedding: Any, bias: Any = None) -> None:
        """Copy the output matrix of a `TokenEmbedding`, and the bias of the logits."""
        table = embedding.embedding
        target.projection.weight = (
            array_of(table.embeddings) if embedding.tied else array_of(table.reverse_embeddings).T
        )
        if bias is not None:
            target.projection.bias = array_of(bias)
        if embedding.soft_cap is not None:
            target.final_logit_softcapping = np.float32(embedding.soft_cap)


def array_of(tensor: Any) -> np.ndarray:
    """Return a tensor as float32, contiguous."""
    return np.ascontiguousarray(keras.ops.convert_to_numpy(tensor), np.float32)
