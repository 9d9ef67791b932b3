"""A SentencePiece tokenizer with a separate vocabulary, as in Marian and T5."""

import base64
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import tensorflow as tf
import tensorflow_text

from keras_transformer.text.pretokenizers.characters import row_starts
from keras_transformer.text.tokenizers import multilingual, unigram_files
from keras_transformer.text.tokenizers.sentence_piece_model import (
    SharedModel,
    read_model,
    sampler,
)
from keras_transformer.text.tokenizers.steps import Normalizers, check_pre_tokenizers, split_into_words
from keras_transformer.text.tokenizers.strings import cleaned_texts
from keras_transformer.text.tokenizers.vocabulary import (
    VocabularyTokenizer,
    deserialised,
    language_settings,
    row_settings,
    serialised,
    text_settings,
    unused_ids,
    without_defaults,
)
from keras_transformer_options.arguments import check_not_negative, check_one_of
from keras_transformer_serving.text.sentence_piece import keeps_spaces, precompiled_charsmap
from keras_transformer_serving.text.steps import decoded_pieces

SPECIAL_TOKENS = {"pad": "<pad>", "unknown": "<unk>", "start": "<pad>", "end": "</s>"}
_SPACE = "\u2581"
_UNKNOWN = " \u2047 "
_PLACES = ("anywhere", "start")


