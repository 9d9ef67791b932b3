"""A WordPiece tokenizer, as in BERT, that runs inside the TensorFlow graph."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import tensorflow as tf
import tensorflow_text

from keras_transformer.text.pretokenizers.bert import bert_words
from keras_transformer.text.tokenizers import hugging_face
from keras_transformer.text.tokenizers.strings import cleaned_texts
from keras_transformer.text.tokenizers.subword import WordTokenizer
from keras_transformer.text.tokenizers.vocabulary import (
    row_settings,
    text_settings,
    without_defaults,
)
from keras_transformer.text.training import pair_merges
from keras_transformer.text.training.corpus import Texts
from keras_transformer_options.arguments import check_not_negative
from keras_transformer_serving.text.subword import word_piece_texts

SPECIAL_TOKENS = {"pad": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]", "mask": "[MASK]"}
_CONTINUES = "##"
_MAX_WORD_LENGTH = 100
_MAX_CHARACTER_BYTES = 4


class WordPieceTokenizer(WordTokenizer):
    """Convert text to ids and back with BERT's WordPiece, eagerly and inside `tf.function`.

    Texts are split into words as in BERT: control characters are removed, letters optionally lower-cased, accents
    optionally stripped, and words end at white space, punctuation and Chinese characters. Each word is split greedily
    into the longest piece of the vocabulary that it starts with, the longest "##" piece that continues it, and so on; a
    word that cannot be split in this way, or has more than 100 characters, becomes one unknown token. The ids equal
    those of the `tokenizers` library.

    Args:
        vocabulary: the pieces in the order of their ids; "" for an id without a piece.
        lowercase: whether to lower-case letters.
        strip_accents: whether to strip accents; by default the same as `lowercase`.
        clean_text: whether to remove control characters.
        isolate_ideographs: whether each Chinese character is a word of its own.
        special_tokens: a mapping from roles to tokens: "pad", "unknown", "start", "end", "mask".
        special_tokens_in_text: whether to recognise special tokens in texts: "[MASK]" as one token, not three words.
        tokens_in_text: other tokens that are recognised in every text, such as "[E1]".
        lstrip_tokens: the tokens that take the white space before them where they are recognised.
        rstrip_tokens: the tokens that take the white space after them.
        single_word_tokens: the tokens that are recognised only where no character of a word is next to them.
        normalized_tokens: the tokens that are recognised in normalised texts.
        added_tokens: the tokens of `vocabulary` that words do not have as pieces.
        clean_up: whether `detokenize` removes the spaces before pieces of punctuation.
        clean_up_texts: whether `detokenize` removes the spaces before punctuation and contractions in the text.
        separate_pieces: whether `detokenize` separates all pieces by spaces, as without a decoder in `tokenizer.json`.
        skip_special_tokens: whether decoded texts are without special tokens, except the unknown token.
        pair_separators: the number of end tokens between the texts of a pair.
        lstrip_mask: whether a mask token takes the white space before it.
        source_prefix: tokens before each source of an encoder–decoder, which decoded texts are without.
        unused: the number of unused ids after the vocabulary, for models with more embeddings than the tokenizer has
            pieces.

    Attributes:
        mask_id: the id of "[MASK]"; -1 if there is none.

    Raises:
        ValueError: if a piece is empty or occurs twice, or special tokens are missing.

    Example:
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##believ", "##able", "!"]
        >>> WordPieceTokenizer(pieces).pieces("Unbelievable! ünbelievably")
        ['un', '##believ', '##able', '!', '[UNK]']

    References:
        Devlin et al., "BERT", https://arxiv.org/abs/1810.04805; Song et al., "Fast WordPiece Tokenization",
        https://arxiv.org/abs/2012.15524.
    """

    file_name = "wordpiece.json"
    _read = staticmethod(functools.partial(hugging_face.read_word_piece, special_tokens=SPECIAL_TOKENS))

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        clean_text: bool = True,
        isolate_ideographs: bool = True,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        special_tokens_in_text: bool = False,
        tokens_in_text: Sequence[str] = (),
        lstrip_tokens: Sequence[str] = (),
        rstrip_tokens: Sequence[str] = (),
        single_word_tokens: Sequence[str] = (),
        normalized_tokens: Sequence[str] = (),
        added_tokens: Sequence[str] = (),
        clean_up: bool = False,
        clean_up_texts: bool = False,
        separate_pieces: bool = False,
        skip_special_tokens: bool = False,
        pair_separators: int = 1,
        lstrip_mask: bool = False,
        source_prefix: Sequence[str] = (),
        unused: int = 0,
    ):
        check_not_negative(unused=unused)
        strip_accents = lowercase if strip_accents is None else strip_accents
        settings = {
            "lowercase": lowercase,
            "strip_accents": strip_accents,
            "clean_text": clean_text,
            "isolate_ideographs": isolate_ideographs,
            "special_tokens": dict(special_tokens),
            "special_tokens_in_text": special_tokens_in_text,
            "clean_up": clean_up,
            **row_settings(pair_separators, lstrip_mask, source_prefix),
            **text_settings(
                tokens_in_text, lstrip_tokens, rstrip_tokens, single_word_tokens, normalized_tokens
            ),
            **without_defaults(
                added_tokens=list(added_tokens),
                clean_up_texts=clean_up_texts,
                separate_pieces=separate_pieces,
                skip_special_tokens=skip_special_tokens,
                unused=unused,
            ),
        }
        super().__init__(vocabulary, settings)
        known = self._vocabulary
        if bad := [piece for piece in known.pieces if "\0" in piece]:
            raise ValueError(
                f"`vocabulary` must not hold U+0000. Received: {bad[0]!r} at {known.ids[bad[0]]}"
            )
        if skip_special_tokens:
            self._skipped_ids = tuple(sorted({*known.special_ids.values()} - {self.unknown_id}))
        self._words = bert_words(clean_text, isolate_ideographs, strip_accents, lowercase)
        added = {*added_tokens}
        with tf.init_scope(), tf.device("CPU"):
            pieces = [*known.pieces, *[""] * unused]
            texts = word_piece_texts(pieces, clean_up, separate_pieces)
            self._initial_texts, self._following_texts = map(tf.constant, texts)
            self._fast = tensorflow_text.FastWordpieceTokenizer(
                # No word has a space, as those of ids without a piece, and of tokens that are no pieces, have.
                [
                    piece if piece and piece not in added else f" {id_}"
                    for id_, piece in enumerate(known.pieces)
                ],
                _CONTINUES,
                _MAX_WORD_LENGTH * _MAX_CHARACTER_BYTES,
                tf.int32,
                special_tokens["unknown"],
                no_pretokenization=True,
            )

    @classmethod
    def train(
        cls,
        texts: Texts,
        vocabulary_size: int = 8000,
        *,
        min_frequency: int = 2,
        alphabet_limit: int = 1000,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        **settings: Any,
    ) -> Self:
        """Train a tokenizer; the same texts and arguments give the same vocabulary.

        As in the `tokenizers` library, the most frequent pair of pieces is merged repeatedly.

        Args:
            texts: an iterable of texts (str or UTF-8 bytes) and `pathlib.Path`s of UTF-8 files, whose lines
                are the texts; or one such path.
            vocabulary_size: the maximum number of pieces, including special ones.
            min_frequency: the minimum number of occurrences of a pair to be merged.
            alphabet_limit: the maximum number of distinct characters that are pieces; rarer characters are not, and
                words that contain them are unknown.
            special_tokens: a mapping from roles to tokens, which get the first ids.
            **settings: see the constructor.

        Raises:
            ValueError: if `texts` contain no word, or `vocabulary_size` is too small for their characters.

        Example:
            >>> WordPieceTokenizer.train(["hug hugs hugging"], 14).pieces("hugs")
            ['hug', '##s']
        """
        tokens = list(dict.fromkeys(special_tokens.values()))
        # Split words with the code used after training; it does not depend on the vocabulary.
        cutter = cls(tokens, special_tokens=special_tokens, **settings)
        counts = pair_merges.count_words(texts, cutter._words)
        known = pair_merges.most_frequent_characters(counts, alphabet_limit)
        words = {
            (word[0], *(_CONTINUES + character for character in word[1:])): count
            for word, count in counts.items()
            if len(word) <= _MAX_WORD_LENGTH and known.issuperset(word)
        }
        alphabet = sorted({symbol for word in words for symbol in word})
        merges = pair_merges.learn_merges(
            words,
            [*tokens, *alphabet],
            vocabulary_size,
            min_frequency,
            lambda left, right: left + right.removeprefix(_CONTINUES),
        )
        return cls(
            pair_merges.pieces([*tokens, *alphabet], merges), special_tokens=special_tokens, **settings
        )

    def encode_pairs(self, first: Any, second: Any) -> dict[str, tf.Tensor]:
        """Encode pairs of texts as rows "[CLS] first [SEP] second [SEP]", padded to the longest.

        Args:
            first: the first texts, a list of B str or a string tensor (B,).
            second: the second texts, likewise.

        Returns:
            A dictionary of "ids", int32 (B, L), and "segment_ids", int32 (B, L): 0 up to the first end id and at
            padding, 1 from there to the second end id.

        Example:
            >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
            >>> WordPieceTokenizer(pieces).encode_pairs(["a"], ["b b"])["segment_ids"].numpy().tolist()
            [[0, 0, 0, 1, 1, 1]]
        """
        if min(self.start_id, self.end_id) < 0:
            raise ValueError(
                "The tokenizer must have start and end ids to encode pairs. "
                f"Received: start_id={self.start_id}, end_id={self.end_id}"
            )
        with tf.device("CPU"):
            first_ids, second_ids = self.tokenize(first), self.tokenize(second)
            if not all(isinstance(ids, tf.RaggedTensor) for ids in (first_ids, second_ids)):
                raise ValueError(f"`first` and `second` must be batches. Received: {first!r} and {second!r}")
            if tf.executing_eagerly() and first_ids.nrows() != second_ids.nrows():
                raise ValueError(
                    "`first` and `second` must have the same length. "
                    f"Received: {first_ids.nrows()} and {second_ids.nrows()} texts"
                )
            column = tf.ones([first_ids.nrows(), 1], tf.int32)
            first_ids = tf.concat([column * self.start_id, first_ids, column * self.end_id], axis=1)
            second_ids = tf.concat([second_ids, column * self.end_id], axis=1)
            segments = tf.concat([tf.zeros_like(first_ids), tf.ones_like(second_ids)], axis=1)
            ids = tf.concat([first_ids, second_ids], axis=1)
            return {"ids": ids.to_tensor(self.pad_id), "segment_ids": segments.to_tensor(0)}

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        # Words are split from the text as it is, unless tokens are recognised in what is normalised.
        return self._words.normalize(texts) if self._settings.get("normalized_tokens") else texts

    def _normalize_with_sources(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor | None]:
        if not self._settings.get("normalized_tokens"):
            return texts, None
        return self._words.normalize_with_sources(texts)

    def _split(self, words: tf.Tensor) -> tf.RaggedTensor:
        too_long = tf.strings.length(words, unit="UTF8_CHAR") > _MAX_WORD_LENGTH
        known = self._fast.tokenize(tf.where(too_long, "", words))
        unknown = tf.fill([tf.math.count_nonzero(too_long)], self.unknown_id)
        return tf.concat(
            [known, tf.RaggedTensor.from_row_lengths(unknown, tf.cast(too_long, tf.int64))], axis=1
        )

    def _num_characters(self, piece: str) -> int:
        return len(piece.removeprefix(_CONTINUES))

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        first = tf.concat([tf.ones_like(ids[:, :1]), tf.zeros_like(ids[:, 1:])], axis=1).values == 1
        texts = tf.where(
            first, tf.gather(self._initial_texts, ids.values), tf.gather(self._following_texts, ids.values)
        )
        joined = tf.strings.reduce_join(ids.with_values(texts), axis=-1)
        return cleaned_texts(joined) if self._settings.get("clean_up_texts") else joined
