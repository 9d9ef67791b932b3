"""Whole models, one file each."""

from keras_transformer.models.transformer import Transformer as Transformer

__all__ = ["Transformer"]
