"""A SentencePiece model as a TensorFlow resource that outlives the operation which made it."""

import hashlib

import tensorflow as tf
from tensorflow_text.python.ops import sentencepiece_tokenizer

_OPERATIONS = sentencepiece_tokenizer.gen_sentencepiece_tokenizer


class SharedModel(tf.saved_model.experimental.TrackableResource):
    """The resource of a tokenizer, shared by all tokenizers of the same model.

    The one that tensorflow_text makes belongs to its kernel, and so dies whenever TensorFlow clears its cache of
    kernels, as `keras.utils.set_random_seed` does: from then on the tokenizer raises NotFoundError. A resource
    with a shared name stays.

    Args:
        model: a serialised SentencePiece model.
    """

    def __init__(self, model: bytes):
        super().__init__()
        self._model = model
        self._shared_name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"
        _ = self.resource_handle  # creates it

    def _create_resource(self) -> tf.Tensor:
        return _OPERATIONS.sentencepiece_op(model=self._model, shared_name=self._shared_name)
