"""Conversion of folders of Hugging Face's `transformers` (without PyTorch) and of KerasHub's models."""

from keras_transformer.interop.hugging_face import config_of as config_of
from keras_transformer.interop.hugging_face import from_hugging_face as from_hugging_face
from keras_transformer.interop.hugging_face import to_hugging_face as to_hugging_face
from keras_transformer.interop.keras_hub import from_keras_hub as from_keras_hub

__all__ = ["config_of", "from_hugging_face", "from_keras_hub", "to_hugging_face"]
