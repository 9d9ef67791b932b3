"""The tokenizer of an export, without TensorFlow.

The `sentencepiece` package is the C++ library that tensorflow_text runs inside the graph, so the ids are the
same. (The operators of onnxruntime-extensions give them too, but crash where TensorFlow is imported.)
"""

import re
from collections.abc import Sequence
from typing import Any

import sentencepiece


def reads_text(config: dict[str, Any]) -> bool:
    """Whether an export's tokenizer runs without TensorFlow."""
    return config["tokenizer_class"] == "SentencePieceTokenizer"


def tokenizer_of(model: bytes, config: dict[str, Any]) -> "Tokenizer | None":
    """The tokenizer of an export, None where it needs TensorFlow."""
    return Tokenizer(model, config) if reads_text(config) else None


class Tokenizer:
    """Text to ids and back.

    Args:
        model: a serialised SentencePiece model.
        config: the export's settings.
    """

    def __init__(self, model: bytes, config: dict[str, Any]) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._end_id = config["end_id"]
        self._not_text = {config["pad_id"], config["start_id"], self._processor.bos_id()}
        self._blank = set(config["blank_ids"])
        # An answer to a prompt begins with the space that stands between them; one to a text stands for itself.
        self._continues = config["start_id"] is None
        self._first = [self._processor.bos_id()] if config.get("add_start") else []
        self._special_ids = self._in_text() if config.get("special_tokens") else {}
        if self._continues:
            self._guard_id, self._guard = self._anchor()
            return
        self._guard_id = self._processor.unk_id()
        keeps_spaces = self._processor.normalize("  a") == "\u2581\u2581\u2581a"
        self._guard = self._processor.decode([self._guard_id]) if keeps_spaces else ""

    def encode(self, text: str, row: int = 0) -> list[int]:
        """The ids of a text and the end id; none at all if it has only spaces and unknown characters.

        A prompt has no end id, and must have a token.

        Args:
            text: the text.
            row: where it stands, for errors.

        Raises:
            TypeError: where it is no string.
            ValueError: where it is no valid Unicode, or a prompt without tokens.
        """
        if not isinstance(text, str):
            raise TypeError(f"`texts` must be strings. Received: texts[{row}]={text!r}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"`texts` must be valid Unicode, without lone surrogates. Received: texts[{row}]={text!r}"
            ) from error
        ids = self._ids(text)
        if self._continues:
            if not (prompt := [*self._first, *ids]):
                raise ValueError(f"`texts` must have a token each. Received: none in texts[{row}]={text!r}")
            return prompt
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
            return self._text(kept)
        # As in the TensorFlow graph: something stands in front of the text, so that it keeps its own spaces.
        text = self._text([self._guard_id, *kept]).removeprefix(self._guard)
        return text if self._continues else text.removeprefix(" ")

    def _in_text(self) -> dict[str, int]:
        """Special tokens and their ids."""
        processor = self._processor
        ids = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
        return {processor.id_to_piece(id_): id_ for id_ in ids if id_ >= 0}

    def _ids(self, text: str) -> list[int]:
        """The ids of a text, in which special tokens are text unless the settings say otherwise."""
        if not self._special_ids:
            return self._processor.encode(text)
        pattern = "|".join(map(re.escape, sorted(self._special_ids, key=len, reverse=True)))
        parts = re.split(f"({pattern})", text)
        return [
            id_
            for part in parts
            for id_ in (
                [self._special_ids[part]] if part in self._special_ids else self._processor.encode(part)
            )
        ]

    def _text(self, ids: list[int]) -> str:
        # Where no piece covers a space, as in a word model, its mark comes back from bytes, as it is.
        return self._processor.decode(ids).replace("\u2581", " ")

    def _anchor(self) -> tuple[int, str]:
        """An ordinary token, and its text."""
        others = {*self._not_text, self._end_id, *self._blank}
        candidates = (id_ for id_ in range(self._processor.get_piece_size()) if id_ not in others)
        texts = ((id_, self._processor.decode([id_])) for id_ in candidates)
        return next((id_, text) for id_, text in texts if text.isascii() and text.isalnum())
