"""Base classes of tokenizers that split texts into words, and words into pieces of a vocabulary."""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import tokenize_once
from keras_transformer.text.tokenizers.base import Compiled, tokenize_around
from keras_transformer.text.tokenizers.pair_merging import Dropout, PairMerger
from keras_transformer.text.tokenizers.vocabulary import VocabularyTokenizer, deserialised, serialised


class WordTokenizer(VocabularyTokenizer):
    """Base class of tokenizers that split texts into words, and words into pieces.

    A subclass implements `_split` and `_join`, and sets `_words`, a function that splits strings (B,) into words,
    strings (B, None). Its settings include "special_tokens_in_text".
    """

    _words: Callable[[tf.Tensor], tf.RaggedTensor]
    _keys = frozenset({"vocabulary", "settings"})

    def __init__(
        self, pieces: Sequence[str], settings: Mapping[str, Any], *, needs_unknown: bool = True
    ) -> None:
        super().__init__(pieces, settings, needs_unknown=needs_unknown)
        self._compiled = Compiled(self._tokenize_texts)

    @abc.abstractmethod
    def _split(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Convert words (W,) to int32 ids (W, None)."""

    @property
    def model_bytes(self) -> bytes:
        """The serialised vocabulary, settings and other constructor arguments."""
        settings = dict(self._settings)
        return serialised({"vocabulary": self.vocabulary, **self._other_arguments(), "settings": settings})

    @classmethod
    def _arguments(cls, model: bytes) -> dict[str, Any]:
        content = deserialised(model, cls._keys)
        settings = content.pop("settings")
        return content | settings

    def _other_arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments other than vocabulary and settings."""
        return {}

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._compiled(texts)

    def _tokenize_texts(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._settings["special_tokens_in_text"]:
            return tokenize_around(texts, self._vocabulary.special_ids, self._tokenize_words)
        return self._tokenize_words(texts)

    def _tokenize_words(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return tokenize_once(self._cut(texts), self._split)

    def _cut(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._words(texts)


class PairTokenizer(WordTokenizer):
    """Base class of byte-pair encoding, which merges adjacent pieces of words.

    Args:
        vocabulary: the pieces in the order of their ids.
        merges: the pairs of pieces to merge, in order of priority.
        settings: the constructor's other arguments.
        needs_unknown: whether an unknown token is required.

    Raises:
        TypeError: if a piece is not a str.
        ValueError: if a piece occurs twice, or a special token or a piece of `merges` is missing.
    """

    sampling = "seeded"
    _keys = frozenset({"vocabulary", "merges", "settings"})

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Iterable[Sequence[str]],
        settings: Mapping[str, Any],
        *,
        needs_unknown: bool = True,
    ) -> None:
        super().__init__(vocabulary, settings, needs_unknown=needs_unknown)
        self._merger = PairMerger(self._vocabulary.ids, [tuple(pair) for pair in merges])
        scalar, seed = tf.TensorSpec([], tf.float32), tf.TensorSpec([2], tf.int64)
        self._sampler = Compiled(self._sample_texts, scalar, seed)

    @property
    def merges(self) -> Sequence[Sequence[str]]:
        """The pairs of pieces to merge, in order of priority."""
        return self._merger.merges

    def _other_arguments(self) -> dict[str, Any]:
        return {"merges": self.merges}

    @abc.abstractmethod
    def _split(self, words: tf.Tensor, dropout: Dropout | None = None) -> tf.RaggedTensor:
        """Convert words (W,) to int32 ids (W, None)."""

    def _sample(self, texts: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.RaggedTensor:
        return self._sampler(texts, tf.constant(rate, tf.float32), seed)

    def _sample_texts(self, texts: tf.Tensor, rate: tf.Tensor, seed: tf.Tensor) -> tf.RaggedTensor:
        def cut(texts: tf.Tensor) -> tf.RaggedTensor:
            words = self._cut(texts)  # equal words may have different samples, so do not tokenise them once
            return words.with_values(self._split(words.values, Dropout(rate, seed))).merge_dims(1, 2)

        specials = self._vocabulary.special_ids if self._settings["special_tokens_in_text"] else {}
        return tokenize_around(texts, specials, cut) if specials else cut(texts)
