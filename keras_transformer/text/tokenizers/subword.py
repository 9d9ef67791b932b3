"""Base classes of tokenizers that split texts into words, and words into pieces of a vocabulary."""

import abc
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import tokenize_once
from keras_transformer.text.tokenizers.hugging_face import Folder
from keras_transformer.text.tokenizers.pair_merging import MergeDropout, PairMerger
from keras_transformer.text.tokenizers.vocabulary import (
    VocabularyTokenizer,
    deserialised,
    serialised,
    unused_ids,
    with_roles,
)
from keras_transformer.text.tokenizers.words import PlacedWords, TokenizedWords, words_around


class Compiled:
    """A function of strings that is traced once, for eager calls and for all graphs.

    A `tf.function` that is an attribute of a tokenizer would be saved with each model that contains the tokenizer.

    Args:
        function: a function of strings (B,), and of tensors.
        *specs: the specs of these tensors.
    """

    def __init__(self, function: Callable[..., tf.RaggedTensor], *specs: tf.TensorSpec):
        self._graph = tf.function(function, [tf.TensorSpec([None], tf.string), *specs], autograph=False)

    def __call__(self, *inputs: tf.Tensor) -> tf.RaggedTensor:
        """Return the function's result."""
        return self._graph(*inputs)


class WordTokenizer(VocabularyTokenizer):
    """Base class of tokenizers that split texts into words, and words into pieces.

    A subclass implements `_split` and `_join`, and sets `_read`, the function that reads its files, and `_words`, a
    function that splits strings (B,) into words, strings (B, None). Its settings include "special_tokens_in_text".
    """

    _words: Callable[[tf.Tensor], tf.RaggedTensor]
    _read: ClassVar[Callable[[Folder], Any]]
    _keys = frozenset({"vocabulary", "settings"})

    def __init__(
        self, pieces: Sequence[str], settings: Mapping[str, Any], *, needs_unknown: bool = True
    ) -> None:
        super().__init__(pieces, settings, needs_unknown=needs_unknown)
        self._compiled = Compiled(super()._tokenize)
        self._compiled_with_specials = Compiled(super()._tokenize_with_specials)
        self._compiled_words = Compiled(functools.partial(self._words_of_texts, each_token=False))
        self._compiled_tokens = Compiled(functools.partial(self._words_of_texts, each_token=True))

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

    @classmethod
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        *,
        special_tokens_in_text: bool = False,
        vocabulary_size: int | None = None,
        roles: Mapping[str, int] = MappingProxyType({}),
        start: str | None = None,
        **options: Any,
    ) -> Self:
        """Read the tokenizer of a folder written by Hugging Face's libraries.

        If the files have no padding token, as GPT-2's, `pad_id` is None.

        Args:
            folder: the folder with `tokenizer.json`, or the older files of the tokenizer, `vocab.txt`, `vocab.json` and
                `merges.txt` or, for Llama, `tokenizer.model`; and, optionally, `tokenizer_config.json`.
            special_tokens_in_text: whether to recognise special tokens in texts.
            vocabulary_size: the number of ids of the model, if it exceeds the number of ids of the tokenizer.
            roles: the ids of special tokens by role, such as "end", where a model's differ from those of the files.
            start: the token that starts a row, by default that of the files. Targets of BART start with "</s>".
            **options: other arguments of the constructor; what `tokenizer.json` says takes precedence.

        Raises:
            FileNotFoundError: if there are no such files.
            ValueError: if a file is damaged or of a different type of tokenizer, or has more pieces than
                `vocabulary_size`, or lacks a piece of `roles`.

        Example:
            >>> BytePairTokenizer.from_files("gpt2").vocabulary_size  # doctest: +SKIP
            50257
        """
        vocabulary, *merges, settings = cls._read(folder)
        settings["special_tokens"] = with_roles(settings["special_tokens"], vocabulary, roles)
        if start is not None:
            specials = settings["special_tokens"]
            replaced, specials["start"] = specials.get("start"), start
            if replaced not in (None, *specials.values()):
                specials[replaced] = replaced  # special still, without the role
        options["unused"] = unused_ids(vocabulary, vocabulary_size)
        return cls(
            vocabulary, *merges, **{"special_tokens_in_text": special_tokens_in_text, **options, **settings}
        )

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._compiled(texts)

    def _tokenize_with_specials(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._compiled_with_specials(texts)

    def _tokenize_words(self, texts: tf.Tensor) -> TokenizedWords:
        return self._compiled_words(texts)

    def _tokenize_each(self, texts: tf.Tensor) -> TokenizedWords:
        return self._compiled_tokens(texts)

    def _words_of_texts(self, texts: tf.Tensor, each_token: bool) -> TokenizedWords:
        stages = self._tokens_in_text(special_tokens=False)

        def tokenize(texts: tf.Tensor, starts: tf.Tensor) -> TokenizedWords:
            words = self._places_of(texts, starts)
            if each_token:
                return TokenizedWords.of_tokens(words, self._split, self._places_of_pieces)
            return TokenizedWords.of(words, self._split)

        return words_around(texts, stages, self._normalize_with_sources, tokenize)

    def _normalize_with_sources(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor | None]:
        """Normalise strings (P,), and return the index of the original of each character (P, N) if any changes."""
        return texts, None

    def _places_of(self, texts: tf.Tensor, starts: tf.Tensor) -> PlacedWords:
        """Split normalised parts of texts (P,), of which some start a text (P,), into words with their places."""
        return PlacedWords(*self._words.with_places(texts))  # type: ignore[attr-defined]

    def _tokenize_parts(self, texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
        return tokenize_once(self._words_of(texts, starts), self._split)

    def _words_of(self, texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
        """Split normalised parts of texts (P,), of which some start a text (P,), into words, strings (P, None)."""
        return self._cut(texts)

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
    def _split(self, words: tf.Tensor, dropout: MergeDropout | None = None) -> tf.RaggedTensor:
        """Convert words (W,) to int32 ids (W, None)."""

    def _sample(self, texts: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.RaggedTensor:
        return self._sampler(texts, tf.constant(rate, tf.float32), seed)

    def _sample_texts(self, texts: tf.Tensor, rate: tf.Tensor, seed: tf.Tensor) -> tf.RaggedTensor:
        def tokenize(texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
            # Equal words may have different samples, so do not tokenise them once.
            words = self._words_of(texts, starts)
            return words.with_values(self._split(words.values, MergeDropout(rate, seed))).merge_dims(1, 2)

        return self._around_tokens(texts, tokenize)


def character_ids(ids: Mapping[str, int], suffix: str, missing: int) -> np.ndarray:
    """Return the id of each code point followed by a suffix, int32 (0x110000,).

    Args:
        ids: the pieces and their ids.
        suffix: the suffix.
        missing: the value for code points without a piece.
    """
    symbols = np.full(0x110000, missing, np.int32)
    for piece, id_ in ids.items():
        if len(piece) == 1 + len(suffix) and piece.endswith(suffix):
            symbols[ord(piece[0])] = id_
    return symbols
