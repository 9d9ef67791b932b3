"""Exports of pipelines that generate: texts in, texts out."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.graphs import Graphs
from keras_transformer_serving.tokenizer import Tokenizer

_NO_TEXT = (
    "`texts` must be rows of ids, for `generate`: the export's tokenizer needs TensorFlow, so that texts are for its "
    "SavedModel."
)


class TextToText:
    """An exported pipeline that generates: from texts to texts, or to token ids by `generate`.

    Args:
        graphs: the export's graphs.
        tokenizer: the export's tokenizer; None if it needs TensorFlow, so that inputs must be token ids.
    """

    def __init__(self, graphs: Graphs, tokenizer: Tokenizer | None) -> None:
        self.graphs = graphs
        self.tokenizer = tokenizer

    def __call__(self, texts: str | Iterable[str], batch_size: int = 64) -> Any:
        """Generate texts.

        Args:
            texts: strings, or one string. A text of only spaces and unknown characters gives an empty output; a
                prompt must have at least one token.
            batch_size: the number of texts in a batch.

        Returns:
            The first hypothesis of each text: a list as long as `texts`, or a string for a string.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is not valid Unicode or too long, or there is no tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError(_NO_TEXT)
        if isinstance(texts, str):
            return self([texts])[0]
        ids = self.generate(list(texts), batch_size)["ids"]
        return [self.tokenizer.decode(row if row.ndim == 1 else row[0]) for row in ids]

    def generate(self, texts: Sequence[Any], batch_size: int = 64) -> dict[str, np.ndarray]:
        """Generate token ids.

        Args:
            texts: B strings, or lists of token ids.
            batch_size: the number of texts in a batch.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis N after the first if the
            export returns N > 1 hypotheses.

        Raises:
            TypeError: as for a call.
            ValueError: as for a call, or if ids are out of range.
        """
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        if isinstance(texts, str):
            raise TypeError(f"`texts` must be a list of strings. Received: texts={texts!r}")
        rows = self.encode(texts)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))  # batches of similar lengths
        count = self.graphs.num_return
        shape = (len(rows), count) if count > 1 else (len(rows),)
        ids = np.full((*shape, self.graphs.max_new_tokens), self.graphs.padding_value, np.int64)
        lengths, scores = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            input_ids, mask = self.padded([rows[row] for row in chosen])
            part = self.graphs.generate(input_ids, np.array(chosen), attention_mask=mask)
            ids[chosen], lengths[chosen], scores[chosen] = part["ids"], part["lengths"], part["scores"]
        return {"ids": ids, "lengths": lengths, "scores": scores}

    def encode(self, texts: Sequence[Any]) -> list[list[int]]:
        """Return the source ids of each text or list of ids; none for only spaces and unknown characters."""
        rows = [self._ids(text, row) for row, text in enumerate(texts)]
        limit = self.graphs.max_source_tokens
        for row, ids in enumerate(rows):
            if len(ids) > limit:
                raise ValueError(
                    f"`texts` must have at most {limit} tokens each (max_source_tokens). "
                    f"Received: {len(ids)} tokens in texts[{row}]"
                )
        return rows

    def _ids(self, text: Any, row: int) -> list[int]:
        ids = None
        if isinstance(text, list | tuple | np.ndarray):
            ids = np.asarray(text, None if len(text) else np.int64)
        if ids is None or ids.dtype.kind not in "iu":
            if self.tokenizer is None:
                raise ValueError(f"{_NO_TEXT} Received: texts[{row}]={text!r}")
            return self.tokenizer.encode(text, row)
        if ids.ndim != 1 or not ((ids >= 0) & (ids < self.graphs.vocabulary_size)).all():
            raise ValueError(
                f"`texts` must have ids from 0 to {self.graphs.vocabulary_size - 1}. Received: texts[{row}]={text!r}"
            )
        return [id_ for id_ in ids.tolist() if id_ != self.graphs.pad_id]

    def padded(self, rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Return padded ids and their mask (0 for padding), both int64 (B, S), S at least 1."""
        ids = np.full((len(rows), max(map(len, rows), default=0) or 1), self.graphs.padding_value, np.int64)
        mask = np.zeros_like(ids)
        for row, content in enumerate(rows):
            ids[row, : len(content)] = content
            mask[row, : len(content)] = 1
        return ids, mask
