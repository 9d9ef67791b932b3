"""The normalisers and pre-tokenizers of a `tokenizer.json` of unigrams, inside the TensorFlow graph."""

import base64
import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import row_starts
from keras_transformer.text.tokenizers.sentence_piece_model import Normalizer
from keras_transformer_options.arguments import check_one_of
from keras_transformer_serving.text.steps import Step, step_pattern, strip_pattern
from keras_transformer_serving.text.tokenizer import WHITE_SPACE

_NORMALIZERS = ("Replace", "Strip", "Precompiled")
_PRE_TOKENIZERS = ([], ["WhitespaceSplit"], ["Metaspace"], ["WhitespaceSplit", "Metaspace"])


class Normalizers(tf.Module):
    """Normalise texts by the steps of a tokenizer.

    Args:
        steps: the steps; "Precompiled" without a map has that of the model.
        own_map: a function that returns the model's character map.
    """

    def __init__(self, steps: Sequence[Step], own_map: Callable[[], bytes]):
        super().__init__()
        self._functions: list[Callable[[tf.Tensor], tf.Tensor]] = []
        for step in steps:
            check_one_of(_NORMALIZERS, normalizers=step["type"])
            if step["type"] == "Precompiled":
                charsmap = step.get("precompiled_charsmap")
                self._functions.append(
                    Normalizer(own_map() if charsmap is None else base64.b64decode(charsmap))
                )
            else:
                self._functions.append(_replacement(step))

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalise strings (P,)."""
        for function in self._functions:
            texts = function(texts)
        return texts


def _replacement(step: Step) -> Callable[[tf.Tensor], tf.Tensor]:
    if step["type"] == "Strip":
        pattern, rewrite = strip_pattern(step, r"\z"), ""
    else:
        pattern, rewrite = step_pattern(step), step["content"].replace("\\", r"\\")
    return lambda texts: tf.strings.regex_replace(texts, pattern, rewrite)


def check_pre_tokenizers(steps: Sequence[Step]) -> None:
    """Raise a ValueError unless steps are supported.

    Args:
        steps: the steps, "WhitespaceSplit" and after it "Metaspace", each of them optional.
    """
    if [step["type"] for step in steps] not in _PRE_TOKENIZERS:
        raise ValueError(
            f"`pre_tokenizers` must be WhitespaceSplit, Metaspace, both or none. Received: pre_tokenizers={[*steps]}"
        )


def split_into_words(texts: tf.Tensor, starts: tf.Tensor, steps: Sequence[Step]) -> tf.RaggedTensor:
    """Split parts of texts into words.

    Args:
        texts: normalised parts of texts, strings (P,).
        starts: a mask (P,) of those that start a text.
        steps: the pre-tokenizers.

    Returns:
        Strings (P, None).
    """
    if "WhitespaceSplit" in [step["type"] for step in steps]:
        words = tf.strings.split(tf.strings.regex_replace(texts, f"{WHITE_SPACE}+", b"\xff"), b"\xff")
    else:
        words = tf.RaggedTensor.from_tensor(texts[:, None])
    rows = words.value_rowids()
    first = row_starts(rows) & tf.gather(starts, rows)  # empty if white space is before the first word
    strings, is_word = words.values, words.values != ""
    if steps and steps[-1]["type"] == "Metaspace":
        space, scheme = steps[-1]["replacement"], steps[-1]["prepend_scheme"]
        strings = tf.strings.regex_replace(strings, " ", space.replace("\\", r"\\"))
        has_space = tf.strings.regex_full_match(strings, f"(?s){re.escape(space)}.*")
        needs_space = {"always": tf.ones_like(first), "first": first, "never": tf.zeros_like(first)}[scheme]
        strings = tf.where(needs_space & ~has_space, tf.strings.join([space, strings]), strings)
    words = tf.ragged.boolean_mask(words.with_values(strings), words.with_values(is_word))
    if not (steps and steps[-1].get("split")):
        return words
    marked = tf.strings.regex_replace(words.values, f"({re.escape(space)})", b"\xff\\1")
    split = words.with_values(tf.strings.split(marked, b"\xff")).merge_dims(1, 2)
    return tf.ragged.boolean_mask(split, split != "")
