"""A character-level BPE tokenizer with end-of-word suffixes, as in GPT-1, that runs inside the TensorFlow graph."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import tensorflow as tf

from keras_transformer.text.pretokenizers.bert import bert_words
from keras_transformer.text.pretokenizers.characters import CodePointTable, shifted
from keras_transformer.text.tokenizers import hugging_face
from keras_transformer.text.tokenizers.pair_merging import MergeDropout
from keras_transformer.text.tokenizers.subword import PairTokenizer, character_ids
from keras_transformer.text.tokenizers.vocabulary import without_defaults
from keras_transformer.text.tokenizers.words import places_of_pieces
from keras_transformer.text.training import pair_merges
from keras_transformer.text.training.corpus import Texts
from keras_transformer_options.arguments import check_not_negative

SPECIAL_TOKENS = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}
_END = "</w>"


class OpenAIGPTTokenizer(PairTokenizer):
    """Convert text to ids and back with GPT-1's character-level BPE, eagerly and inside `tf.function`.

    Texts are split into words as by `WordPieceTokenizer`. The last character of each word gets the suffix "</w>"; then
    adjacent pieces are merged in the order of `merges`. A character without a piece becomes one unknown token. The ids
    equal those of the `tokenizers` library.

    Args:
        vocabulary: the pieces in the order of their ids.
        merges: the pairs of pieces to merge, in order of priority.
        lowercase: whether to lower-case letters and strip accents.
        special_tokens: a mapping from roles to tokens: "pad", "unknown", "start", "end".
        special_tokens_in_text: whether to recognise special tokens such as "</s>" in texts.
        unused: the number of unused ids after the vocabulary, for models with more embeddings than the tokenizer has
            pieces.

    Raises:
        ValueError: if a piece occurs twice, or a special token or a piece of `merges` is missing.

    Example:
        >>> tokenizer = OpenAIGPTTokenizer.train(["Hug hug hugs, hugging"], 20)
        >>> tokenizer.pieces("hug hugs")
        ['hug</w>', 'hug', 's</w>']

    References:
        Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
        https://arxiv.org/abs/1508.07909; Radford et al. (2018), section 4.1.
    """

    file_name = "character_pair.json"
    _read = staticmethod(hugging_face.read_character_pair)

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Iterable[Sequence[str]],
        *,
        lowercase: bool = True,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        special_tokens_in_text: bool = False,
        unused: int = 0,
    ):
        check_not_negative(unused=unused)
        settings = {
            "lowercase": lowercase,
            "special_tokens": dict(special_tokens),
            "special_tokens_in_text": special_tokens_in_text,
            **without_defaults(unused=unused),
        }
        super().__init__(vocabulary, merges, settings)
        known = self._vocabulary
        self._inside, self._last = (
            CodePointTable(character_ids(known.ids, suffix, self.unknown_id)) for suffix in ("", _END)
        )
        self._words = bert_words(True, True, lowercase, lowercase)
        with tf.init_scope(), tf.device("CPU"):
            self._contents = tf.constant([piece.replace(_END, " ") for piece in known.pieces] + [""] * unused)

    @classmethod
    def train(
        cls,
        texts: Texts,
        vocabulary_size: int = 8000,
        *,
        min_frequency: int = 2,
        lowercase: bool = True,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        special_tokens_in_text: bool = False,
    ) -> Self:
        """Train a tokenizer; the same texts and arguments give the same merges.

        Args:
            texts: an iterable of texts (str or UTF-8 bytes) and `pathlib.Path`s of UTF-8 files, whose lines
                are the texts; or one such path.
            vocabulary_size: the maximum number of pieces, including special tokens and all characters, with and without
                suffix, which come first.
            min_frequency: the minimum number of occurrences of a pair to be merged.
            lowercase: see the constructor.
            special_tokens: a mapping from roles to tokens.
            special_tokens_in_text: see the constructor.

        Raises:
            ValueError: if `texts` contain no word, or `vocabulary_size` is too small.

        Example:
            >>> OpenAIGPTTokenizer.train(["hello hello"], 10).pieces("hello")
            ['hel', 'l', 'o</w>']
        """
        tokens = list(dict.fromkeys(special_tokens.values()))
        settings = {
            "lowercase": lowercase,
            "special_tokens": special_tokens,
            "special_tokens_in_text": special_tokens_in_text,
        }
        cutter = cls(tokens, [], **settings)
        counts = pair_merges.count_words(texts, cutter._words)
        words = {(*word[:-1], word[-1] + _END): count for word, count in counts.items()}
        alphabet = sorted({symbol for word in words for symbol in word})
        merges = pair_merges.learn_merges(
            words, [*tokens, *alphabet], vocabulary_size, min_frequency, lambda left, right: left + right
        )
        pieces = pair_merges.pieces([*tokens, *alphabet], merges)
        return cls(pieces, [(left, right) for left, right, _ in merges], **settings)

    def _split(self, words: tf.Tensor, dropout: MergeDropout | None = None) -> tf.RaggedTensor:
        characters = tf.strings.unicode_decode(words, "UTF-8")
        codes, places = characters.values, tf.cast(characters.value_rowids(), tf.int32)
        last = places != shifted(places, -1, -1)
        symbols = tf.where(last, self._last(codes), self._inside(codes))
        return self._merger(symbols, places, tf.size(words), dropout)

    def _places_of_pieces(self, words: tf.Tensor, ids: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        return places_of_pieces(words, ids, self._piece_lengths, -1)  # each unknown token is one character

    def _num_characters(self, piece: str) -> int:
        return 1 if piece == self._settings["special_tokens"]["unknown"] else len(piece.removesuffix(_END))

    def _join(self, ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(ids.with_values(tf.gather(self._contents, ids.values)), axis=-1)
        return tf.strings.regex_replace(texts, r" \z", "", replace_global=False)
