"""Exported classifiers of the words of a text."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving.pipelines.classification import label_dtype
from keras_transformer_serving.pipelines.errors import Errors
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, Windows, softmax
from keras_transformer_serving.tasks import Row, Tensor

WORD = re.compile(r"\S+")


class TaggedWord(NamedTuple):
    """A word and its class.

    Attributes:
        word: the word.
        label: its most probable label.
        probability: the probability of the label.
        start: the index of its first character in the text.
        end: the index after its last character.
    """

    word: str
    label: Any
    probability: float
    start: int
    end: int


class TokenClassification(TextPipeline):
    """An exported token classifier; `load` creates it."""

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Classify the words of each text.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens: words that are cut are
                omitted.

        Returns:
            For each text a list of `TaggedWord`; for one string only its list. Words without tokens are omitted.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is too long.
        """
        return self._answers(batch_size, errors=errors, truncate=truncate, text=text)

    def preprocess(
        self, *texts: str, truncate: bool = False
    ) -> tuple[Windows, list[tuple[re.Match[str], int]]]:
        """Convert a text to windows of ids, its words with tokens, and the index of the first token of each."""
        words, ids = [], list[int]()
        for word in WORD.finditer(texts[0]):
            if of_word := self.tokenizer.tokenize(word.group()):
                words.append((word, len(ids)))
                ids += of_word
        windows = self._windows(ids, "text", truncate)
        read = windows.starts[-1] + len(windows.ids[-1])
        return windows, [(word, token) for word, token in words if token < read]

    def postprocess(
        self, outputs: Arrays, windows: Windows, state: list[tuple[re.Match[str], int]]
    ) -> list[TaggedWord]:
        """Return the words and their classes."""
        labels, found = self.config["labels"], []
        for word, token in state:
            probabilities = softmax(outputs["logits"][_deepest(windows, token)])
            best = int(np.argmax(probabilities))
            found.append(
                TaggedWord(word.group(), labels[best], float(probabilities[best]), word.start(), word.end())
            )
        return found

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: the fields of `TaggedWord` for each word."""
        return (
            Tensor("words", "string", (None,)),
            Tensor("labels", label_dtype(config), (None,)),
            Tensor("probabilities", "float32", (None,)),
            Tensor("starts", "int32", (None,)),
            Tensor("ends", "int32", (None,)),
        )

    def row(self, answer: list[TaggedWord]) -> Row:
        """Return the words as outputs."""
        outputs = self.outputs(self.config)
        return {tensor.name: [word[field] for word in answer] for field, tensor in enumerate(outputs)}

    @staticmethod
    def text(answer: list[TaggedWord]) -> str:
        """Return each word and its label, separated by a slash."""
        return " ".join(f"{word.word}/{word.label}" for word in answer)


def _deepest(windows: Windows, token: int) -> tuple[int, int]:
    """Return the first window in which a token is farthest from a margin, and its place there."""
    places = [token - start for start in windows.starts]
    depths = [min(place, len(ids) - 1 - place) for place, ids in zip(places, windows.ids, strict=True)]
    window = int(np.argmax(depths))
    return window, places[window] + 1  # after the start id
