"""Normalisers of Hugging Face's `tokenizer.json` as the character map of a SentencePiece model."""

import base64
import io
import itertools
import pathlib
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.pretokenizers import unicode_tables
from keras_transformer.text.pretokenizers.bert import small_letters
from keras_transformer.text.pretokenizers.characters import members
from keras_transformer.text.tokenizers.sentence_piece_model import read_model
from keras_transformer_serving.text.sentence_piece import character_normalizer

_BORDER = "\ue000"  # a private character, which no step changes
# The code points that have decompositions, cases or marks; the planes 2 to 16 have compatibility ideographs and tags.
_CODES = (*range(1, 0xD800), *range(0xE001, 0x20000), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE0200))
# Steps that a model does itself: some files list the merging of spaces beside the character map.
_OWN_STEPS = frozenset(("Precompiled", "Replace", "Strip"))


def is_own(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether normalisers are those of a SentencePiece model itself."""
    return _OWN_STEPS.issuperset(step["type"] for step in steps)


def character_map(steps: Sequence[Mapping[str, Any]], split_at_white_space: bool) -> bytes | None:
    """Return normalisers in SentencePiece's format.

    A SentencePiece model replaces the longest known string at each place, and then merges spaces. So do the normalisers
    of ALBERT: as they drop all marks, what a character becomes does not depend on its neighbours. Nor does it in
    lower-casing, or in dropping marks, alone.

    Args:
        steps: the normalisers, in the order of their application.
        split_at_white_space: whether any white space, like a space, separates words.

    Returns:
        The map, None if a normaliser is not supported.
    """
    precompiled = [
        base64.b64decode(step["precompiled_charsmap"]) for step in steps if step["type"] == "Precompiled"
    ]
    if len(precompiled) > 1:
        return None
    white_space = _codes(unicode_tables.WHITESPACE) if split_at_white_space else []
    spaces = {code: " " for code in white_space if code != ord(" ")}
    if is_own(steps):
        return precompiled[0] if precompiled else _compiled({chr(code): " " for code in spaces})
    replacements = list(itertools.takewhile(lambda step: step["type"] == "Replace", steps))
    types = {step["type"] for step in steps}
    if ("NFKD" in types and "StripAccents" not in types) or (
        precompiled and {"NFKD", "StripAccents"} - types
    ):
        return None
    if any("String" not in step["pattern"] for step in replacements):
        return None
    characters = list(map(chr, _CODES))
    sources = [*characters, *(step["pattern"]["String"] for step in replacements)]
    text = _BORDER.join([*characters, *(step["content"] for step in replacements)])
    for step in steps[len(replacements) :]:
        match step["type"]:
            case "NFKD":
                codes = _codes(unicode_tables.COMPATIBLE)
                text = text.translate({code: unicodedata.normalize("NFKD", chr(code)) for code in codes})
            case "StripAccents":
                text = text.translate(dict.fromkeys(_codes(unicode_tables.STRIPPED)))
            case "Lowercase":
                # The only upper-case letter whose lower case has two characters.
                text = text.translate({**small_letters(), 0x130: "i\u0307"})
            case "Precompiled":
                # Characters one by one: those of a decomposed syllable of Hangul are not composed again.
                characters = sorted({*text} - {_BORDER})
                processor = read_model(character_normalizer(*precompiled), with_padding=False)
                normalized = processor.normalize(_BORDER.join(characters)).split(_BORDER)
                text = text.translate(
                    {ord(old): new for old, new in zip(characters, normalized, strict=True)}
                )
            case "Replace" | "Strip":  # of spaces
                pass
            case _:
                return None
    pairs = zip(sources, text.translate(spaces).split(_BORDER), strict=True)
    return _compiled({source: target for source, target in pairs if source != target})


def _codes(runs: str) -> list[int]:
    codes: list[int] = np.flatnonzero(members(runs)).tolist()
    return codes


def _compiled(replacements: Mapping[str, str]) -> bytes:
    """Return a map of strings to their replacements, which only SentencePiece's trainer creates from a table."""
    if not replacements:
        return b""
    lines = (
        "\t".join(" ".join(f"{ord(character):X}" for character in text) for text in pair)
        for pair in replacements.items()
    )
    written = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "table.tsv"
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=written,
            model_type="char",
            vocab_size=5,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(table),
            minloglevel=2,
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    precompiled: bytes = model.normalizer_spec.precompiled_charsmap
    return precompiled
