"""The normalisers, pre-tokenizers and decoders of a `tokenizer.json` of unigrams, in Python."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sentencepiece

from keras_transformer_serving.text.tokenizer import WHITE_SPACE

Step = Mapping[str, Any]
CLEANED_IN_TEXTS = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)


def cleaned_text(text: str) -> str:
    """Return a decoded text without the spaces before punctuation, as `clean_up_tokenization` of `transformers`."""
    for old, new in CLEANED_IN_TEXTS:
        text = text.replace(old, new)
    return text


def normalizer(steps: Sequence[Step], own_map: Callable[[], bytes]) -> Callable[[str], str]:
    """Return a function that normalises texts.

    Args:
        steps: the normalisers: "Replace", "Strip", or "Precompiled", whose map is that of the model if it has none.
        own_map: a function that returns the model's character map.
    """
    functions = [_normalizer_step(step, own_map) for step in steps]

    def normalize(text: str) -> str:
        for function in functions:
            text = function(text)
        return text

    return normalize


def _normalizer_step(step: Step, own_map: Callable[[], bytes]) -> Callable[[str], str]:
    match step["type"]:
        case "Replace":
            pattern, content = re.compile(step_pattern(step)), step["content"]
            return lambda text: pattern.sub(lambda _: content, text)
        case "Strip":
            ends = strip_pattern(step, r"\Z")
            return lambda text: re.sub(ends, "", text)
        case "Precompiled":
            from keras_transformer_serving.text.sentence_piece import character_normalizer

            charsmap = step.get("precompiled_charsmap")
            content = own_map() if charsmap is None else base64.b64decode(charsmap)
            processor = sentencepiece.SentencePieceProcessor(model_proto=character_normalizer(content))
            return processor.normalize
        case other:
            raise ValueError(f"`normalizers` must be Replace, Strip or Precompiled. Received: {other}")


def step_pattern(step: Step) -> str:
    """Return the regular expression of a step "Replace"."""
    pattern: Mapping[str, str] = step["pattern"]
    return pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])


def strip_pattern(step: Step, end: str) -> str:
    """Return the regular expression of the white space that a step "Strip" removes."""
    sides = [
        *([rf"\A{WHITE_SPACE}+"] if step["strip_left"] else []),
        *([f"{WHITE_SPACE}+{end}"] if step["strip_right"] else []),
    ]
    return "|".join(sides) or r"\A\b\B"  # a pattern without matches


def pre_tokenizer(steps: Sequence[Step]) -> Callable[[str, bool], list[str]]:
    """Return a function that splits a part of a text, which may start it, into words.

    Args:
        steps: the pre-tokenizers: "WhitespaceSplit", and after it "Metaspace".
    """
    splits = [step["type"] for step in steps]
    metaspace = steps[-1] if "Metaspace" in splits else None
    space = metaspace["replacement"] if metaspace else " "
    one = re.escape(space)
    pieces = re.compile(f"(?s)^(?:(?!{one}).)+|{one}(?:(?!{one}).)*")

    def split(part: str, starts: bool) -> list[str]:
        words = re.split(f"{WHITE_SPACE}+", part) if "WhitespaceSplit" in splits else [part]
        first = starts and words[0] != ""  # no white space is before the word
        words = [word for word in words if word]
        if metaspace is None:
            return words
        scheme = metaspace["prepend_scheme"]
        parts: list[str] = []
        for place, word in enumerate(words):
            word = word.replace(" ", space)
            needs_space = scheme == "always" or (scheme == "first" and first and place == 0)
            word = space + word if needs_space and not word.startswith(space) else word
            parts += pieces.findall(word) if metaspace["split"] else [word]
        return parts

    return split


def decoded_pieces(pieces: Sequence[str], decoders: Sequence[Step]) -> tuple[list[str], list[str]]:
    """Return the texts of pieces that are the first of their row, and of others.

    Args:
        pieces: the pieces.
        decoders: the decoders: "Metaspace", or none, which separates pieces by spaces.
    """
    if not decoders:
        return list(pieces), [f" {piece}" for piece in pieces]
    space, scheme = decoders[0]["replacement"], decoders[0]["prepend_scheme"]
    following = [piece.replace(space, " ") for piece in pieces]
    return following if scheme == "never" else [piece.replace(space, "") for piece in pieces], following