class MarianT5Tokenizer(VocabularyTokenizer):
    """Convert text to ids and back with a SentencePiece model and a separate vocabulary of its pieces.

    So do XLM-RoBERTa, CamemBERT, mBART, NLLB-200 and M2M-100, whose ids are not those of the SentencePiece model.

    T5's vocabulary is the model's pieces followed by sentinels, "<extra_id_99>" to "<extra_id_0>", which are recognised
    in texts. Marian shares one vocabulary between two languages, each with its own SentencePiece model; a text may
    begin with the code of the target language, such as ">>fra<<".

    Args:
        model: a serialised SentencePiece model.
        vocabulary: the pieces in the order of their ids. Pieces of the model that are not in it are unknown.
        special_tokens: a mapping from roles to tokens: "pad", "unknown", "start", "end", "mask".
        special_tokens_in_text: whether to recognise special tokens such as "</s>" in texts.
        tokens_in_text: pieces that are recognised in every text.
        place_in_text: where `tokens_in_text` are recognised: "anywhere", or only at the "start".
        lstrip_tokens: the tokens that take the white space before them where they are recognised.
        rstrip_tokens: the tokens that take the white space after them.
        single_word_tokens: the tokens that are recognised only where no character of a word is next to them.
        normalized_tokens: the tokens that are recognised in normalised texts.
        start_tokens: the tokens that are recognised only at the start of a text.
        normalizers: normalisers before the model, as in `tokenizer.json`: "Replace", "Strip" and "Precompiled".
        pre_tokenizers: pre-tokenizers as in `tokenizer.json`, "WhitespaceSplit" and "Metaspace"; by default the model
            normalises and splits texts.
        decoders: with `pre_tokenizers`, the decoder "Metaspace"; without, pieces are separated by spaces.
        clean_up_texts: whether decoded texts are without spaces before punctuation.
        unused: the number of unused ids after the vocabulary, for models with more embeddings than the tokenizer has
            pieces.
        pair_separators: the number of end tokens between the texts of a pair, such as 2 for XLM-RoBERTa.
        lstrip_mask: whether a mask token takes the white space before it, as in XLM-RoBERTa.
        source_prefix: tokens before each source of an encoder–decoder, which decoded texts are without.
        languages: for a translation model of many languages, such as NLLB-200, the token of each language, by its
            code. Decoded texts are without them.
        language_after_source: whether a source is followed by the token of its language, after the end token, as in
            mBART, instead of beginning with it.
        language_is_start: whether a target begins with the token of its language in place of the start token, as in
            mBART, instead of after it.

    Attributes:
        start_id: the id that starts a target; T5 and Marian start with padding.
        empty_ids: the ids without content: the unknown id, unused ids, and the ids of pieces that are only spaces.

    Raises:
        ValueError: if `model` is not a SentencePiece model, a piece occurs twice, or special tokens are missing.

    Example:
        >>> from keras_transformer.text import SentencePieceTokenizer
        >>> trained = SentencePieceTokenizer.train(["hello"], 20, "char", byte_fallback=False)
        >>> pieces = ["<pad>", "</s>", "<unk>", *"hel", "\u2581", "<extra_id_0>"]
        >>> tokenizer = MarianT5Tokenizer(trained.model_bytes, pieces, tokens_in_text=["<extra_id_0>"])
        >>> tokenizer.tokenize("he<extra_id_0>o").numpy().tolist()
        [6, 3, 4, 7, 6, 2]

    References:
        Raffel et al. (2020), section 3.1.4: sentinels. Junczys-Dowmunt et al., "Marian", https://arxiv.org/abs/1804.00344.
    """

    file_name = "sentencepiece_vocabulary.json"
    sampling = "nondeterministic"

    def __init__(
        self,
        model: bytes,
        vocabulary: Sequence[str],
        *,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        special_tokens_in_text: bool = False,
        tokens_in_text: Sequence[str] = (),
        place_in_text: str = "anywhere",
        lstrip_tokens: Sequence[str] = (),
        rstrip_tokens: Sequence[str] = (),
        single_word_tokens: Sequence[str] = (),
        normalized_tokens: Sequence[str] = (),
        start_tokens: Sequence[str] = (),
        normalizers: Sequence[Mapping[str, Any]] = (),
        pre_tokenizers: Sequence[Mapping[str, Any]] | None = None,
        decoders: Sequence[Mapping[str, Any]] = (),
        clean_up_texts: bool = False,
        unused: int = 0,
        pair_separators: int = 1,
        lstrip_mask: bool = False,
        source_prefix: Sequence[str] = (),
        languages: Mapping[str, str] = MappingProxyType({}),
        language_after_source: bool = False,
        language_is_start: bool = False,
    ):
        processor = read_model(model, with_padding=False)
        check_not_negative(unused=unused)
        settings = {
            "special_tokens": dict(special_tokens),
            "tokens_in_text": list(tokens_in_text),
            "place_in_text": place_in_text,
            "unused": unused,
            **without_defaults(
                special_tokens_in_text=special_tokens_in_text,
                normalizers=list(normalizers),
                clean_up_texts=clean_up_texts,
            ),
            **(
                {}
                if pre_tokenizers is None
                else {"pre_tokenizers": list(pre_tokenizers), "decoders": list(decoders)}
            ),
            **row_settings(pair_separators, lstrip_mask, source_prefix),
            **text_settings(
                (), lstrip_tokens, rstrip_tokens, single_word_tokens, normalized_tokens, start_tokens
            ),
            **language_settings(languages, language_after_source, language_is_start),
        }
        super().__init__(vocabulary, settings)
        self._processor, self._model, known = processor, model, self._vocabulary
        check_one_of(_PLACES, place_in_text=place_in_text)
        whitespace = {id_ for id_, piece in enumerate(known.pieces) if not piece.strip(_SPACE)}
        after_pieces = range(len(known.pieces), self.vocabulary_size)
        self.empty_ids = tuple(sorted({*whitespace, *after_pieces, self.unknown_id}))
        self._normalizers = Normalizers(normalizers, lambda: precompiled_charsmap(model))
        self._pre_tokenizers = pre_tokenizers
        self._set_tables()
        if pre_tokenizers is not None:
            check_pre_tokenizers(pre_tokenizers)
            special = {*known.special_ids.values(), *self.languages.values()}
            self._skipped_ids = tuple(sorted(special - {self.unknown_id}))

    def _set_tables(self) -> None:
        pieces, languages = self._vocabulary.pieces, self.languages.values()
        special = {**self._vocabulary.special_ids, **{pieces[id_]: id_ for id_ in languages}}
        # The prefix space that the model adds, or the leading spaces that it ignores.
        self._added = r"\A " if keeps_spaces(self._processor) else r"\A +"
        texts = [piece.replace(_SPACE, " ") for piece in pieces]
        initial, following = texts, texts
        if self._pre_tokenizers is not None:
            self._added = None
            initial, following = decoded_pieces(pieces, self._settings["decoders"])
        tables = []
        for texts in (initial, following):
            contents = dict(enumerate(texts)) | dict.fromkeys(special.values(), "")
            contents |= {self.unknown_id: _UNKNOWN}
            tables.append([*contents.values(), *[""] * (self.vocabulary_size - len(pieces))])
        ids = {piece: id_ for piece, id_ in self._vocabulary.ids.items() if piece not in special}
        with tf.init_scope():
            with tf.device("CPU"):
                self._initial, self._following = map(tf.constant, tables)
                # Look pieces up by text: a piece that is not in this model may be one of the other language.
                entries = tf.lookup.KeyValueTensorInitializer(
                    list(ids), list(ids.values()), tf.string, tf.int32
                )
                self._ids = tf.lookup.StaticHashTable(entries, self.unknown_id)
            self._tokenizer = tensorflow_text.SentencepieceTokenizer(self._model, out_type=tf.string)
            self._tokenizer._model_resource = SharedModel(self._model)

    @classmethod
    def from_files(
        cls,
        folder: str | os.PathLike[str],
        *,
        vocabulary_size: int | None = None,
        target: bool = False,
        **options: Any,
    ) -> Self:
        """Read the SentencePiece tokenizer of a folder written by Hugging Face's libraries.

        Args:
            folder: the folder with T5's `spiece.model`, with a `tokenizer.json` of unigrams, with XLM-RoBERTa's
                `sentencepiece.bpe.model`, with Marian's `vocab.json`, `source.spm` and `target.spm`, or with the files
                of mBART, NLLB-200 or M2M-100; and, optionally, `tokenizer_config.json` and `config.json`.
            vocabulary_size: the number of ids of the model, if it exceeds the number of ids of the tokenizer.
            target: whether to read Marian's tokenizer of the target language, for labels. Both tokenizers can
                detokenise generated ids.
            **options: other arguments of the constructor; what `tokenizer.json` says takes precedence.

        Raises:
            FileNotFoundError: if there are no such files.
            ValueError: if a file is damaged or of a different type of tokenizer, or has more pieces than
                `vocabulary_size`.

        Example:
            >>> tokenizer = MarianT5Tokenizer.from_files(
            ...     "downloads/t5-small", vocabulary_size=32128
            ... )  # doctest: +SKIP
        """
        if multilingual.is_multilingual(folder):
            model, pieces, settings = multilingual.read_multilingual(folder)
        else:
            model, pieces, settings = unigram_files.read_sentence_piece(folder, target)
        unused = unused_ids(pieces, vocabulary_size)
        return cls(model, pieces, unused=unused, **{"special_tokens": SPECIAL_TOKENS, **options, **settings})

    @property
    def model_bytes(self) -> bytes:
        """The serialised SentencePiece model, vocabulary and settings."""
        model = base64.b64encode(self._model).decode()
        return serialised({"model": model, "vocabulary": self.vocabulary, "settings": dict(self._settings)})

    @classmethod
    def _arguments(cls, model: bytes) -> dict[str, Any]:
        content = deserialised(model, {"model", "vocabulary", "settings"})
        settings = content.pop("settings")
        return content | {"model": base64.b64decode(content["model"])} | settings

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        return self._normalizers(texts)

    def _tokenize_parts(self, texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
        return self._ids_of_parts(texts, starts, self._tokenizer)

    def _ids_of_parts(self, texts: tf.Tensor, starts: tf.Tensor, tokenizer: Any) -> tf.RaggedTensor:
        if self._pre_tokenizers is None:
            return self._ids_of_pieces(texts, tokenizer)
        words = split_into_words(texts, starts, self._pre_tokenizers)
        return words.with_values(self._ids_of_pieces(words.values, tokenizer)).merge_dims(1, 2)

    def _ids_of_pieces(self, texts: tf.Tensor, tokenizer: Any) -> tf.RaggedTensor:
        pieces = tokenizer.tokenize(texts)
        return pieces.with_values(self._ids.lookup(pieces.values))

    def _sample(self, texts: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.RaggedTensor:
        tokenizer = sampler(self._tokenizer, self._model, rate)
        return self._around_tokens(texts, lambda texts, starts: self._ids_of_parts(texts, starts, tokenizer))

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        first = row_starts(ids.value_rowids())
        contents = tf.where(
            first, tf.gather(self._initial, ids.values), tf.gather(self._following, ids.values)
        )
        texts = tf.strings.reduce_join(ids.with_values(contents), axis=-1)
        if self._added is not None:
            texts = tf.strings.regex_replace(texts, self._added, "", replace_global=False)
        return cleaned_texts(texts) if self._settings.get("clean_up_texts") else texts
