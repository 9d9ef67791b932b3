"""Attention and its parts as functions of tensors, on any Keras backend."""

from keras_transformer.ops import scores as scores
from keras_transformer.ops.attention import attention as attention
from keras_transformer.ops.attention import attention_weights as attention_weights
from keras_transformer.ops.attention import explain as explain
from keras_transformer.ops.biases import BucketBias as BucketBias
from keras_transformer.ops.biases import LinearBias as LinearBias
from keras_transformer.ops.biases import PositionBias as PositionBias
from keras_transformer.ops.dispatch import check_kernel as check_kernel
from keras_transformer.ops.kv_cache import append_update as append_update
from keras_transformer.ops.kv_cache import grow_update as grow_update
from keras_transformer.ops.kv_cache import rolling_update as rolling_update
from keras_transformer.ops.kv_cache import select_update as select_update
from keras_transformer.ops.kv_cache import slice_update as slice_update
from keras_transformer.ops.random import dropout as dropout
from keras_transformer.ops.retrieval import retrieval_attention as retrieval_attention

__all__ = [
    "BucketBias",
    "LinearBias",
    "PositionBias",
    "append_update",
    "attention",
    "attention_weights",
    "check_kernel",
    "dropout",
    "explain",
    "grow_update",
    "retrieval_attention",
    "rolling_update",
    "scores",
    "select_update",
    "slice_update",
]
