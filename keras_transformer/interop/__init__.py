"""Reading and writing of model folders of Hugging Face's `transformers`, without PyTorch."""

from keras_transformer.interop.hugging_face import config_of as config_of
from keras_transformer.interop.hugging_face import from_hugging_face as from_hugging_face
from keras_transformer.interop.hugging_face import to_hugging_face as to_hugging_face

__all__ = ["config_of", "from_hugging_face", "to_hugging_face"]
