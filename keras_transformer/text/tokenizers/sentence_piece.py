"""A SentencePiece tokenizer that runs inside the TensorFlow graph."""

import re
from typing import Any

import tensorflow as tf
import tensorflow_text

from keras_transformer.text.tokenizers.sentence_piece_model import SharedModel, read_model, sampler
from keras_transformer.text.tokenizers.strings import to_utf8
from keras_transformer.text.tokenizers.tokenizer import Tokenizer
from keras_transformer.text.training.sentence_piece import SentencePieceTraining
from keras_transformer_serving.text.sentence_piece import keeps_spaces


class SentencePieceTokenizer(SentencePieceTraining, Tokenizer):
    """Convert text to ids and back with a SentencePiece model, eagerly and inside `tf.function`.

    A tokenizer that is an attribute of a `tf.Module` is saved with it by `tf.saved_model.save`.
    `detokenize(tokenize(text))` returns the text unchanged, including spaces, with one exception: U+2581, which
    stands for a space in SentencePiece, becomes a space. Without `byte_fallback`, characters that are not in the
    training texts, U+0000 and the reserved U+2585 become " ⁇ ".

    Args:
        model: a serialised SentencePiece model that has a padding id.

    Attributes:
        pad_id: the padding id, 0 in trained models.
        unknown_id: the id of text that is out of vocabulary, 1 in trained models.
        start_id: the id that starts a target, 2 in trained models; -1 if the model has none.
        end_id: the id that ends a text, 3 in trained models; -1 if the model has none.
        vocabulary_size: the number of pieces, including special ids.
        empty_ids: the ids without content: the unknown id, and the ids of pieces that are only spaces.

    Raises:
        ValueError: if `model` is not a SentencePiece model or has no padding id.

    Example:
        >>> tokenizer = SentencePieceTokenizer.train(["hello world", "hello"], 300)
        >>> tokenizer.detokenize(tokenizer.encode(["hello", "hello world"], add_end=True)).numpy().tolist()
        [b'hello', b'hello world']

    References:
        Kudo and Richardson, "SentencePiece", https://arxiv.org/abs/1808.06226.
    """

    file_name = "sentencepiece.model"
    sampling = "nondeterministic"

    def __init__(self, model: bytes):
        super().__init__()
        self._processor = read_model(model)
        self._model = model
        self.pad_id: int = self._processor.pad_id()
        self.unknown_id: int = self._processor.unk_id()
        self.start_id: int = self._processor.bos_id()
        self.end_id: int = self._processor.eos_id()
        self.vocabulary_size: int = self._processor.vocab_size()
        self.empty_ids: tuple[int, ...] = (
            self.unknown_id,
            *(
                id_
                for id_ in range(self.vocabulary_size)
                if not self._processor.id_to_piece(id_).strip("\u2581")
            ),
        )
        with tf.init_scope():
            self._tokenizer = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32)
            self._tokenizer._model_resource = SharedModel(model)
            unknown = self._tokenizer.detokenize([[self.unknown_id]])[0].numpy().decode()
        self._guard = f"^{re.escape(unknown)} ?" if keeps_spaces(self._processor) else None

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {
            self._processor.id_to_piece(id_): id_
            for id_ in (self.pad_id, self.unknown_id, self.start_id, self.end_id)
            if id_ >= 0
        }

    @property
    def model_bytes(self) -> bytes:
        """The serialised SentencePiece model."""
        return self._model

    @classmethod
    def _arguments(cls, model: bytes) -> dict[str, Any]:
        return {"model": model}

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._tokenizer.tokenize(texts)

    def _sample(self, texts: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.RaggedTensor:
        return sampler(self._tokenizer, self._model, rate).tokenize(texts)

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        if self._guard is None:
            return self._detokenize(ids)
        # tensorflow_text strips all leading spaces of a text, although only one was added: prepend a guard token, and
        # remove it together with that space.
        guards = tf.fill([ids.nrows(), 1], self.unknown_id)
        texts = self._detokenize(tf.concat([guards, ids], axis=1))
        return tf.strings.regex_replace(texts, self._guard, "", replace_global=False)

    def _detokenize(self, ids: tf.RaggedTensor) -> tf.Tensor:
        # If no piece covers a space, as in a word model, U+2581 is decoded from its bytes without change.
        return tf.strings.regex_replace(self._tokenizer.detokenize(ids), "\u2581", " ")

    def pieces(self, text: str) -> list[str]:
        """Split one text into pieces, with U+2581 for a space.

        Returns:
            The pieces, whose concatenation is the text with a prefix space.

        Example:
            >>> SentencePieceTokenizer.train(["hello"], 300, "char").pieces("hell")
            ['▁', 'h', 'e', 'l', 'l']
        """
        return self._processor.encode(to_utf8(text, "text").decode(), out_type=str)

    def _id_to_piece(self, id_: int) -> str:
        return self._processor.id_to_piece(id_)

    def piece_to_id(self, piece: str) -> int:
        """Return the id of a piece, or `unknown_id` if there is no such piece.

        Args:
            piece: the piece, with U+2581 for a space.

        Example:
            >>> SentencePieceTokenizer.train(["hello"], 300, "char").piece_to_id("</s>")
            3
        """
        return self._processor.piece_to_id(piece)
