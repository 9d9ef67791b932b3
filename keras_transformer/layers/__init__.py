"""Keras layers: attention, positions, embeddings and the Transformer's blocks."""

from keras_transformer.layers.blocks import DecoderBlock as DecoderBlock
from keras_transformer.layers.blocks import EncoderBlock as EncoderBlock
from keras_transformer.layers.dropout import Dropout as Dropout
from keras_transformer.layers.embeddings import TokenEmbedding as TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward as FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.layers.position_biases import ALiBi as ALiBi
from keras_transformer.layers.position_biases import RelativeBias as RelativeBias
from keras_transformer.layers.positions import LearnedPositions as LearnedPositions
from keras_transformer.layers.positions import SinusoidalPositions as SinusoidalPositions
from keras_transformer.layers.positions_2d import Positions2D as Positions2D
from keras_transformer.layers.rotary_positions import RotaryPositions as RotaryPositions
from keras_transformer.layers.rotary_scaling import LinearScaling as LinearScaling
from keras_transformer.layers.rotary_scaling import NTKScaling as NTKScaling
from keras_transformer.layers.rotary_scaling import YaRNScaling as YaRNScaling

__all__ = [
    "ALiBi",
    "DecoderBlock",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "LearnedPositions",
    "LinearScaling",
    "MultiHeadAttention",
    "NTKScaling",
    "Positions2D",
    "RelativeBias",
    "RotaryPositions",
    "SinusoidalPositions",
    "TokenEmbedding",
    "YaRNScaling",
]
