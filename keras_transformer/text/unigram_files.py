"""A SentencePiece model made of the `tokenizer.json` of a unigram model, as newer versions of `transformers` save T5's.

The model is written in its own format, Protocol Buffers: fields of a number and a kind, whose values follow.
"""

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_VARINT, _BYTES, _FLOAT = 0, 2, 5
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3


def sentence_piece_model(
    vocabulary: Sequence[Sequence[Any]],
    unknown_id: int,
    special: Iterable[str],
    normalizer: Mapping[str, Any] | None,
) -> bytes:
    """Writes a model.

    Args:
        vocabulary: Pieces and their scores, in the order of their ids.
        unknown_id: Which of them is for what is not covered.
        special: Pieces that no text leads to.
        normalizer: The file's.

    Returns:
        The serialised model, which adds a space in front of a text and merges spaces as T5's does.

    Raises:
        ValueError: If the normalizer is another than SentencePiece's.
    """
    special = set(special)
    content = b""
    for id_, (piece, score) in enumerate(vocabulary):
        kind = _UNKNOWN if id_ == unknown_id else _CONTROL if piece in special else _NORMAL
        fields = _field(1, piece.encode()) + _field(2, float(score)) + _field(3, kind)
        content += _field(1, fields)
    settings = _field(2, _charsmap(normalizer))
    return content + _field(2, _field(3, 1)) + _field(3, settings)


def _charsmap(normalizer: Mapping[str, Any] | None) -> bytes:
    """What characters become, as SentencePiece writes it."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    found = [step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"]
    # Some files say once more that spaces are merged.
    others = [
        step.get("type") for step in steps if step.get("type") not in ("Precompiled", "Replace", "Strip")
    ]
    if others or len(found) > 1:
        raise ValueError(
            "tokenizer.json must have a normalizer of type Precompiled, or none. "
            f"Received: {[step.get('type') for step in steps]}"
        )
    return base64.b64decode(found[0]) if found else b""


def _field(number: int, value: bytes | int | float) -> bytes:
    """A field: its number and kind, and its value."""
    if isinstance(value, bytes):
        return _varint(number << 3 | _BYTES) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | _FLOAT) + struct.pack("<f", value)
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first, with the eighth set in all but the last."""
    if value < 0x80:
        return bytes([value])
    return bytes([value & 0x7F | 0x80]) + _varint(value >> 7)
