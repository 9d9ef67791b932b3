"""Classification of the words of a text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.pipelines.classification import label_dtype, label_output
from keras_transformer_serving.pipelines.texts import (
    Arrays,
    TextPipeline,
    TextTask,
    Truncate,
    Windows,
    softmax,
)
from keras_transformer_serving.tasks import Row, Tensor
from keras_transformer_serving.text.base import Word


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


class TokenClassificationTask(TextTask):
    """The classification of the words of a text.

    The answer to a text is a list of `TaggedWord`; words without tokens, and with truncate=True words that are cut, are
    omitted.
    """

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

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.choices` of tags at all positions."""
        expected, found = closeness.real_values(pairs, "logits", closeness.softmax)
        return {**closeness.choices("tags", expected, found), **closeness.logits(pairs)}

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> list[TaggedWord]:
        """Return the words of the outputs of a text; outputs of shorter texts are padded."""
        label_of = {label_output(label, config): label for label in config["labels"]}
        columns = (np.asarray(row[tensor.name]).tolist() for tensor in cls.outputs(config))
        return [
            TaggedWord(word, label_of[label], probability, start, end)
            for word, label, probability, start, end in zip(*columns, strict=True)
            if start >= 0
        ]

    @staticmethod
    def text(answer: list[TaggedWord]) -> str:
        """Return each word and its label, separated by a slash."""
        return " ".join(f"{word.word}/{word.label}" for word in answer)


class _TextWithWords(NamedTuple):
    """A text, its words with tokens, and the index of the first token of each."""

    text: str
    words: list[tuple[Word, int]]


class TokenClassification(TokenClassificationTask, TextPipeline):
    """An exported token classifier; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, "_TextWithWords"]:
        """Convert a text to windows of ids, and the text and its words."""
        words, ids = list[tuple[Word, int]](), list[int]()
        for word in self._tokenize_words(texts[0]):
            if word.ids and word.end > word.start:
                words.append((word, len(ids)))
            ids += word.ids
        windows = self._windows(ids, "text", truncate)
        read = [(word, token) for word, token in words if token in windows.read]
        return windows, _TextWithWords(texts[0], read)

    def postprocess(self, outputs: Arrays, windows: Windows, state: "_TextWithWords") -> Row:
        """Return the words and their classes."""
        text, words = state
        probabilities = [softmax(outputs["logits"][_deepest(windows, token)]) for _, token in words]
        labels = [self.config["labels"][int(np.argmax(row))] for row in probabilities]
        return {
            "words": [text[word.start : word.end] for word, _ in words],
            "labels": [label_output(label, self.config) for label in labels],
            "probabilities": [row.max() for row in probabilities],
            "starts": [word.start for word, _ in words],
            "ends": [word.end for word, _ in words],
        }


def _deepest(windows: Windows, token: int) -> tuple[int, int]:
    """Return the first window in which a token is farthest from a margin, and its place there."""
    places = [token - start for start in windows.starts]
    depths = [min(place, len(ids) - 1 - place) for place, ids in zip(places, windows.ids, strict=True)]
    window = int(np.argmax(depths))
    return window, places[window] + 1  # after the start id
