"""Texts whose segmentation into tokens is sampled anew in each epoch: BPE-dropout and SentencePiece's sampling."""

import math
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.data.storage import RaggedRows
from keras_transformer_options.arguments import check, is_number

_MEASURED = 8192  # texts, to estimate how much longer samples are


def check_sampling(sampling: Any, **tokenizers: Any) -> bool:
    """Return whether segmentations are sampled, or raise a ValueError if they are to be and cannot."""
    check(is_number(sampling) and 0 <= sampling < 1, "be in [0, 1)", sampling=sampling)
    if not sampling:
        return False
    for argument, tokenizer in tokenizers.items():
        if getattr(tokenizer, "sampling", None) is None:
            raise ValueError(
                f"`sampling` must be 0 for a `{argument}` that has one segmentation of a text only. "
                f"Received: sampling={sampling} and a {type(tokenizer).__name__}"
            )
    return True


class SampledRows(NamedTuple):
    """The texts of rows, with the ids that replace a sample that is too long.

    Attributes:
        rows: the ids of the texts without sampling.
        texts: the bytes of the texts.
        tokenizer: the tokenizer.
        rate: the argument of `tokenizer.sample`.
        factor: how much longer most samples are at most.
        seed: integers (2,), or None before `seeded`.
    """

    rows: RaggedRows
    texts: RaggedRows
    tokenizer: Any
    rate: float
    factor: float
    seed: tf.Tensor | None = None

    @classmethod
    def of(
        cls, rows: RaggedRows, texts: RaggedRows, tokenizer: Any, rate: float, special_ids: int = 0
    ) -> Self:
        """Estimate `factor` from the first texts, of whose ids in `rows` a number of `special_ids` are special.

        It is 1 + 3/2 (r − 1), where r is the ratio of the mean numbers of tokens with and without sampling, rounded up
        to tenths, so that it is the same each time.
        """
        count = min(_MEASURED, rows.count)
        found = tokenizer.sample(texts.strings(tf.range(count, dtype=tf.int64)), rate, [0, 0])
        ratio = (len(found.values) + special_ids * count) / max(rows.lengths(0, count).sum(), 1)
        return cls(rows, texts, tokenizer, rate, math.ceil(10 * (1 + 1.5 * max(ratio - 1, 0))) / 10)

    def gather(self, rows: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Sample the ids of rows, in the form of `RaggedRows.gather`.

        Samples of `length` tokens or more, which leave no room for an end token, are replaced.
        """
        ids, lengths = self.rows.gather(rows, length)
        found = self.sample(tf.maximum(rows, 0))
        counts = found.row_lengths()[:, None]
        fits = (counts < length) & (lengths >= 0)
        sampled = found.to_tensor(0, shape=tf.stack([-1, length]))
        return tf.where(fits, sampled, ids), tf.where(fits, counts, lengths)

    def sample(self, rows: tf.Tensor) -> tf.RaggedTensor:
        """Sample the ids of the texts of rows (B,), without special ids."""
        return self.tokenizer.sample(self.texts.strings(rows), self.rate, self.seed)

    def lengths(self, start: int, end: int) -> np.ndarray:
        """Return numbers of tokens that about 96 of 100 samples of each text do not exceed, int64."""
        return np.ceil(self.rows.lengths(start, end) * self.factor).astype(np.int64) + 2


def seeded(rows: RaggedRows | SampledRows, seed: tf.Tensor) -> RaggedRows | SampledRows:
    """Return rows whose samples, if any, are those of a seed."""
    return rows._replace(seed=seed) if isinstance(rows, SampledRows) else rows


def unseeded(*sides: RaggedRows | SampledRows | None) -> str:
    """Return the name of the first tokenizer whose samples have no seed, or ""."""
    tokenizers = [side.tokenizer for side in sides if isinstance(side, SampledRows)]
    return next((type(each).__name__ for each in tokenizers if each.sampling == "unseeded"), "")
