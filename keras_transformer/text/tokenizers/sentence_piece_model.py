"""Serialised SentencePiece models: reading, inspection, and a TensorFlow resource for them."""

import copy
import hashlib
from typing import Any

import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2
from tensorflow_text.python.ops import sentencepiece_tokenizer

from keras_transformer_serving.text.sentence_piece import character_normalizer

_OPERATIONS = sentencepiece_tokenizer.gen_sentencepiece_tokenizer


def read_model(model: bytes, with_padding: bool = True) -> sentencepiece.SentencePieceProcessor:
    """Read a serialised model.

    Args:
        model: the content of a SentencePiece model file.
        with_padding: whether the model must have a padding id.

    Returns:
        The processor, for use outside graphs.
    """
    if not isinstance(model, bytes) or not model:
        raise ValueError(
            "`model` must be the bytes of a SentencePiece model. "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(
            f"`model` must be a SentencePiece model. Received: {len(model)} bytes; error of "
            f"sentencepiece: {error}"
        ) from None
    if with_padding and processor.pad_id() < 0:
        raise ValueError(
            "`model` must have a padding id, as models of `SentencePieceTokenizer.train` do. "
            "Received: a model with pad_id=-1"
        )
    return processor


class Normalizer(tf.Module):
    """Normalise texts as a SentencePiece model does, but without changes of spaces, inside the TensorFlow graph.

    Args:
        precompiled_charsmap: the model's character map.
    """

    def __init__(self, precompiled_charsmap: bytes):
        super().__init__()
        model = character_normalizer(precompiled_charsmap)
        with tf.init_scope():
            self._characters = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.string)
            self._characters._model_resource = SharedModel(model)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalise strings (P,)."""
        return tf.strings.reduce_join(self._characters.tokenize(texts), axis=-1)


def sampler(tokenizer: Any, model: bytes, rate: float) -> Any:
    """Return a TF.Text tokenizer that samples from all segmentations, without a seed.

    Args:
        tokenizer: the tokenizer of TF.Text.
        model: its serialised model.
        rate: α for a unigram model, the dropout rate for a BPE model.
    """
    model_type = sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec.model_type
    if model_type not in (
        sentencepiece_model_pb2.TrainerSpec.UNIGRAM,
        sentencepiece_model_pb2.TrainerSpec.BPE,
    ):
        raise ValueError(
            "`sample` needs a SentencePiece model of the type unigram or BPE. "
            f"Received: a model of type {sentencepiece_model_pb2.TrainerSpec.ModelType.Name(model_type).lower()}"
        )
    sampling = copy.copy(tokenizer)
    sampling.nbest_size, sampling.alpha = -1, rate
    return sampling


class SharedModel(tf.saved_model.experimental.TrackableResource):
    """The TensorFlow resource of a SentencePiece model, shared by all tokenizers of the same model.

    The resource that tensorflow_text creates is owned by its kernel and deleted when TensorFlow clears its kernel
    cache, as `keras.utils.set_random_seed` does; the tokenizer then raises a NotFoundError. A resource with a shared
    name is not deleted.
    """

    def __init__(self, model: bytes):
        super().__init__()
        self._model = model
        self._shared_name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"
        _ = self.resource_handle  # creates it

    def _create_resource(self) -> tf.Tensor:
        return _OPERATIONS.sentencepiece_op(model=self._model, shared_name=self._shared_name)
