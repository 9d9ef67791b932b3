"""The base class of pipelines that run a model once on texts: tokenisation, windows and batches."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer import data
from keras_transformer.arguments import check_one_of, check_positive
from keras_transformer.pipelines import folders

LONG_TEXTS = ("refuse", "window")


class Word(NamedTuple):
    """A word of a text, delimited by white space.

    Attributes:
        text: the word.
        start: the index of its first character.
        end: the index after its last character.
    """

    text: str
    start: int
    end: int


class TextPipeline(folders.Pipeline):
    """Base class of pipelines that run a model with an encoder or a decoder once on texts.

    Args:
        model: with an `encoder`, or with a `decoder` and the ids of start, delimiter and extract, such as
            `models.GPTClassifier`.
        tokenizer: with the vocabulary of the encoder, or of the decoder with or without the three special tokens.
        long_texts: "refuse" texts longer than the encoder's `max_length`, or split them into windows that overlap by
            half ("window").

    Raises:
        ValueError: if model and tokenizer do not match, or `long_texts` is unknown.
    """

    def __init__(self, model: Any, tokenizer: Any, long_texts: str = "refuse") -> None:
        check_one_of(LONG_TEXTS, long_texts=long_texts)
        self.model = model
        self.tokenizer = tokenizer
        self.long_texts = long_texts
        self._special_ids = getattr(model, "special_ids", None)
        self.encoder = getattr(model, "encoder", getattr(model, "decoder", model))
        ids = len({*range(tokenizer.vocabulary_size), *(self._special_ids or ())})
        for name, known in (("vocabulary_size", ids), ("pad_id", tokenizer.pad_id)):
            of_model = getattr(self.encoder, name)
            if of_model != known and not (name == "pad_id" and of_model is None):
                including = (
                    f", including the special tokens {self._special_ids}"
                    if name == "vocabulary_size" and self._special_ids
                    else ""
                )
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}{including}. Received: "
                    f"{of_model} and {known}"
                )
        if self._special_ids is None and min(tokenizer.start_id, tokenizer.end_id) < 0:
            raise ValueError(
                "`tokenizer` must have start and end ids. "
                f"Received: start_id={tokenizer.start_id}, end_id={tokenizer.end_id}"
            )

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {"long_texts": self.long_texts}

    def _ids(self, texts: Iterable[str], name: str = "texts") -> list[list[int]]:
        """Return the ids of each text, without special ids."""
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"`{name}` must be strings. Received: {text!r}")
        return self.tokenizer.tokenize(texts).to_list() if texts else []

    def _windows(
        self, ids: Sequence[int], room: int, index: int, name: str = "texts"
    ) -> list[tuple[int, int]]:
        """Return (start, end) of windows over ids, each at most `room` long."""
        if len(ids) <= room:
            return [(0, len(ids))]
        if self.long_texts == "refuse" or room < 2:
            raise ValueError(
                f"`{name}` must have at most {room} tokens each, as the model has {self.encoder.max_length} "
                "positions, or long_texts='window'. "
                f"Received: {len(ids)} tokens in {name}[{index}]"
            )
        starts = [*range(0, len(ids) - room, room - room // 2), len(ids) - room]
        return [(start, start + room) for start in starts]

    def _row(self, first: Sequence[int], second: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the ids "start, first, end", "second, end" and segment ids; or the input rows of a decoder."""
        if self._special_ids is not None:
            symmetric = second is not None and self.model.symmetric
            parts = [first] if second is None else [first, second]
            rows = data.input_rows(parts, self._special_ids, "similarity" if symmetric else "entailment")
            return {"token_ids": rows if symmetric else rows[0]}
        start, end = self.tokenizer.start_id, self.tokenizer.end_id
        ids = [start, *first, end]
        segments = [0] * len(ids)
        if second is not None:
            ids, segments = [*ids, *second, end], [*segments, *[1] * (len(second) + 1)]
        return {"token_ids": ids, "segment_ids": segments}

    def _run(self, rows: Sequence[dict[str, Any]], batch_size: int, function: Any = None) -> list[np.ndarray]:
        """Return the model's outputs for each row, in batches of similar length."""
        check_positive(batch_size=batch_size)
        function = function or (lambda inputs: self.model(inputs, training=False))
        order = sorted(range(len(rows)), key=lambda i: _length(rows[i]))
        outputs: list[Any] = [None] * len(rows)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            found = keras.ops.convert_to_numpy(function(self._batch([rows[i] for i in chosen])))
            for place, i in enumerate(chosen):
                outputs[i] = found[place]
        return outputs

    def _batch(self, rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
        length = max(map(_length, rows))
        padding_values = {"token_ids": self.tokenizer.padding_value, "segment_ids": 0}
        return {
            name: np.stack([_padded(row[name], length, padding_values[name]) for row in rows])
            for name in rows[0]
        }


def _length(row: dict[str, Any]) -> int:
    return np.shape(row["token_ids"])[-1]


def _padded(ids: Any, length: int, padding_value: int) -> np.ndarray:
    ids = np.asarray(ids, "int32")
    widths = [(0, 0)] * (ids.ndim - 1) + [(0, length - ids.shape[-1])]
    return np.pad(ids, widths, constant_values=padding_value)


def as_list(texts: str | Iterable[str]) -> tuple[list[str], bool]:
    """Return texts as a list, and whether they were a single string."""
    return ([texts], True) if isinstance(texts, str) else (list(texts), False)


def split_words(text: str) -> list[Word]:
    """Split a text into words at white space."""
    return [Word(match.group(), match.start(), match.end()) for match in re.finditer(r"\S+", text)]


def tokenize_words(words: list[Word], tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the concatenated ids of all words, and the index of the word of each id."""
    if not words:
        return [], []
    rows = tokenizer.tokenize([word.text for word in words]).to_list()
    return [id_ for row in rows for id_ in row], [i for i, row in enumerate(rows) for _ in row]
