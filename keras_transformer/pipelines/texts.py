"""What pipelines of an encoder of texts have in common: ids, the length limit, and rows that run together."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer import data
from keras_transformer.arguments import check_one_of, check_positive
from keras_transformer.pipelines import folders

LONG_TEXTS = ("refuse", "window")


class OfTexts(folders.Saved):
    """A model around an encoder, or a decoder with marks such as `models.GPTClassifier`, and its tokenizer.

    Args:
        model: with an `encoder`, or a `decoder` and the ids `special_ids` of start, delimiter and extract.
        tokenizer: with the encoder's vocabulary, or with the decoder's but for the marks, which it may have or not.
        long_texts: whether texts that are longer than the encoder's `max_length` are refused, or read through windows
            that overlap by half.

    Raises:
        ValueError: where model and tokenizer do not belong together, or `long_texts` is unknown.
    """

    def __init__(self, model: Any, tokenizer: Any, long_texts: str = "refuse") -> None:
        check_one_of(LONG_TEXTS, long_texts=long_texts)
        self.model = model
        self.tokenizer = tokenizer
        self.long_texts = long_texts
        self._marks = getattr(model, "special_ids", None)
        self.encoder = getattr(model, "encoder", getattr(model, "decoder", model))
        ids = len({*range(tokenizer.vocabulary_size), *(self._marks or ())})
        for name, known in (("vocabulary_size", ids), ("pad_id", tokenizer.pad_id)):
            of_model = getattr(self.encoder, name)
            if of_model != known and not (name == "pad_id" and of_model is None):
                marks = (
                    f", the marks {self._marks} among them"
                    if name == "vocabulary_size" and self._marks
                    else ""
                )
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}{marks}. Received: "
                    f"{of_model} and {known}"
                )
        if self._marks is None and min(tokenizer.start_id, tokenizer.end_id) < 0:
            raise ValueError(
                "`tokenizer` must have start and end ids. "
                f"Received: start_id={tokenizer.start_id}, end_id={tokenizer.end_id}"
            )

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides model and tokenizer."""
        return {"long_texts": self.long_texts}

    def _ids(self, texts: Iterable[str], name: str = "texts") -> list[list[int]]:
        """The ids of each text, without special ones."""
        texts = list(texts)
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"`{name}` must be strings. Received: {text!r}")
        return self.tokenizer.tokenize(texts).to_list() if texts else []

    def _windows(
        self, ids: Sequence[int], room: int, index: int, name: str = "texts"
    ) -> list[tuple[int, int]]:
        """Where the windows start and end that read these ids, each at most `room` long."""
        if len(ids) <= room:
            return [(0, len(ids))]
        if self.long_texts == "refuse" or room < 2:
            raise ValueError(
                f"`{name}` must have at most {room} tokens each, as the model has {self.encoder.max_length} "
                "positions, or long_texts='window' must read them in parts. "
                f"Received: {len(ids)} tokens in {name}[{index}]"
            )
        starts = [*range(0, len(ids) - room, room - room // 2), len(ids) - room]
        return [(start, start + room) for start in starts]

    def _row(self, first: Sequence[int], second: Sequence[int] | None = None) -> dict[str, Any]:
        """Ids "start, first, end", and "second, end" behind them as segment 1; or what a decoder was trained on."""
        if self._marks is not None:
            symmetric = second is not None and self.model.symmetric
            parts = [first] if second is None else [first, second]
            rows = data.input_rows(parts, self._marks, "similarity" if symmetric else "entailment")
            return {"token_ids": rows if symmetric else rows[0]}
        start, end = self.tokenizer.start_id, self.tokenizer.end_id
        ids = [start, *first, end]
        segments = [0] * len(ids)
        if second is not None:
            ids, segments = [*ids, *second, end], [*segments, *[1] * (len(second) + 1)]
        return {"token_ids": ids, "segment_ids": segments}

    def _run(self, rows: Sequence[dict[str, Any]], batch_size: int, function: Any = None) -> list[np.ndarray]:
        """What the model says of each row; rows of near length run together."""
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
    """The texts as a list, and whether it was one string."""
    return ([texts], True) if isinstance(texts, str) else (list(texts), False)
