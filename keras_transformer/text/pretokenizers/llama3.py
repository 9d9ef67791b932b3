"""The patterns of Llama 3 and Qwen 2 in the TensorFlow graph, which split text into words."""

import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import cut, row_starts, shifted
from keras_transformer.text.pretokenizers.gpt2 import (
    LETTER,
    NUMBER,
    OTHER,
    SPACE,
    character_classes,
    contractions,
)

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
# The maximum number of digits of a word in each pattern.
MAX_DIGITS = {LLAMA_3: 3, QWEN_2: 1}
_LINE_END = SPACE + 1
_LONG_S = 0x17F


class Llama3Words:
    """Split texts into words with the pattern of Llama 3 or, for one digit a word, of Qwen 2.

    RE2, which TensorFlow uses, has no lookahead, as `LLAMA_3` and `QWEN_2` do, but the run of characters of one class
    that a character belongs to, and its neighbours, determine whether it starts a word:

    - numbers form words of at most `max_digits`;
    - other characters form a word with a space U+0020 before them and the line breaks after them;
    - letters form a word, with the white space before them that is no line break, or with a single other character
      before them that has no space U+0020 before it; if that is an apostrophe, it forms a contraction with s, t, re,
      ve, m, ll or d, in either case, which ends the word;
    - white space forms words that end after its last line break and, if another class follows, before its last space.

    Args:
        max_digits: the maximum number of digits of a word.
    """

    def __init__(self, max_digits: int) -> None:
        self._max_digits = max_digits
        self._classes = character_classes()

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split strings (B,) of valid UTF-8 into words, strings (B, None), whose concatenation is the text."""
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, rows = ragged.values, ragged.value_rowids()
        classes, first = self._classes(codes), row_starts(rows)
        line_break = (codes == ord("\r")) | (codes == ord("\n"))
        breaks = _Runs(first | (line_break != shifted(line_break, 1, False)))
        follows_other = breaks.of_first(~first & (shifted(classes, 1, SPACE) == OTHER))
        classes = tf.where(line_break & follows_other, tf.cast(_LINE_END, classes.dtype), classes)

        runs = _Runs(first | (classes != shifted(classes, 1, SPACE)))
        other, space = classes == OTHER, classes == SPACE
        after_space = shifted(codes == ord(" "), 1, False) & ~first
        single = other & runs.starts & shifted(runs.starts, -1, True) & ~after_space
        short, long = contractions(_lower_case(codes), rows, single)
        joins_letters = shifted(single | space & ~line_break, 1, False) & ~first
        before_another_class = shifted(runs.starts & ~first, -1, False)
        starts = {
            LETTER: runs.starts & ~joins_letters | shifted(short, 2, False) | shifted(long, 3, False),
            NUMBER: runs.index % self._max_digits == 0,
            OTHER: runs.starts & ~after_space,
            SPACE: runs.starts
            | before_another_class & ~line_break
            | shifted(runs.last_of(line_break), 1, False),
        }
        in_class = [(classes == class_) & mask for class_, mask in starts.items()]
        return cut(codes, rows, first | tf.reduce_any(tf.stack(in_class), axis=0), ragged.nrows())


class _Runs:
    """Runs of characters, from a mask (N,) of their starts."""

    def __init__(self, starts: tf.Tensor) -> None:
        self.starts = starts
        self._places = tf.range(tf.size(starts))
        self._ids = tf.cumsum(tf.cast(starts, tf.int32)) - 1
        self._first = tf.boolean_mask(self._places, starts)

    @property
    def index(self) -> tf.Tensor:
        """The index of each character in its run, (N,)."""
        return self._places - tf.gather(self._first, self._ids)

    def of_first(self, values: tf.Tensor) -> tf.Tensor:
        """Return the value of the first character of each run, (N,)."""
        return tf.gather(values, tf.gather(self._first, self._ids))

    def last_of(self, mask: tf.Tensor) -> tf.Tensor:
        """Return a mask (N,) of the last character of each run that is in `mask`."""
        last = tf.math.segment_max(tf.where(mask, self._places, -1), self._ids)
        return mask & (self._places == tf.gather(last, self._ids))


def _lower_case(codes: tf.Tensor) -> tf.Tensor:
    """Return code points with the letters that equal a to z, whatever their case, in lower case."""
    lower = tf.where((codes >= ord("A")) & (codes <= ord("Z")), codes + (ord("a") - ord("A")), codes)
    return tf.where(codes == _LONG_S, ord("s"), lower)
