"""Attention, its scores, biases and caches as functions of tensors, on any Keras backend."""

from keras_transformer.ops import scores as scores
from keras_transformer.ops.attention import attention as attention
from keras_transformer.ops.attention import attention_weights as attention_weights
from keras_transformer.ops.attention import explain as explain
from keras_transformer.ops.biases import BucketBias as BucketBias
from keras_transformer.ops.biases import LinearBias as LinearBias
from keras_transformer.ops.biases import PositionBias as PositionBias
from keras_transformer.ops.dispatch import check_kernel as check_kernel
from keras_transformer.ops.kv_cache import GrowingCache as GrowingCache
from keras_transformer.ops.kv_cache import KVCache as KVCache
from keras_transformer.ops.kv_cache import RollingCache as RollingCache
from keras_transformer.ops.kv_cache import StaticCache as StaticCache
from keras_transformer.ops.random import dropout as dropout
from keras_transformer.ops.retrieval import retrieval_attention as retrieval_attention

__all__ = [
    "BucketBias",
    "GrowingCache",
    "KVCache",
    "LinearBias",
    "PositionBias",
    "RollingCache",
    "StaticCache",
    "attention",
    "attention_weights",
    "check_kernel",
    "dropout",
    "explain",
    "retrieval_attention",
    "scores",
]
