"""The methods of a tokenizer, of which one in TensorFlow's graph is called eagerly for all texts at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.lazy_tensorflow import tf
from keras_transformer_serving.jobs import Method
from keras_transformer_serving.text.methods import DETOKENIZE, TOKENIZE, PythonMethods, TextMethods
from keras_transformer_serving.text.tokenizer import Tokenizer


def methods_of(tokenizer: Any) -> TextMethods:
    """Return the methods of a tokenizer of `keras_transformer.text`, in TensorFlow's graph or without TensorFlow."""
    return PythonMethods(tokenizer) if isinstance(tokenizer, Tokenizer) else TokenizerMethods(tokenizer)


class TokenizerMethods:
    """The `TextMethods` of a tokenizer in TensorFlow's graph."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.methods: Mapping[str, Method] = {TOKENIZE: self._tokenize, DETOKENIZE: self._detokenize}

    def piece(self, id_: int) -> str:
        """Return the piece of an id."""
        piece: str = self._tokenizer.id_to_piece(id_)
        return piece

    def _tokenize(self, batch: Sequence[Any]) -> list[list[int]]:
        rows: list[list[int]] = [[]] * len(batch)
        for special_tokens in {special_tokens for _, special_tokens in batch}:
            places = [place for place, (_, special) in enumerate(batch) if special == special_tokens]
            texts = [batch[place][0].encode() for place in places]
            ids = self._tokenizer.tokenize(tf.constant(texts, tf.string), special_tokens=special_tokens)
            values, splits = ids.values.numpy().tolist(), ids.row_splits.numpy().tolist()
            for place, begin, end in zip(places, splits, splits[1:], strict=False):
                rows[place] = values[begin:end]
        return rows

    def _detokenize(self, batch: Sequence[Sequence[int]]) -> list[str]:
        lengths = [len(ids) for ids in batch]
        values = np.fromiter((id_ for ids in batch for id_ in ids), np.int32, sum(lengths))
        rows = tf.RaggedTensor.from_row_lengths(values, lengths)
        return [text.decode() for text in self._tokenizer.detokenize(rows).numpy()]
