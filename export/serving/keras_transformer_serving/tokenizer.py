"""The tokenizer of an export, without TensorFlow.

The `sentencepiece` package is the C++ library that tensorflow_text runs inside the graph, so the ids are the
same. (The operators of onnxruntime-extensions give them too, but crash where TensorFlow is imported.)
"""

import re
from collections.abc import Sequence
from typing import Any

import sentencepiece


def reads_text(config: dict[str, Any]) -> bool:
    """Return whether an export's tokenizer runs without TensorFlow."""
    return bool(config["tokenizer_class"] == "SentencePieceTokenizer")


def tokenizer_of(model: bytes, config: dict[str, Any]) -> "Tokenizer | None":
    """Return the tokenizer of an export, or None if it needs TensorFlow."""
    return Tokenizer(model, config) if reads_text(config) else None


class Tokenizer:
    """A SentencePiece tokenizer, with the special tokens of an export.

    Args:
        model: a serialised SentencePiece model.
        config: the export's settings.
    """

    def __init__(self, model: bytes, config: dict[str, Any]) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._end_id = config["end_id"]
        self._not_text = {config["pad_id"], config["start_id"], self._processor.bos_id()}
        self._empty_ids = set(config["empty_ids"])
        # A continuation keeps the space between it and its prompt; a translation has no leading space.
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
        """Return the ids of a text and the end id; no ids for only spaces and unknown characters.

        A prompt has no end id, and must have at least one token.

        Args:
            text: the text.
            row: its index in the batch, for errors.

        Raises:
            TypeError: if it is not a string.
            ValueError: if it is not valid Unicode, or a prompt without tokens.
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
        return [] if self._empty_ids.issuperset(ids) else [*ids, self._end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, up to the end id."""
        kept = []
        for id_ in map(int, ids):
            if id_ == self._end_id:
                break
            if id_ not in self._not_text:
                kept.append(id_)
        if not self._guard:
            return self._text(kept)
        # As in the TensorFlow graph: an anchor before the text keeps its leading spaces.
        text = self._text([self._guard_id, *kept]).removeprefix(self._guard)
        return text if self._continues else text.removeprefix(" ")

    def _in_text(self) -> dict[str, int]:
        """Return the special tokens and their ids."""
        processor = self._processor
        ids = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
        return {processor.id_to_piece(id_): id_ for id_ in ids if id_ >= 0}

    def _ids(self, text: str) -> list[int]:
        """Return the ids of a text, with special tokens parsed if the settings say so."""
        if not self._special_ids:
            ids: list[int] = self._processor.encode(text)
            return ids
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
        # A model without a piece for spaces, such as a word model, decodes U+2581 from bytes unchanged.
        text: str = self._processor.decode(ids)
        return text.replace("\u2581", " ")

    def _anchor(self) -> tuple[int, str]:
        """Return an ordinary token and its text."""
        others = {*self._not_text, self._end_id, *self._empty_ids}
        candidates = (id_ for id_ in range(self._processor.get_piece_size()) if id_ not in others)
        texts = ((id_, self._processor.decode([id_])) for id_ in candidates)
        return next((id_, text) for id_, text in texts if text.isascii() and text.isalnum())
