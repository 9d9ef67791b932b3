"""A byte-level BPE tokenizer, as in GPT-2 and Llama 3, that runs inside the TensorFlow graph."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import tensorflow as tf
import tensorflow_text

from keras_transformer.text.pretokenizers.characters import row_starts, shifted
from keras_transformer.text.pretokenizers.patterns import DIGIT, GPT_2, Words
from keras_transformer.text.tokenizers import hugging_face
from keras_transformer.text.tokenizers.pair_merging import MergeDropout
from keras_transformer.text.tokenizers.subword import PairTokenizer
from keras_transformer.text.tokenizers.vocabulary import (
    row_settings,
    text_settings,
    without_defaults,
)
from keras_transformer.text.tokenizers.words import SPACES, PlacedWords
from keras_transformer.text.training import pair_merges
from keras_transformer.text.training.corpus import Texts
from keras_transformer_options.arguments import check, check_not_negative, check_one_of
from keras_transformer_serving.text.subword import BYTE_CHARACTERS, byte_level_content
from keras_transformer_serving.text.tokenizer import WHITE_SPACE

SPECIAL_TOKENS = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}


class BytePairTokenizer(PairTokenizer):
    r"""Convert text to ids and back with byte-level BPE, as in GPT-2 and Llama 3, eagerly and inside `tf.function`.

    A pattern splits texts into words; adjacent bytes and pieces of each word are merged in the order of `merges`. A
    byte without a piece is dropped; if all 256 have one, `detokenize(tokenize(text))` returns the text unchanged,
    unless it is normalised. The ids equal those of the `tokenizers` library. A word of n bytes takes up to n rounds of
    merging, so tokenising words of thousands of bytes is slow.

    Args:
        vocabulary: the pieces in the order of their ids, written with a character for each byte ("Ġ" for a space); ""
            for an id without a piece.
        merges: the pairs of pieces to merge, in order of priority.
        special_tokens: a mapping from roles to tokens: "pad", "unknown", "start", "end", "mask".
        add_prefix_space: whether to add a space before a text that does not start with one.
        special_tokens_in_text: whether to recognise special tokens such as "</s>" in texts.
        pair_separators: the number of end tokens between the texts of a pair, such as 2 for RoBERTa.
        lstrip_mask: whether a mask token takes the white space before it, as in RoBERTa.
        source_prefix: tokens before each source of an encoder–decoder, which decoded texts are without, such as BART's
            "<s>".
        pattern: the regular expression of words, or several, each of which splits the words of the one before it; by
            default GPT-2's. Their syntax is that of `tokenizer.json`: characters, classes, groups, quantifiers,
            alternatives, and `\s+(?!\S)`, white space but the last before a word.
        individual_digits: whether every digit is a word, as in SmolLM 2; with GPT-2's pattern only.
        normalization: the Unicode normalisation of texts, "NFC" or by default none.
        ignore_merges: whether a word that is a piece is not split, whatever the merges, as in Llama 3.
        tokens_in_text: other tokens that are recognised in every text, such as Qwen 3's "<think>".
        lstrip_tokens: the tokens that take the white space before them where they are recognised.
        rstrip_tokens: the tokens that take the white space after them.
        single_word_tokens: the tokens that are recognised only where no character of a word is next to them.
        normalized_tokens: the tokens that are recognised in normalised texts.
        unused: the number of unused ids after the vocabulary, for models with more embeddings than the tokenizer has
            pieces.

    Attributes:
        mask_id: the id of the mask token; -1 if there is none.

    Raises:
        ValueError: if a piece occurs twice, or all bytes, a token or a piece of `merges` are missing.

    Example:
        >>> tokenizer = BytePairTokenizer.train(["hug hugs hugging"], 264)
        >>> tokenizer.pieces("hug hugs")
        ['hug', 'Ġhug', 's']

    References:
        Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.2; Sennrich et al.,
        https://arxiv.org/abs/1508.07909.
    """

    file_name = "byte_pair.json"
    _read = staticmethod(hugging_face.read_byte_pair)

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Iterable[Sequence[str]],
        *,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        add_prefix_space: bool = False,
        special_tokens_in_text: bool = False,
        pair_separators: int = 1,
        lstrip_mask: bool = False,
        source_prefix: Sequence[str] = (),
        pattern: str | Sequence[str] | None = None,
        individual_digits: bool = False,
        normalization: str | None = None,
        ignore_merges: bool = False,
        tokens_in_text: Sequence[str] = (),
        lstrip_tokens: Sequence[str] = (),
        rstrip_tokens: Sequence[str] = (),
        single_word_tokens: Sequence[str] = (),
        normalized_tokens: Sequence[str] = (),
        unused: int = 0,
    ):
        check_one_of((None, "NFC"), normalization=normalization)
        check_not_negative(unused=unused)
        settings = {
            "special_tokens": dict(special_tokens),
            "add_prefix_space": add_prefix_space,
            "special_tokens_in_text": special_tokens_in_text,
            **row_settings(pair_separators, lstrip_mask, source_prefix),
            **text_settings(
                tokens_in_text, lstrip_tokens, rstrip_tokens, single_word_tokens, normalized_tokens
            ),
            **without_defaults(
                pattern=pattern if isinstance(pattern, str | None) else list(pattern),
                individual_digits=individual_digits,
                normalization=normalization,
                ignore_merges=ignore_merges,
                unused=unused,
            ),
        }
        super().__init__(vocabulary, merges, settings, needs_unknown=False)
        known = self._vocabulary
        byte_ids = [known.ids.get(character, -1) for character in BYTE_CHARACTERS]
        if max(byte_ids) < 0:
            raise ValueError(
                f"`vocabulary` must hold GPT-2's characters of bytes. Received: {len(known.pieces)} pieces without any"
            )
        contents = [byte_level_content(piece) for piece in known.pieces]
        whitespace = {id_ for id_, content in enumerate(contents) if not content.strip()}
        after_pieces = range(len(known.pieces), self.vocabulary_size)
        self.empty_ids = tuple(sorted({*whitespace, *after_pieces, self.unknown_id} - {-1}))
        self._words = words_of(pattern, individual_digits)
        in_text = {*special_tokens.values(), *tokens_in_text}
        words = {contents[id_]: id_ for piece, id_ in known.ids.items() if piece not in in_text}
        with tf.init_scope(), tf.device("CPU"):
            if ignore_merges:
                entries = tf.lookup.KeyValueTensorInitializer(
                    list(words), list(words.values()), tf.string, tf.int32
                )
                self._whole_words = tf.lookup.StaticHashTable(entries, -1)
            self._contents = tf.constant([*contents, *[b""] * unused])
            self._byte_ids = tf.constant(byte_ids)

    @classmethod
    def train(
        cls,
        texts: Texts,
        vocabulary_size: int = 8000,
        *,
        min_frequency: int = 2,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        add_prefix_space: bool = False,
        special_tokens_in_text: bool = False,
    ) -> Self:
        """Train a tokenizer; the same texts and arguments give the same merges.

        Args:
            texts: an iterable of texts (str or UTF-8 bytes) and `pathlib.Path`s of UTF-8 files, whose lines
                are the texts; or one such path.
            vocabulary_size: the maximum number of pieces, including special tokens and the 256 bytes, which come first.
            min_frequency: the minimum number of occurrences of a pair to be merged.
            special_tokens: a mapping from roles to tokens.
            add_prefix_space: see the constructor.
            special_tokens_in_text: see the constructor.

        Raises:
            ValueError: if `texts` contain no word, or `vocabulary_size` is too small.

        Example:
            >>> BytePairTokenizer.train(["hello hello"], 264).vocabulary_size
            264
        """
        tokens = list(dict.fromkeys(special_tokens.values()))
        # The symbols are in the order of the `tokenizers` library, which breaks ties between equally frequent pairs.
        alphabet = sorted(BYTE_CHARACTERS)
        settings = {
            "special_tokens": special_tokens,
            "add_prefix_space": add_prefix_space,
            "special_tokens_in_text": special_tokens_in_text,
        }
        cutter = cls([*tokens, *alphabet], [], **settings)
        counts = pair_merges.count_words(texts, cutter._cut)
        words = {
            tuple(BYTE_CHARACTERS[byte] for byte in word.encode()): count for word, count in counts.items()
        }
        merges = pair_merges.learn_merges(
            words, [*tokens, *alphabet], vocabulary_size, min_frequency, lambda left, right: left + right
        )
        pieces = pair_merges.pieces([*tokens, *alphabet], merges)
        return cls(pieces, [(left, right) for left, right, _ in merges], **settings)

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        form = self._settings.get("normalization")
        return texts if form is None else tensorflow_text.normalize_utf8(texts, form)

    def _normalize_with_sources(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor | None]:
        if self._settings.get("normalization") is None:
            return texts, None
        normal = self._normalize(texts)

        def decomposed(texts: tf.Tensor) -> tf.RaggedTensor:
            """Return the index of the character of each character that it decomposes to, int32, ragged (P, None)."""
            characters = tf.strings.unicode_split(texts, "UTF-8")
            lengths = tf.strings.length(tensorflow_text.normalize_utf8(characters.values, "NFD"), "UTF8_CHAR")
            places = tf.ragged.range(tf.cast(characters.row_lengths(), tf.int32))
            counts = characters.with_values(lengths)
            rows = tf.repeat(characters.value_rowids(), lengths)
            return tf.RaggedTensor.from_value_rowids(
                tf.repeat(places.values, counts.values), rows, characters.nrows(), validate=False
            )

        # The first of the characters to which each normalised character decomposes; texts decompose equally.
        original, normalized = decomposed(texts), decomposed(normal)
        is_first = row_starts(normalized.value_rowids()) | (
            normalized.values != shifted(normalized.values, 1, -1)
        )
        first = tf.boolean_mask(original.values, is_first)
        return normal, tf.RaggedTensor.from_value_rowids(
            first,
            tf.boolean_mask(normalized.value_rowids(), is_first),
            original.nrows(),
            validate=False,
        )

    def _places_of(self, texts: tf.Tensor, starts: tf.Tensor) -> PlacedWords:
        words = self._words_of(texts, starts)
        strings, rows = words.values, words.value_rowids()
        ends = tf.cumsum(tf.strings.length(strings, "UTF8_CHAR"))
        first = tf.gather(shifted(ends, 1, 0), tf.gather(words.row_starts(), rows))
        if self._settings["add_prefix_space"]:  # which is no character of the text
            first += tf.gather(tf.cast(~tf.strings.regex_full_match(texts, r"(?s) .*"), tf.int32), rows)

        def length_without(pattern: str) -> tf.Tensor:
            return tf.strings.length(tf.strings.regex_replace(strings, pattern, ""), "UTF8_CHAR")

        sources = tf.ragged.range(ends - tf.strings.length(strings, "UTF8_CHAR") - first, ends - first).values
        ends -= first
        starts_of_words = ends - length_without(rf"\A{WHITE_SPACE}+")
        ends = tf.maximum(
            starts_of_words,
            ends - tf.strings.length(strings, "UTF8_CHAR") + length_without(rf"{WHITE_SPACE}+\z"),
        )
        return PlacedWords(words, words.with_values(starts_of_words), words.with_values(ends), sources)

    def _places_of_pieces(self, words: tf.Tensor, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        codes = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32)
        length = tf.strings.length(tf.gather(self._contents, ids.values))  # in bytes
        # Bytes without a piece belong to no token.
        size = tf.strings.length(words)
        is_complete = size == tf.reduce_sum(ids.with_values(length), axis=1)
        known = tf.repeat(is_complete, size) | (tf.gather(self._byte_ids, codes) >= 0)
        character = tf.cumsum(tf.cast(codes & 0xC0 != 0x80, tf.int32)) - 1  # of each byte
        character = tf.boolean_mask(character, known)
        end = tf.cumsum(length)
        start, end = tf.gather(character, end - length), tf.gather(character, end - 1) + 1
        # Without white space around them.
        is_space = tf.reduce_any(
            tf.strings.unicode_decode(words, "UTF-8").values[:, None] == tf.constant(SPACES), axis=1
        )
        others = tf.cast(tf.where(~is_space)[:, 0], tf.int32)
        padded = tf.concat([others, [tf.size(is_space)]], axis=0)
        start = tf.minimum(tf.gather(padded, tf.searchsorted(others, start)), end)
        before = tf.concat([[-1], others], axis=0)
        return start, tf.maximum(start, tf.gather(before, tf.searchsorted(others, end)) + 1)

    def _split(self, words: tf.Tensor, dropout: MergeDropout | None = None) -> tf.RaggedTensor:
        if dropout is not None or not self._settings.get("ignore_merges"):
            return self._merge(words, dropout)
        ids = self._whole_words.lookup(words)
        is_whole = ids >= 0
        whole = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids, is_whole), tf.cast(is_whole, tf.int64))
        return tf.concat([whole, self._merge(tf.where(is_whole, "", words))], axis=1)

    def _merge(self, words: tf.Tensor, dropout: MergeDropout | None = None) -> tf.RaggedTensor:
        codes = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)
        symbols = tf.gather(self._byte_ids, tf.cast(codes, tf.int32))
        ends = tf.cumsum(tf.strings.length(words))
        places = tf.searchsorted(ends, tf.range(tf.size(symbols)), side="right")
        known = symbols >= 0
        symbols, places = tf.boolean_mask(symbols, known), tf.boolean_mask(places, known)
        return self._merger(symbols, places, tf.size(words), dropout)

    def _cut(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._settings["add_prefix_space"]:
            texts = tf.strings.regex_replace(texts, r"\A([^ ])", r" \1", replace_global=False)
        return self._words(texts)

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(ids.with_values(tf.gather(self._contents, ids.values)), axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def words_of(pattern: str | Sequence[str] | None, individual_digits: bool = False) -> Words:
    """Return the function that splits texts into words; see `BytePairTokenizer`."""
    if not pattern:
        return Words(DIGIT, GPT_2) if individual_digits else Words(GPT_2)
    check(not individual_digits, "be False with a `pattern`", individual_digits=individual_digits)
    return Words(pattern) if isinstance(pattern, str) else Words(*pattern)
