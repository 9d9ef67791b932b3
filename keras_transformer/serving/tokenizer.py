"""The tokenizer of an export, without TensorFlow.

The `sentencepiece` package is the C++ library that tensorflow_text runs inside the graph, so the ids are the
same. (The operators of onnxruntime-extensions give them too, but crash where TensorFlow is imported.)
"""

from collections.abc import Sequence
from typing import Any

import sentencepiece


class Tokenizer:
    """Text to ids and back.

    Args:
        model: a serialised SentencePiece model.
        config: the export's settings.
    """

    def __init__(self, model: bytes, config: dict[str, Any]) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._end_id = config["end_id"]
        self._not_text = {config["pad_id"], config["start_id"]}
        self._blank = set(config["blank_ids"])
        self._guard_id = self._processor.unk_id()
        keeps_spaces = "".join(self._processor.encode("  a", out_type=str)) == "\u2581\u2581\u2581a"
        self._guard = self._processor.decode([self._guard_id]) if keeps_spaces else ""

    def encode(self, text: str, row: int = 0) -> list[int]:
        """The ids of a text and the end id; none at all if it has only spaces and unknown characters.

        Args:
            text: the text.
            row: where it stands, for errors.

        Raises:
            TypeError: where it is no string.
            ValueError: where it is no valid Unicode.
        """
        if not isinstance(text, str):
            raise TypeError(f"`texts` must be strings. Received: texts[{row}]={text!r}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`texts` must be valid Unicode, without lone surrogates. Received: texts[{row}]={text!r}"
            ) from error
        ids = self._processor.encode(text)
        return [] if self._blank.issuperset(ids) else [*ids, self._end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, up to the end id."""
        kept = []
        for id_ in map(int, ids):
            if id_ == self._end_id:
                break
            if id_ not in self._not_text:
                kept.append(id_)
        if not self._guard:
            return self._processor.decode(kept)
        # As in the TensorFlow graph: something stands in front of the text, so that it keeps its own spaces.
        return self._processor.decode([self._guard_id, *kept]).removeprefix(self._guard).removeprefix(" ")
