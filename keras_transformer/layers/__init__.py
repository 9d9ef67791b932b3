"""Keras layers: attention, positions, embeddings and the Transformer's blocks."""

from keras_transformer.layers.blocks import DecoderBlock as DecoderBlock
from keras_transformer.layers.blocks import EncoderBlock as EncoderBlock
from keras_transformer.layers.dropout import Dropout as Dropout
from keras_transformer.layers.embeddings import TokenEmbedding as TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward as FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.layers.positions import SinusoidalPositions as SinusoidalPositions

__all__ = [
    "DecoderBlock",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "MultiHeadAttention",
    "SinusoidalPositions",
    "TokenEmbedding",
]
