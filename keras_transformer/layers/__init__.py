"""Keras layers: attention, positions, embeddings, audio features, recurrent mixers and Transformer blocks."""

from keras_transformer.layers.blocks import DecoderBlock as DecoderBlock
from keras_transformer.layers.blocks import EncoderBlock as EncoderBlock
from keras_transformer.layers.dropout import Dropout as Dropout
from keras_transformer.layers.embeddings import TokenEmbedding as TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward as FeedForward
from keras_transformer.layers.graph_attention import GraphAttention as GraphAttention
from keras_transformer.layers.higher_order import HypergraphAttention as HypergraphAttention
from keras_transformer.layers.higher_order import SimplicialAttention as SimplicialAttention
from keras_transformer.layers.higher_order import TriangleAttention as TriangleAttention
from keras_transformer.layers.mixers.mamba2 import Mamba2 as Mamba2
from keras_transformer.layers.mixers.mixer import Mixer as Mixer
from keras_transformer.layers.mixers.mixer import RecurrentMixer as RecurrentMixer
from keras_transformer.layers.mixers.s4d import S4D as S4D
from keras_transformer.layers.multi_head_attention import MultiHeadAttention as MultiHeadAttention
from keras_transformer.layers.positions.absolute import LearnedPositions as LearnedPositions
from keras_transformer.layers.positions.absolute import SinusoidalPositions as SinusoidalPositions
from keras_transformer.layers.positions.biases import ALiBi as ALiBi
from keras_transformer.layers.positions.biases import BiasLayer as BiasLayer
from keras_transformer.layers.positions.biases import RelativeBias as RelativeBias
from keras_transformer.layers.positions.position_encoding import PositionEncoding as PositionEncoding
from keras_transformer.layers.positions.relative import (
    RelativeSinusoidalPositions as RelativeSinusoidalPositions,
)
from keras_transformer.layers.positions.rotary import RotaryPositions as RotaryPositions
from keras_transformer.layers.positions.rotary_scaling import DynamicNTKScaling as DynamicNTKScaling
from keras_transformer.layers.positions.rotary_scaling import LinearScaling as LinearScaling
from keras_transformer.layers.positions.rotary_scaling import Llama3Scaling as Llama3Scaling
from keras_transformer.layers.positions.rotary_scaling import LongRoPEScaling as LongRoPEScaling
from keras_transformer.layers.positions.rotary_scaling import NTKScaling as NTKScaling
from keras_transformer.layers.positions.rotary_scaling import YaRNScaling as YaRNScaling
from keras_transformer.layers.positions.two_dimensional import Positions2D as Positions2D
from keras_transformer.layers.retrieval_attention import RetrievalAttention as RetrievalAttention
from keras_transformer.layers.retrieval_attention import RetrievalMemory as RetrievalMemory
from keras_transformer.layers.score_layers import AdditiveScore as AdditiveScore
from keras_transformer.layers.score_layers import BilinearScore as BilinearScore
from keras_transformer.layers.score_layers import GATScore as GATScore
from keras_transformer.layers.score_layers import ScoreLayer as ScoreLayer
from keras_transformer.layers.segment_attention import SegmentAttention as SegmentAttention
from keras_transformer.layers.spectrogram import LogMelSpectrogram as LogMelSpectrogram
from keras_transformer.layers.subsampling import ConvolutionalSubsampling as ConvolutionalSubsampling

__all__ = [
    "S4D",
    "ALiBi",
    "AdditiveScore",
    "BiasLayer",
    "BilinearScore",
    "ConvolutionalSubsampling",
    "DecoderBlock",
    "Dropout",
    "DynamicNTKScaling",
    "EncoderBlock",
    "FeedForward",
    "GATScore",
    "GraphAttention",
    "HypergraphAttention",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "LogMelSpectrogram",
    "LongRoPEScaling",
    "Mamba2",
    "Mixer",
    "MultiHeadAttention",
    "NTKScaling",
    "PositionEncoding",
    "Positions2D",
    "RecurrentMixer",
    "RelativeBias",
    "RelativeSinusoidalPositions",
    "RetrievalAttention",
    "RetrievalMemory",
    "RotaryPositions",
    "ScoreLayer",
    "SegmentAttention",
    "SimplicialAttention",
    "SinusoidalPositions",
    "TokenEmbedding",
    "TriangleAttention",
    "YaRNScaling",
]
