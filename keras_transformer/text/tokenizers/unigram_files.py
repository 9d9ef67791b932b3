"""SentencePiece models from the `tokenizer.json` of unigram models, such as those of T5 in newer `transformers`."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2


def sentence_piece_model(
    vocabulary: Sequence[Sequence[Any]],
    unknown_id: int,
    special: Iterable[str],
    normalizer: Mapping[str, Any] | None,
) -> bytes:
    """Create a SentencePiece model.

    Args:
        vocabulary: pieces and their scores, in the order of their ids.
        unknown_id: the id of the unknown piece.
        special: the control pieces, which encoding never produces.
        normalizer: the normalizer of `tokenizer.json`.

    Returns:
        The serialised model, which adds a prefix space to a text and merges consecutive spaces, as T5's does.

    Raises:
        ValueError: if the normalizer has steps that SentencePiece does not support.
    """
    special = set(special)
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.normalizer_spec.precompiled_charsmap = _charsmap(normalizer)
    types = sentencepiece_model_pb2.ModelProto.SentencePiece
    for id_, (piece, score) in enumerate(vocabulary):
        type_ = types.UNKNOWN if id_ == unknown_id else types.CONTROL if piece in special else types.NORMAL
        model.pieces.add(piece=piece, score=score, type=type_)
    return model.SerializeToString()


def _charsmap(normalizer: Mapping[str, Any] | None) -> bytes:
    """Return the normalizer's character map in SentencePiece's format."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    found = [step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"]
    # Some files list the merging of spaces as additional steps.
    others = [
        step.get("type") for step in steps if step.get("type") not in ("Precompiled", "Replace", "Strip")
    ]
    if others or len(found) > 1:
        raise ValueError(
            "tokenizer.json must have a normalizer of type Precompiled, or none. "
            f"Received: {[step.get('type') for step in steps]}"
        )
    return base64.b64decode(found[0]) if found else b""
