"""Convolution inside attention: each head attends to one offset, whatever its scores."""

import keras
import numpy as np
import pytest

from keras_transformer import ops as kt_ops
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.relations import SlidingWindow
from tests.laws.cases import CLOSE, normal

pytestmark = pytest.mark.backend_neutral

LENGTH, CHANNELS = 11, 4
X = normal(2, LENGTH, CHANNELS)
CONVOLUTIONS = {
    "causal": (3, 1, "causal", [2, 1, 0]),
    "causal, dilated": (3, 2, "causal", [4, 2, 0]),
    "centred": (3, 1, "same", [1, 0, -1]),
}
convolutions = pytest.mark.parametrize(
    ("size", "dilation", "padding", "offsets"), CONVOLUTIONS.values(), ids=CONVOLUTIONS
)


def only(offset):
    """Return the relation of each position to the position `offset` before it, or after it if negative."""
    if offset == 0:
        return SlidingWindow(0)
    if offset > 0:
        return SlidingWindow(offset) & ~SlidingWindow(offset - 1)
    return SlidingWindow(0, -offset) & ~SlidingWindow(0, -offset - 1)


def convolution(size, dilation, padding):
    layer = keras.layers.Conv1D(CHANNELS, size, padding=padding, dilation_rate=dilation)
    layer.build(X.shape)
    layer.bias.assign(normal(CHANNELS))
    return layer


@convolutions
def test_one_head_for_each_offset_equals_a_convolution(size, dilation, padding, offsets):
    expected = convolution(size, dilation, padding)
    layer = MultiHeadAttention(num_heads=size, key_dim=8, value_dim=CHANNELS)
    layer.build(X.shape)
    layer.value_projection.kernel.assign(np.tile(np.eye(CHANNELS), size))  # each head reads all channels
    layer.output_projection.kernel.assign(np.reshape(expected.kernel, (size * CHANNELS, CHANNELS)))
    layer.output_projection.bias.assign(expected.bias)
    heads = np.stack([only(offset).matrix(LENGTH) for offset in offsets])  # (N, T, T)
    np.testing.assert_allclose(layer(X, attention_mask=heads[None]), expected(X), **CLOSE)


@convolutions
def test_a_sum_over_relations_equals_a_convolution(size, dilation, padding, offsets):
    expected = convolution(size, dilation, padding)
    values = X[:, :, None]  # one head
    outputs = sum(
        kt_ops.attention(normal(2, LENGTH, 1, 8), normal(2, LENGTH, 1, 8), values, only(offset))[:, :, 0]
        @ kernel
        for offset, kernel in zip(offsets, np.array(expected.kernel), strict=True)
    )
    np.testing.assert_allclose(outputs + np.array(expected.bias), expected(X), **CLOSE)
