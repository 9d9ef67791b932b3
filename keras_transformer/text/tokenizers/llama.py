"""A character-level BPE tokenizer with byte fallback, as in Llama 2 and Gemma, inside the TensorFlow graph."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import CodePointTable, cut, row_starts, shifted
from keras_transformer.text.tokenizers import hugging_face
from keras_transformer.text.tokenizers.pair_merging import MergeDropout
from keras_transformer.text.tokenizers.subword import PairTokenizer, WordTokenizer, character_ids
from keras_transformer.text.tokenizers.vocabulary import text_settings, without_defaults
from keras_transformer.text.tokenizers.words import TokenizedWords
from keras_transformer_options.arguments import check_not_negative, check_one_of
from keras_transformer_serving.text.subword import PREPEND_SCHEMES, byte_fallback_ids

SPECIAL_TOKENS = {"unknown": "<unk>", "start": "<s>", "end": "</s>"}
_SPACE = "\u2581"
_NUMBER_OF_CODES = 0x110000


class LlamaTokenizer(PairTokenizer):
    """Convert text to ids and back with character-level BPE and byte fallback, eagerly and inside `tf.function`.

    So do Llama 1 and 2, Mistral, Phi-3 and Gemma, whose files were trained by SentencePiece. Spaces are written as
    U+2581, of which one may be added before a text; adjacent characters and pieces are merged in the order of `merges`;
    a character without a piece becomes the pieces of its UTF-8 bytes, such as "<0xE2>". The ids equal those of the
    `tokenizers` library. A text is split only where no merge joins two characters, so a word may be long.

    Args:
        vocabulary: the pieces in the order of their ids; "" for an id without a piece.
        merges: the pairs of pieces to merge, in order of priority.
        prepend_scheme: where a space is added before a text: "legacy", before each text, also before one that starts
            with a space, and after each token that is recognised in it; "always", the same unless there is a space;
            "first", before the text unless there is a space or it starts with such a token; "never".
        special_tokens: a mapping from roles to tokens: "pad", "unknown", "start", "end", "mask".
        special_tokens_in_text: whether to recognise special tokens such as "</s>" in texts.
        tokens_in_text: other tokens that are recognised in every text.
        lstrip_tokens: the tokens that take the white space before them where they are recognised.
        rstrip_tokens: the tokens that take the white space after them, as in Phi-3.
        single_word_tokens: the tokens that are recognised only where no character of a word is next to them.
        normalized_tokens: the tokens that are recognised in normalised texts.
        unused: the number of unused ids after the vocabulary, for models with more embeddings than the tokenizer has
            pieces.

    Raises:
        ValueError: if a piece occurs twice, or a byte, a token or a piece of `merges` is missing.

    Example:
        >>> pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581hi", "\u2581h"]
        >>> LlamaTokenizer(pieces, [("\u2581", "h")]).pieces("hi ñ")
        ['▁h', 'i', '▁', '<0xC3>', '<0xB1>']

    References:
        Touvron et al., "Llama", https://arxiv.org/abs/2302.13971, section 2.1; Kudo and Richardson, "SentencePiece",
        https://arxiv.org/abs/1808.06226.
    """

    file_name = "byte_fallback_pair.json"
    _read = staticmethod(hugging_face.read_byte_fallback)

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Iterable[Sequence[str]],
        *,
        prepend_scheme: str = "legacy",
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        special_tokens_in_text: bool = False,
        tokens_in_text: Sequence[str] = (),
        lstrip_tokens: Sequence[str] = (),
        rstrip_tokens: Sequence[str] = (),
        single_word_tokens: Sequence[str] = (),
        normalized_tokens: Sequence[str] = (),
        unused: int = 0,
    ):
        check_one_of(PREPEND_SCHEMES, prepend_scheme=prepend_scheme)
        check_not_negative(unused=unused)
        settings = {
            "prepend_scheme": prepend_scheme,
            "special_tokens": dict(special_tokens),
            "special_tokens_in_text": special_tokens_in_text,
            **text_settings(
                tokens_in_text, lstrip_tokens, rstrip_tokens, single_word_tokens, normalized_tokens
            ),
            **without_defaults(unused=unused),
        }
        super().__init__(vocabulary, merges, settings, needs_unknown=False)
        known = self._vocabulary
        bytes_ = byte_fallback_ids(known.ids)
        if missing := [byte for byte in _possible_bytes(known.ids) if byte not in bytes_]:
            raise ValueError(
                "`vocabulary` must hold a piece such as '<0x0A>' for each byte. "
                f"Received: {len(known.pieces)} pieces without that of {missing[0]:#04x}"
            )
        whitespace = {id_ for id_, piece in enumerate(known.pieces) if not piece.strip(_SPACE)}
        after_pieces = range(len(known.pieces), self.vocabulary_size)
        self.empty_ids = tuple(sorted({*whitespace, *after_pieces, self.unknown_id} - {-1}))
        contents = [piece.replace(_SPACE, " ").encode() for piece in known.pieces] + [b""] * unused
        is_byte = np.zeros(self.vocabulary_size, bool)
        for byte, id_ in bytes_.items():
            contents[id_], is_byte[id_] = bytes([byte]), True
        # A merge joins pieces that end and begin with such a pair of characters; words end between all others.
        joined = {ord(left[-1]) * _NUMBER_OF_CODES + ord(right[0]) for left, right in self.merges}
        self._characters = CodePointTable(character_ids(known.ids, "", -1))
        with tf.init_scope(), tf.device("CPU"):
            self._joined = tf.constant([*sorted(joined), np.iinfo(np.int64).max], tf.int64)
            self._byte_ids = tf.constant([bytes_.get(byte, -1) for byte in range(256)])
            self._contents, self._is_byte = tf.constant(contents), tf.constant(is_byte)

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        scheme = self._settings["prepend_scheme"]
        if scheme in ("first", "always"):  # not normalisers of the library but pre-tokenizers
            return texts
        spaces = tf.strings.regex_replace(texts, " ", _SPACE)
        return tf.where(texts == "", "", tf.strings.join([_SPACE, spaces])) if scheme == "legacy" else spaces

    def _tokenize_words(self, texts: tf.Tensor) -> TokenizedWords:
        return super(WordTokenizer, self)._tokenize_words(texts)  # a word of `_words_of` may be long

    def _tokenize_each(self, texts: tf.Tensor) -> TokenizedWords:
        return super(WordTokenizer, self)._tokenize_each(texts)

    def _words_of(self, texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
        scheme = self._settings["prepend_scheme"]
        if scheme in ("first", "always"):
            texts = tf.strings.regex_replace(texts, " ", _SPACE)
            with_space = (texts == "") | tf.strings.regex_full_match(texts, f"(?s){_SPACE}.*")
            needs_space = ~with_space & starts if scheme == "first" else ~with_space
            texts = tf.where(needs_space, tf.strings.join([_SPACE, texts]), texts)
        return self._cut(texts)

    def _cut(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, rows = ragged.values, ragged.value_rowids()
        pairs = tf.cast(shifted(codes, 1, 0), tf.int64) * _NUMBER_OF_CODES + tf.cast(codes, tf.int64)
        is_joined = tf.gather(self._joined, tf.searchsorted(self._joined, pairs)) == pairs
        return cut(codes, rows, row_starts(rows) | ~is_joined, ragged.nrows())

    def _split(self, words: tf.Tensor, dropout: MergeDropout | None = None) -> tf.RaggedTensor:
        characters = tf.strings.unicode_decode(words, "UTF-8")
        codes, places = characters.values, tf.cast(characters.value_rowids(), tf.int32)
        ids = self._characters(codes)
        # A character with a piece is one symbol, another one its bytes.
        lengths = tf.where(ids >= 0, 1, tf.strings.length(tf.strings.unicode_encode(codes[:, None], "UTF-8")))
        source = tf.repeat(tf.range(tf.size(codes)), lengths)
        unknown = tf.boolean_mask(codes, ids < 0)
        bytes_ = tf.io.decode_raw(tf.strings.unicode_encode(unknown, "UTF-8"), tf.uint8)
        is_byte = tf.gather(ids, source) < 0
        number = tf.maximum(tf.cumsum(tf.cast(is_byte, tf.int32)) - 1, 0)
        byte_ids = tf.gather(self._byte_ids, tf.cast(bytes_, tf.int32))
        symbols = tf.where(
            is_byte, tf.gather(tf.concat([byte_ids, [0]], axis=0), number), tf.gather(ids, source)
        )
        return self._merger(symbols, tf.gather(places, source), tf.size(words), dropout)

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        contents, is_byte = tf.gather(self._contents, ids.values), tf.gather(self._is_byte, ids.values)
        rows = ids.value_rowids()
        # Successive bytes are text if they are valid UTF-8, and one U+FFFD each otherwise.
        starts = row_starts(rows) | (is_byte != shifted(is_byte, 1, False))
        run = tf.cumsum(tf.cast(starts, tf.int64)) - 1
        run_rows = tf.boolean_mask(rows, starts)
        runs, replaced = (
            tf.strings.reduce_join(
                tf.RaggedTensor.from_value_rowids(strings, run, tf.size(run_rows, tf.int64), validate=False),
                axis=-1,
            )
            for strings in (contents, tf.where(is_byte, "\ufffd", contents))
        )
        valid = tf.strings.unicode_transcode(runs, "UTF-8", "UTF-8", errors="replace") == runs
        parts = tf.RaggedTensor.from_value_rowids(
            tf.where(valid, runs, replaced), run_rows, ids.nrows(), validate=False
        )
        texts = tf.strings.reduce_join(parts, axis=-1)
        if self._settings["prepend_scheme"] == "never":
            return texts
        return tf.strings.regex_replace(texts, r"\A ", "", replace_global=False)


def _possible_bytes(ids: Mapping[str, int]) -> list[int]:
    """Return the bytes of UTF-8, except ASCII characters that are pieces, such as Gemma's tab."""
    bytes_ = [*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5)]
    return [byte for byte in bytes_ if byte >= 0x80 or chr(byte) not in ids]
