"""The tokenizer of bytes."""

import json
from collections.abc import Mapping

from keras_transformer_serving.text.tokenizer import VocabularyTokenizer


class ByteTokenizer(VocabularyTokenizer):
    """Convert text to its UTF-8 bytes and back.

    Args:
        model: the content of the tokenizer's file.
    """

    def __init__(self, model: bytes) -> None:
        settings = json.loads(model)["settings"]
        first = list(dict.fromkeys(settings["special_tokens"].values()))
        extra = settings["extra_tokens"]
        super().__init__([*first, *(f"<0x{byte:02X}>" for byte in range(256)), *extra], settings)
        self.special_token_ids: Mapping[str, int] = {
            **self.special_token_ids,
            **{token: self._ids[token] for token in extra},
        }
        self._offset = len(first)
        bytes_ = (bytes([byte]) for byte in range(256))
        unused = [b""] * settings.get("unused", 0)
        self._contents = [*map(str.encode, first), *bytes_, *map(str.encode, extra), *unused]

    def _cut(self, text: str) -> list[int]:
        return [self._offset + byte for byte in text.encode()]

    def content(self, id_: int) -> bytes | None:
        """Return the bytes of an id."""
        return self._contents[id_]

    def _join(self, ids: list[int]) -> str:
        return b"".join(self._contents[id_] for id_ in ids).decode(errors="replace")
