"""A SentencePiece tokenizer that runs inside the TensorFlow graph."""

import hashlib
import os
import re
from typing import Any, Self

import tensorflow as tf
import tensorflow_text

from keras_transformer.text import folders
from keras_transformer.text.ids import to_dense_ids
from keras_transformer.text.sentence_piece_model import keeps_spaces, read_model
from keras_transformer.text.sentence_piece_training import Model, Texts, train_sentence_piece
from keras_transformer.text.shared_model import SharedModel
from keras_transformer.text.strings import to_string_tensor, to_utf8

_FILE = "sentencepiece.model"


class SentencePieceTokenizer(tf.Module):
    """Text to ids and back with a SentencePiece model, eagerly and inside `tf.function`.

    A `tf.Module` that holds this tokenizer as an attribute is saved by `tf.saved_model.save` with the model
    inside. The round trip `detokenize(tokenize(text))` is the text itself where the vocabulary covers it,
    spaces included, except for U+2581, which SentencePiece writes for a space, and U+0000 and U+2585, which
    it reserves; what is not covered comes back as " ⁇ " (with `byte_fallback`, everything is covered).

    Args:
        model: A serialised SentencePiece model that has a padding id.

    Attributes:
        pad_id: The id that fills rows, 0 in trained models.
        unknown_id: The id of what the vocabulary does not cover, 1 in trained models.
        start_id: The id that starts a target, 2 in trained models; -1 where the model has none.
        end_id: The id that ends a text, 3 in trained models; -1 where the model has none.
        vocabulary_size: The number of pieces, special ids included.
        blank_ids: The ids that say nothing: the unknown one, and those of pieces that are only spaces.

    Raises:
        ValueError: If `model` is not a SentencePiece model or has no padding id.

    Example:
        >>> tokenizer = SentencePieceTokenizer.train(["hello world", "hello"], 20, "char")
        >>> tokenizer.detokenize(tokenizer.encode(["hello", "hello world"], add_end=True)).numpy().tolist()
        [b'hello', b'hello world']

    References:
        Kudo and Richardson, "SentencePiece", https://arxiv.org/abs/1808.06226.
    """

    file_name = _FILE

    def __init__(self, model: bytes):
        super().__init__()
        self._processor = read_model(model)
        self._model = model
        self.pad_id: int = self._processor.pad_id()
        self.unknown_id: int = self._processor.unk_id()
        self.start_id: int = self._processor.bos_id()
        self.end_id: int = self._processor.eos_id()
        self.vocabulary_size: int = self._processor.vocab_size()
        self.blank_ids: tuple[int, ...] = (
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

    @classmethod
    def train(
        cls,
        texts: Texts,
        vocabulary_size: int = 8000,
        model: Model = "unigram",
        *,
        character_coverage: float = 1.0,
        normalization: str = "identity",
        byte_fallback: bool = False,
    ) -> Self:
        """Trains a tokenizer; the same texts and arguments give the same model.

        Args:
            texts: An iterable of texts (str or UTF-8 bytes) and `pathlib.Path`s of UTF-8 files, whose lines
                are the texts; or one such path. Empty texts are skipped.
            vocabulary_size: The largest number of pieces, the four special ids included. The trained
                vocabulary is smaller where the texts do not have that many.
            model: "unigram", "bpe", "char" or "word".
            character_coverage: Which share of the characters in `texts` gets a piece, from 0.98 to 1.
            normalization: "identity", which is lossless, or "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf".
            byte_fallback: Whether a character without a piece becomes its UTF-8 bytes instead of
                `unknown_id`. Takes 256 ids.

        Returns:
            The tokenizer.

        Raises:
            TypeError: If `texts` is a str, or holds something other than texts and paths.
            ValueError: If `texts` is empty or not UTF-8, if `vocabulary_size` is too small for its
                characters, or if another argument has an unknown value.

        Example:
            >>> SentencePieceTokenizer.train(["hello world"], 12, "char").vocabulary_size
            12
        """
        return cls(
            train_sentence_piece(
                texts, vocabulary_size, model, character_coverage, normalization, byte_fallback
            )
        )

    @property
    def model_bytes(self) -> bytes:
        """The serialised SentencePiece model."""
        return self._model

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of the model, in hexadecimal."""
        return hashlib.sha256(self._model).hexdigest()

    def tokenize(self, texts: Any) -> tf.RaggedTensor | tf.Tensor:
        """Turns texts into ids, without special ids.

        Args:
            texts: A list of B str, or a string tensor (B,), whose invalid UTF-8 becomes U+FFFD; or one str.

        Returns:
            int32 `tf.RaggedTensor` (B, None); for one str an int32 tensor (None,).

        Raises:
            TypeError: If `texts` is not text.
            ValueError: If a Python str or bytes is not valid Unicode, or a tensor has rank 2 or more.

        Example:
            >>> tokenizer = SentencePieceTokenizer.train(["hello world"], 20, "char")
            >>> tokenizer.tokenize(["hello", ""]).shape
            TensorShape([2, None])
        """
        return self._tokenizer.tokenize(to_string_tensor(texts))

    def encode(self, texts: Any, *, add_start: bool = False, add_end: bool = False) -> tf.Tensor:
        """Turns texts into rows of ids, padded with `pad_id` to the longest.

        Args:
            texts: As for `tokenize`.
            add_start: Whether each row starts with `start_id`.
            add_end: Whether `end_id` stands behind each row's ids.

        Returns:
            int32 tensor (B, L); for one str (L,).

        Raises:
            TypeError: If `texts` is not text.
            ValueError: As for `tokenize`, or if the model does not have the id to be added.

        Example:
            >>> tokenizer = SentencePieceTokenizer.train(["hello world"], 20, "char")
            >>> tokenizer.encode(["hello", ""], add_end=True).shape
            TensorShape([2, 7])
        """
        for argument, wanted, special in (
            ("add_start", add_start, self.start_id),
            ("add_end", add_end, self.end_id),
        ):
            if wanted and special < 0:
                raise ValueError(
                    f"`{argument}` must be False: the model has no such id. Received: {argument}=True"
                )
        strings = to_string_tensor(texts)
        ids = self._tokenizer.tokenize(tf.reshape(strings, [-1]))
        column = tf.ones([ids.nrows(), 1], tf.int32)
        parts = [column * self.start_id] * add_start + [ids] + [column * self.end_id] * add_end
        dense = tf.concat(parts, axis=1).to_tensor(self.pad_id)
        return dense[0] if strings.shape.rank == 0 else dense

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Turns ids into text: each row up to its first end id, padding and start ids left out.

        Args:
            ids: Integers (B, T), ragged or dense; (T,), or (B, R, T) for R hypotheses a row.

        Returns:
            String tensor (B,); () or (B, R) accordingly.

        Raises:
            TypeError: If `ids` are not integers.
            ValueError: If `ids` do not have rank 1 to 3 or, eagerly, if one is outside the vocabulary. Inside
                a graph such an id counts as `unknown_id`: the op's own OutOfRangeError would end a
                `fit` as if the data were exhausted.

        Example:
            >>> tokenizer = SentencePieceTokenizer.train(["hello world"], 20, "char")
            >>> tokenizer.detokenize(tokenizer.tokenize("hello")).numpy()
            b'hello'
        """
        dense = to_dense_ids(ids, self.vocabulary_size, pad_id=self.pad_id, unknown_id=self.unknown_id)
        shape = tf.shape(dense)
        rows = tf.reshape(dense, [tf.reduce_prod(shape[:-1]), shape[-1]])  # (B·R, T)
        ended = tf.cumsum(tf.cast(rows == self.end_id, tf.int32), axis=1) > 0
        kept = ~ended & (rows != self.pad_id) & (rows != self.start_id)
        texts = self._join(tf.ragged.boolean_mask(rows, kept))
        return tf.ensure_shape(tf.reshape(texts, shape[:-1]), dense.shape[:-1])

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        if self._guard is None:
            return self._tokenizer.detokenize(ids)
        # tensorflow_text drops all spaces in front of a text, though only one was added: so something stands
        # in front of it, and is removed with that one space.
        guards = tf.fill([ids.nrows(), 1], self.unknown_id)
        texts = self._tokenizer.detokenize(tf.concat([guards, ids], axis=1))
        return tf.strings.regex_replace(texts, self._guard, "", replace_global=False)

    def pieces(self, text: str) -> list[str]:
        """Cuts one text into its pieces, with U+2581 for a space.

        Args:
            text: The text.

        Returns:
            The pieces; joined, they are the text with a space in front.

        Raises:
            TypeError: If `text` is not a str.
            ValueError: If `text` is not valid Unicode.

        Example:
            >>> SentencePieceTokenizer.train(["hello"], 20, "char").pieces("hell")
            ['▁', 'h', 'e', 'l', 'l']
        """
        return self._processor.encode(to_utf8(text, "text").decode(), out_type=str)

    def id_to_piece(self, id: int) -> str:  # noqa: A002
        """Returns the piece of an id.

        Args:
            id: The id.

        Returns:
            The piece, with U+2581 for a space.

        Raises:
            ValueError: If the id is outside the vocabulary.

        Example:
            >>> SentencePieceTokenizer.train(["hello"], 20, "char").id_to_piece(3)
            '</s>'
        """
        if not 0 <= id < self.vocabulary_size:
            raise ValueError(
                f"`id` must lie in [0, {self.vocabulary_size}), the vocabulary. Received: id={id}"
            )
        return self._processor.id_to_piece(int(id))

    def piece_to_id(self, piece: str) -> int:
        """Returns the id of a piece, `unknown_id` where there is no such piece.

        Args:
            piece: The piece, with U+2581 for a space.

        Returns:
            The id.

        Example:
            >>> SentencePieceTokenizer.train(["hello"], 20, "char").piece_to_id("</s>")
            3
        """
        return self._processor.piece_to_id(piece)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes `sentencepiece.model` and `tokenizer.json`, each replaced whole.

        Args:
            folder: Where to write; created where it does not exist.

        Example:
            >>> tokenizer.save("runs/tokenizer")  # doctest: +SKIP
        """
        description = {
            "class_name": "SentencePieceTokenizer",
            "pad_id": self.pad_id,
            "unknown_id": self.unknown_id,
            "start_id": self.start_id,
            "end_id": self.end_id,
            "vocabulary_size": self.vocabulary_size,
        }
        folders.write_tokenizer(folder, description, _FILE, self._model)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Loads a tokenizer that `save` wrote.

        Args:
            folder: The folder.

        Returns:
            The tokenizer.

        Raises:
            FileNotFoundError: If the folder or one of its files does not exist.
            ValueError: If the description names another class, or the model is not the one that was saved.

        Example:
            >>> tokenizer = SentencePieceTokenizer.load("runs/tokenizer")  # doctest: +SKIP
        """
        return cls(folders.read_file(folder, "SentencePieceTokenizer"))
