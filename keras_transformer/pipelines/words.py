"""Words of a text, where they stand in it, and their ids."""

import re
from typing import Any, NamedTuple


class Word(NamedTuple):
    """What stands between white space.

    Attributes:
        text: as written.
        start: its first character.
        end: behind its last one.
    """

    text: str
    start: int
    end: int


def split(text: str) -> list[Word]:
    """The words of a text."""
    return [Word(match.group(), match.start(), match.end()) for match in re.finditer(r"\S+", text)]


def with_ids(words: list[Word], tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids of all words one behind the other, and which word each is of."""
    if not words:
        return [], []
    rows = tokenizer.tokenize([word.text for word in words]).to_list()
    return [id_ for row in rows for id_ in row], [i for i, row in enumerate(rows) for _ in row]
