"""The base class of all tokenizers, which encodes texts with special tokens and decodes ids."""

import abc
import functools
import hashlib
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import tensorflow as tf

from keras_transformer.text.tokenizers import folders
from keras_transformer.text.tokenizers.strings import to_string_tensor
from keras_transformer.text.tokenizers.tokens_in_text import tokenize_around
from keras_transformer.text.tokenizers.words import TokenizedWords, places_of_pieces, white_space_words
from keras_transformer_options.arguments import check_fraction
from keras_transformer_serving.text.tokenizer import tokens_in_text

_SPACE = "\u2581"  # in pieces of SentencePiece


class Tokenizer(tf.Module, abc.ABC):
    """Convert text to ids and back, eagerly and inside `tf.function`.

    A tokenizer that is an attribute of a `tf.Module` is saved with it by `tf.saved_model.save`. A subclass sets the
    attributes and implements `_tokenize`, `_join`, `_id_to_piece`, `piece_to_id`, `special_token_ids`, `model_bytes`
    and `_arguments`.

    Attributes:
        pad_id: the padding id; None if there is none, as in GPT-2.
        unknown_id: the id of text that is out of vocabulary; -1 if there is none.
        start_id: the id that starts a row; -1 if there is none.
        end_id: the id that ends a row; -1 if there is none.
        vocabulary_size: the number of ids, including special ids.
        empty_ids: the ids without content: the unknown id, and the ids of pieces that are only spaces.
        file_name: the name of the file that `save` writes in addition to the description.
        pair_separators: the number of end tokens between the texts of a pair.
        source_prefix_ids: the ids before each source of an encoder–decoder, which decoded texts are without.
        lstrip_mask: whether a mask token takes the white space before it.
        languages: the id of each language's token, by the code of the language; empty for most tokenizers.
        language_after_source: whether a source is followed by the token of its language, after the end token, instead
            of beginning with it.
        language_is_start: whether a target begins with the token of its language in place of the start token, instead
            of after it.
        sampling: "seeded" or "nondeterministic" for the sampler of `sample`; None if the tokenizer cannot sample.
    """

    pad_id: int | None
    unknown_id: int
    start_id: int
    end_id: int
    vocabulary_size: int
    empty_ids: tuple[int, ...]
    file_name: str
    pair_separators: int = 1
    lstrip_mask: bool = False
    source_prefix_ids: tuple[int, ...] = ()
    languages: Mapping[str, int] = MappingProxyType({})
    language_after_source: bool = False
    language_is_start: bool = False
    sampling: str | None = None
    _skipped_ids: tuple[int, ...] = ()  # other ids that decoded texts are without

    @abc.abstractmethod
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert strings (B,) to int32 ids (B, None)."""

    def _tokenize_with_specials(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert strings (B,) to int32 ids (B, None), special tokens to theirs."""
        stages = tokens_in_text({}, {}, self.special_token_ids, str)
        return tokenize_around(texts, stages, lambda texts: texts, lambda texts, _: self._tokenize(texts))

    @abc.abstractmethod
    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Convert ids (B, None) in the vocabulary to strings (B,) of valid UTF-8."""

    @abc.abstractmethod
    def _id_to_piece(self, id_: int) -> str:
        """Return the piece of an id in the vocabulary."""

    @abc.abstractmethod
    def piece_to_id(self, piece: str) -> int:
        """Return the id of a piece, or `unknown_id` if there is no such piece.

        Args:
            piece: the piece, as `id_to_piece` writes it.
        """

    @property
    @abc.abstractmethod
    def special_token_ids(self) -> dict[str, int]:
        """The special tokens and their ids."""

    @property
    @abc.abstractmethod
    def model_bytes(self) -> bytes:
        """The serialised tokenizer."""

    @classmethod
    @abc.abstractmethod
    def _arguments(cls, model: bytes) -> dict[str, Any]:
        """Return the constructor's arguments from `model_bytes`, or raise a ValueError."""

    @property
    def padding_value(self) -> int:
        """The id that pads short rows: `pad_id`, or `end_id` if that is None."""
        return self.end_id if self.pad_id is None else self.pad_id

    @classmethod
    def from_model_bytes(cls, model: bytes) -> Self:
        """Create a tokenizer from its `model_bytes`."""
        return cls(**cls._arguments(model))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_model_bytes, (self.model_bytes,)

    def with_arguments(self, **arguments: Any) -> Self:
        """Return a tokenizer with the same vocabulary and some other arguments of the constructor.

        Example:
            >>> tokenizer.with_arguments(special_tokens_in_text=True)  # doctest: +SKIP
        """
        return type(self)(**{**self._arguments(self.model_bytes), **arguments})

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of `model_bytes`, in hexadecimal."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    def tokenize(self, texts: Any, *, special_tokens: bool = False) -> tf.RaggedTensor | tf.Tensor:
        """Convert texts to ids, without special ids around them.

        Args:
            texts: a list of B str; a string tensor (B,), in which invalid UTF-8 becomes U+FFFD; or one str.
            special_tokens: whether to convert special tokens in texts, such as "<|endoftext|>", to their ids. By
                default they are ordinary text, unless the tokenizer was created with `special_tokens_in_text`.

        Returns:
            int32 `tf.RaggedTensor` (B, None); for one str an int32 tensor (None,).

        Raises:
            ValueError: if a Python str or bytes is not valid Unicode, or a tensor has rank 2 or more.

        Example:
            >>> tokenizer.tokenize(["hello", ""]).shape  # doctest: +SKIP
            TensorShape([2, None])
        """
        # Strings exist on the CPU only, and the arithmetic is too cheap for a transfer to an accelerator.
        with tf.device("CPU"):
            strings = to_string_tensor(texts)
            flat = tf.reshape(strings, [-1])
            ids = self._tokenize_with_specials(flat) if special_tokens else self._tokenize(flat)
            return ids.values if strings.shape.rank == 0 else ids

    def tokenize_words(self, texts: Any, each_token: bool = False) -> TokenizedWords:
        """Convert the words of texts to ids, and find the words in the text.

        Byte-level BPE and WordPiece have the words of their pre-tokenizer, in which punctuation and, for WordPiece,
        Chinese characters are words of their own, and the ids are those of `tokenize`. Words of other tokenizers are
        delimited by white space and tokenised one by one; their pieces of punctuation are words of their own.

        Args:
            texts: a list of B str, or a string tensor (B,).
            each_token: whether each token is a word of its own. A token that is a part of a character has the place of
                the character, and a space before a word that of the word's first. Where normalisation changes the
                number of characters of a word, its tokens have the place of the word.

        Returns:
            The ids of each word, int32 (B, W, None), and its start and end in its text, int32 (B, W), all ragged.

        Example:
            >>> tokenizer.tokenize_words(["said Ada"]).ends.to_list()  # doctest: +SKIP
            [[4, 8]]
        """
        with tf.device("CPU"):
            tokenize = self._tokenize_each if each_token else self._tokenize_words
            return tokenize(to_string_tensor(texts))

    def _tokenize_words(self, texts: tf.Tensor) -> TokenizedWords:
        return TokenizedWords.around_punctuation(
            white_space_words(texts), self._tokenize, self._piece_lengths
        )

    def _tokenize_each(self, texts: tf.Tensor) -> TokenizedWords:
        """Return each token of texts as a word of its own."""
        return TokenizedWords.of_tokens(white_space_words(texts), self._tokenize, self._places_of_pieces)

    def _places_of_pieces(self, words: tf.Tensor, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the places of the tokens of words (W,) from their ids; see `TokenizedWords.of_tokens`."""
        return places_of_pieces(words, ids, self._piece_lengths, self.unknown_id)

    @functools.cached_property
    def _piece_lengths(self) -> tf.Tensor:
        """The number of characters of each piece without spaces, int32 (V,)."""
        pieces = map(self._id_to_piece, range(self.vocabulary_size))
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant([*map(self._num_characters, pieces)], tf.int32)

    def _num_characters(self, piece: str) -> int:
        """Return the number of characters of a piece without spaces."""
        return len(piece.replace(_SPACE, ""))

    def sample(self, texts: Any, rate: float, seed: Any) -> tf.RaggedTensor:
        """Convert texts to the ids of random segmentations, which decode to the same texts.

        Args:
            texts: a list of B str, or a string tensor (B,).
            rate: for a byte-pair tokenizer, the probability p with which BPE-dropout skips a merge; for a SentencePiece
                unigram model, the exponent α of the probabilities of segmentations: the smaller, the more uniform.
            seed: integers (2,). The ids depend on it and on all texts of the call; SentencePiece ignores it.

        Returns:
            int32 `tf.RaggedTensor` (B, None).

        Example:
            >>> tokenizer.sample(["hello"], 0.1, [0, 1])  # doctest: +SKIP

        References:
            Provilkov et al., "BPE-Dropout: Simple and Effective Subword Regularization" (2020); Kudo, "Subword
            Regularization" (2018), section 3.2.
        """
        check_fraction(rate=rate)
        with tf.device("CPU"):
            return self._sample(to_string_tensor(texts), rate, tf.cast(seed, tf.int64))

    def _sample(self, texts: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.RaggedTensor:
        raise ValueError(
            "`sample` needs a byte-pair tokenizer, or a SentencePiece model of the type unigram or BPE. "
            f"Received: a {type(self).__name__}"
        )

    def encode(
        self, texts: Any, *, add_start: bool = False, add_end: bool = False, special_tokens: bool = False
    ) -> tf.Tensor:
        """Convert texts to a batch of ids, padded to the longest with `pad_id`, or with `end_id` if that is None.

        Args:
            texts: see `tokenize`.
            add_start: whether each row starts with `start_id`.
            add_end: whether each row ends with `end_id`.
            special_tokens: see `tokenize`.

        Returns:
            int32 tensor (B, L); for one str (L,).

        Raises:
            ValueError: see `tokenize`; also if the tokenizer has no start or end id to add.

        Example:
            >>> tokenizer.encode(["hello", ""], add_end=True)[1].numpy()  # doctest: +SKIP
            array([3, 0, 0, 0, 0, 0], dtype=int32)
        """
        rows = self.encode_ragged(texts, add_start=add_start, add_end=add_end, special_tokens=special_tokens)
        return rows.to_tensor(self.padding_value) if isinstance(rows, tf.RaggedTensor) else rows

    def encode_ragged(
        self, texts: Any, *, add_start: bool = False, add_end: bool = False, special_tokens: bool = False
    ) -> tf.RaggedTensor | tf.Tensor:
        """Convert texts to rows of ids without padding.

        Args:
            texts: see `tokenize`.
            add_start: whether each row starts with `start_id`.
            add_end: whether each row ends with `end_id`.
            special_tokens: see `tokenize`.

        Returns:
            int32 `tf.RaggedTensor` (B, None); for one str an int32 tensor (L,).
        """
        for argument, wanted, special in (
            ("add_start", add_start, self.start_id),
            ("add_end", add_end, self.end_id),
        ):
            if wanted and special < 0:
                raise ValueError(
                    f"`{argument}` must be False, because the tokenizer has no such id. Received: {argument}=True"
                )
        ids = self.tokenize(texts, special_tokens=special_tokens)
        one = not isinstance(ids, tf.RaggedTensor)
        rows = tf.RaggedTensor.from_tensor(ids[None]) if one else ids
        column = tf.ones([rows.nrows(), 1], tf.int32)
        parts = [column * self.start_id] * add_start + [rows] + [column * self.end_id] * add_end
        joined = tf.concat(parts, axis=1)
        return joined.values if one else joined

    def detokenize(self, ids: Any) -> tf.Tensor:
        """Convert each row of ids to text, up to its first end id and without padding and start ids.

        If the same id starts and ends a row, as in GPT-2, it does not end a row in the first position.

        Args:
            ids: integers (B, T), ragged or dense; (T,), or (B, R, T) for R hypotheses per text.

        Returns:
            String tensor (B,), () or (B, R).

        Raises:
            ValueError: if `ids` do not have rank 1 to 3 or, in eager execution, if an id is outside the vocabulary. In
                a graph such an id is replaced by `unknown_id`, since `fit` takes an OutOfRangeError for the end of
                the data.

        Example:
            >>> tokenizer.detokenize(tokenizer.tokenize("hello")).numpy()  # doctest: +SKIP
            b'hello'
        """
        unknown_id = self.padding_value if self.unknown_id < 0 else self.unknown_id
        with tf.device("CPU"):
            dense = _to_dense_ids(
                ids, self.vocabulary_size, padding_value=self.padding_value, unknown_id=unknown_id
            )
            shape = tf.shape(dense)
            rows = tf.reshape(dense, [tf.reduce_prod(shape[:-1]), shape[-1]])  # (B·R, T)
            ends = rows == self.end_id
            if self.start_id == self.end_id:
                ends &= tf.range(shape[-1]) > 0
            ended = tf.cumsum(tf.cast(ends, tf.int32), axis=1) > 0
            kept = ~ended
            for id_ in (self.start_id, *self.source_prefix_ids, *self._skipped_ids):
                kept &= rows != id_
            if self.pad_id is not None:
                kept &= rows != self.pad_id
            texts = self._join(tf.ragged.boolean_mask(rows, kept))
            return tf.ensure_shape(tf.reshape(texts, shape[:-1]), dense.shape[:-1])

    def pieces(self, text: str) -> list[str]:
        """Split one text into pieces.

        Returns:
            The pieces, as `id_to_piece` writes them.

        Example:
            >>> tokenizer.pieces("hello")  # doctest: +SKIP
            ['hell', 'o']
        """
        if not isinstance(text, str):
            raise TypeError(f"`text` must be a str. Received: text={text!r} (of type {type(text).__name__})")
        return [self._id_to_piece(id_) for id_ in self.tokenize(text).numpy().tolist()]

    def id_to_piece(self, id: int) -> str:  # noqa: A002
        """Return the piece of an id.

        Example:
            >>> tokenizer.id_to_piece(3)  # doctest: +SKIP
            '</s>'
        """
        if not 0 <= id < self.vocabulary_size:
            raise ValueError(
                f"`id` must be in [0, {self.vocabulary_size}), the vocabulary. Received: id={id}"
            )
        return self._id_to_piece(int(id))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the tokenizer's file and the description `tokenizer.json`, replacing each atomically.

        Args:
            folder: the folder; created if it does not exist.

        Example:
            >>> tokenizer.save("runs/tokenizer")  # doctest: +SKIP
        """
        description = {
            "class_name": type(self).__name__,
            "pad_id": self.pad_id,
            "unknown_id": self.unknown_id,
            "start_id": self.start_id,
            "end_id": self.end_id,
            "vocabulary_size": self.vocabulary_size,
        }
        folders.write_tokenizer(folder, description, self.file_name, self.model_bytes)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load a tokenizer from the folder written by `save`.

        Raises:
            FileNotFoundError: if the folder or one of its files does not exist.
            ValueError: if the description names a different class, or the tokenizer's file has changed since `save`.

        Example:
            >>> tokenizer = SentencePieceTokenizer.load("runs/tokenizer")  # doctest: +SKIP
        """
        return cls.from_model_bytes(folders.read_file(folder, cls.__name__))


def _to_dense_ids(ids: Any, vocabulary_size: int, *, padding_value: int, unknown_id: int) -> tf.Tensor:
    """Convert ids to a dense tensor of ids in the vocabulary.

    Args:
        ids: integers of rank 1 to 3: a dense or ragged tensor, an array or lists.
        vocabulary_size: the number of ids.
        padding_value: the id that pads ragged rows.
        unknown_id: the id that replaces ids outside the vocabulary in a graph.

    Returns:
        int32 tensor of the same rank.
    """
    dense = _to_tensor(ids, padding_value)
    if not dense.dtype.is_integer:
        raise TypeError(f"`ids` must be integers. Received: ids={ids!r}")
    if dense.shape.rank not in (1, 2, 3):
        raise ValueError(
            "`ids` must have a static rank of 1, 2 or 3: (T,), (B, T) or (B, R, T). "
            f"Received: ids of shape {dense.shape}"
        )
    dense = tf.cast(dense, tf.int64)
    known = (dense >= 0) & (dense < vocabulary_size)
    if tf.executing_eagerly() and not tf.reduce_all(known):
        place = tuple(np.argwhere(~known.numpy())[0].tolist())
        raise ValueError(
            f"`ids` must be in [0, {vocabulary_size}), the vocabulary. "
            f"Received: ids[{', '.join(map(str, place))}]={dense.numpy()[place]}"
        )
    return tf.cast(tf.where(known, dense, unknown_id), tf.int32)


def _to_tensor(ids: Any, padding_value: int) -> tf.Tensor:
    if isinstance(ids, list | tuple | np.ndarray):
        try:
            array = np.asarray(ids)
            # NumPy converts empty lists to floats.
            ids = array.astype(np.int32) if array.size == 0 else array
        except ValueError:
            ids = tf.ragged.constant(ids)
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_tensor(tf.cast(padding_value, ids.dtype) if ids.dtype.is_integer else None)
    return tf.convert_to_tensor(ids)
