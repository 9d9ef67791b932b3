"""Classification of the words of a text."""

from collections.abc import Iterable, Iterator, Sequence
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
from keras_transformer_serving.text.tokenizer import Word

SIMPLE, FIRST, AVERAGE, MAX = AGGREGATIONS = ("simple", "first", "average", "max")
OUTSIDE = "O"  # the label of words that are in no entity


class TaggedWord(NamedTuple):
    """A word and its class, or an entity: adjacent words of one class.

    Attributes:
        word: the word, or the text of the entity.
        label: its most probable label; that of an entity is without "B-" and "I-".
        probability: the probability of the label; of an entity, the mean of its words.
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
    omitted. With the setting `aggregation` the words are grouped to entities.
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
        labels = config["labels"]
        if config.get("aggregation") is not None:
            labels = [tag for tag, _ in map(tag_of, labels)]
        label_of = {label_output(label, config): label for label in labels}
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


def tag_of(label: str | int) -> tuple[str | int, bool]:
    """Return the tag of a label without "B-" or "I-", and whether the label begins an entity."""
    if isinstance(label, str) and label.startswith(("B-", "I-")):
        return label[2:], label.startswith("B-")
    return label, False


class _TextWithWords(NamedTuple):
    """A text, its words with tokens, and the index of the first token of each."""

    text: str
    words: list[tuple[Word, int]]


class TokenClassification(TokenClassificationTask, TextPipeline):
    """An exported token classifier; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, "_TextWithWords"]:
        """Convert a text to windows of ids, and the text and its words."""
        words, ids = list[tuple[Word, int]](), list[int]()
        of_tokens = self.config.get("aggregation") == SIMPLE
        found = (
            self.tokenizer.tokenize_words(texts[0], each_token=True)
            if of_tokens
            else self._tokenize_words(texts[0])
        )
        for word in found:
            if word.ids and (of_tokens or word.end > word.start):
                words.append((word, len(ids)))
            ids += word.ids
        windows = self._windows(ids, "text", truncate)
        read = [(word, token) for word, token in words if token in windows.read]
        return windows, _TextWithWords(texts[0], read)

    def postprocess(self, outputs: Arrays, windows: Windows, state: "_TextWithWords") -> Row:
        """Return the words and their classes."""
        text, words = state
        tagged = []
        for word, token in words:
            probabilities = self._probabilities(
                outputs["logits"], windows, range(token, token + len(word.ids))
            )
            best = int(np.argmax(probabilities))
            tagged.append((self.config["labels"][best], probabilities[best], word.start, word.end))
        if self.config.get("aggregation") is not None:
            tagged = [*_entities(tagged)]
        return {
            "words": [text[start:end] for *_, start, end in tagged],
            "labels": [label_output(label, self.config) for label, *_ in tagged],
            "probabilities": [probability for _, probability, *_ in tagged],
            "starts": [start for *_, start, _ in tagged],
            "ends": [end for *_, end in tagged],
        }

    def _probabilities(self, logits: np.ndarray, windows: Windows, tokens: Iterable[int]) -> np.ndarray:
        """Return the probabilities (C,) of the classes of a word, from those of its tokens."""
        aggregation = self.config.get("aggregation") or FIRST
        read = [token for token in tokens if token in windows.read][: 1 if aggregation == FIRST else None]
        rows = np.stack([softmax(logits[_deepest(windows, token)]) for token in read])
        if aggregation == AVERAGE:
            average: np.ndarray = rows.mean(axis=0)
            return average
        best: np.ndarray = rows[np.argmax(rows.max(axis=1))]
        return best


_Tagged = tuple[Any, float, int, int]  # the label, its probability, the start and the end


def _entities(tagged: Sequence[_Tagged]) -> Iterator[_Tagged]:
    """Join adjacent words of one tag, unless a label begins another entity; words in no entity are omitted.

    A token of white space counts as a word, but an entity has no place there.
    """
    entities: list[tuple[Any, list[_Tagged]]] = []
    for word in tagged:
        tag, begins = tag_of(word[0])
        if not entities or begins or entities[-1][0] != tag:
            entities.append((tag, []))
        entities[-1][1].append(word)
    for tag, words in entities:
        places = [(start, end) for *_, start, end in words if end > start]
        if tag != OUTSIDE and places:
            probability = float(np.mean([probability for _, probability, *_ in words]))
            yield tag, probability, min(places)[0], max(end for _, end in places)


def _deepest(windows: Windows, token: int) -> tuple[int, int]:
    """Return the first window in which a token is farthest from a margin, and its place there."""
    places = [token - start for start in windows.starts]
    depths = [min(place, len(ids) - 1 - place) for place, ids in zip(places, windows.ids, strict=True)]
    window = int(np.argmax(depths))
    return window, places[window] + 1  # after the start id
