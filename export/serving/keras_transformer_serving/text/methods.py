"""The methods of tokenizers that tasks ask for, for all rows at once."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from keras_transformer_serving.jobs import Method
from keras_transformer_serving.text.tokenizer import Tokenizer

TOKENIZE, DETOKENIZE = "tokenize", "detokenize"


class TextMethods(Protocol):
    """The interface of tokenizers for tasks.

    Attributes:
        methods: "tokenize", from pairs of a text and whether special tokens in it are converted, to ids; and
            "detokenize", from ids to their text.
    """

    methods: Mapping[str, Method]

    def piece(self, id_: int) -> str:
        """Return the piece of an id."""


class PythonMethods:
    """The methods of a tokenizer of this package."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.methods: Mapping[str, Method] = {TOKENIZE: self._tokenize, DETOKENIZE: self._detokenize}

    def piece(self, id_: int) -> str:
        """Return the piece of an id."""
        return self._tokenizer.pieces[id_]

    def _tokenize(self, batch: Sequence[Any]) -> list[list[int]]:
        return [
            self._tokenizer.tokenize(text, special_tokens=special_tokens) for text, special_tokens in batch
        ]

    def _detokenize(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return [self._tokenizer.detokenize(ids) for ids in batch]
