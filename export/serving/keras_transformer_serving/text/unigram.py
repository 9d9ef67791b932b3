"""Segmentation by SentencePiece's unigram models, as in the version of the library inside tensorflow_text.

Segmentations of equal probability, such as "0" + "00" and "00" + "0", differ only by rounding. tensorflow_text
compares a candidate in float64 with the best so far in float32; newer versions of `sentencepiece` compare both in
float32, so that their ids of texts such as "1,000" may differ.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Self

from keras_transformer_serving.protobuf import fields

_NORMAL, _UNKNOWN, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 4, 5, 6
_SMALLEST = 2.0**-126  # the smallest positive normal float32
_UNKNOWN_PENALTY = 10.0


class Unigram:
    """Split normalised texts into the most probable pieces.

    Args:
        pieces: the piece, the score and the type of each id.
        byte_fallback: whether unknown characters are converted to bytes.

    References:
        `Model::EncodeOptimized` of sentencepiece 0.1.96, `src/unigram_model.cc`.
    """

    def __init__(self, pieces: Iterable[tuple[str, float, int]], byte_fallback: bool) -> None:
        entries = list(pieces)
        self._unknown_id = next(id_ for id_, (_, _, type_) in enumerate(entries) if type_ == _UNKNOWN)
        self._bytes = (
            {piece: id_ for id_, (piece, _, type_) in enumerate(entries) if type_ == _BYTE}
            if byte_fallback
            else {}
        )
        normal = [score for _, score, type_ in entries if type_ == _NORMAL]
        self._unknown_score = _float32(min(normal) - _UNKNOWN_PENALTY)
        largest = max(_SMALLEST, *normal)
        # The id and score of each piece; -∞ for the beginning of a piece that is not a piece.
        beginning = self._unknown_id, -math.inf
        self._table: dict[str, tuple[int, float]] = {}
        for id_, (piece, score, type_) in enumerate(entries):
            if type_ in (_NORMAL, _USER_DEFINED, _UNUSED):
                for end in range(1, len(piece)):
                    self._table.setdefault(piece[:end], beginning)
                if type_ == _USER_DEFINED:
                    score = _float32(len(piece.encode()) * largest) - 0.1
                self._table[piece] = beginning if type_ == _UNUSED else (id_, score)
        self._characters = {
            piece for piece, (_, score) in self._table.items() if len(piece) == 1 and score > -math.inf
        }

    @classmethod
    def of(cls, model: bytes) -> Self | None:
        """Read a serialised SentencePiece model; return None for one of another type."""
        message = list(fields(memoryview(model)))
        trainer = _message(next((value for number, value in message if number == 2), memoryview(b"")))
        if trainer.get(3, 1) != 1:
            return None
        pieces = (_message(value) for number, value in message if number == 1)
        entries = (
            (_text(piece[1]), _number(piece.get(2, 0.0)), int(_number(piece.get(3, _NORMAL))))
            for piece in pieces
        )
        return cls(entries, bool(trainer.get(35, False)))

    def __call__(self, text: str) -> list[tuple[str, int]]:
        """Return the pieces of a normalised text and their ids; adjacent unknown characters are one piece."""
        size, find = len(text), self._table.get
        scores = array("f", [0.0, *[-math.inf] * size])
        starts, ids = [0] * (size + 1), [self._unknown_id] * (size + 1)
        for start in range(size):
            here = scores[start]
            for end in range(start + 1, size + 1):
                entry = find(text[start:end])
                if entry is None:
                    break
                candidate = entry[1] + here  # in float64
                if candidate > scores[end]:
                    scores[end], starts[end], ids[end] = candidate, start, entry[0]
            if text[start] not in self._characters:
                candidate = _float32(self._unknown_score + here)
                if candidate > scores[start + 1]:
                    scores[start + 1], starts[start + 1], ids[start + 1] = candidate, start, self._unknown_id
        return self._pieces(text, starts, ids)

    def _pieces(self, text: str, starts: list[int], ids: list[int]) -> list[tuple[str, int]]:
        """Follow the best path backwards."""
        pieces: list[tuple[str, int]] = []
        end = len(text)
        while end > 0:
            piece, id_ = text[starts[end] : end], ids[end]
            if id_ != self._unknown_id:
                pieces.append((piece, id_))
            elif self._bytes:
                names = (f"<0x{byte:02X}>" for byte in reversed(piece.encode()))
                pieces += ((name, self._bytes[name]) for name in names)
            elif pieces and pieces[-1][1] == id_:
                pieces[-1] = piece + pieces[-1][0], id_
            else:
                pieces.append((piece, id_))
            end = starts[end]
        return pieces[::-1]


def _float32(number: float) -> float:
    return array("f", [number])[0]


Value = int | float | memoryview


def _message(value: Value) -> Mapping[int, Value]:
    return dict(fields(value)) if isinstance(value, memoryview) else {}


def _text(value: Value) -> str:
    return bytes(value).decode() if isinstance(value, memoryview) else ""


def _number(value: Value) -> float:
    return 0.0 if isinstance(value, memoryview) else value
