"""Texts whose segmentation into tokens is sampled anew in each epoch: BPE-dropout and SentencePiece's sampling."""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import is_number
from keras_transformer.data.epochs import batch_seed
from keras_transformer.data.ragged_rows import RaggedRows

_MEASURED = 8192  # texts, to estimate how much longer samples are


def check_sampling(sampling: Any, **tokenizers: Any) -> bool:
    """Return whether segmentations are sampled, or raise a ValueError if they are to be and cannot."""
    if not (is_number(sampling) and 0 <= sampling < 1):
        raise ValueError(f"`sampling` must be in [0, 1). Received: sampling={sampling!r}")
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
        texts: strings (n,).
        tokenizer: the tokenizer.
        rate: the argument of `tokenizer.sample`.
        seed: integers (2,), or None before `seeded`.
    """

    rows: RaggedRows
    texts: tf.Tensor
    tokenizer: Any
    rate: float
    seed: tf.Tensor | None = None

    def gather(self, rows: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Sample the ids of rows, in the form of `RaggedRows.gather`.

        Samples of `length` tokens or more, which leave no place for an end token, are replaced.
        """
        ids, lengths = self.rows.gather(rows, length)
        found = self.tokenizer.sample(tf.gather(self.texts, tf.maximum(rows, 0)), self.rate, self.seed)
        counts = found.row_lengths()[:, None]
        fits = (counts < length) & (lengths >= 0)
        sampled = found.to_tensor(0, shape=tf.stack([-1, length]))
        return tf.where(fits, sampled, ids), tf.where(fits, counts, lengths)

    @property
    def lengths(self) -> np.ndarray:
        """The lengths of rows to make place for, int64 (n,); most samples do not exceed them."""
        return expected_lengths(self.texts, self.rows.lengths, self.tokenizer, self.rate)


def seeded(rows: RaggedRows | SampledRows, number: tf.Tensor, seeds: tf.Tensor) -> RaggedRows | SampledRows:
    """Return rows whose samples, if any, are those of a batch, given its number and the seeds of its epoch."""
    return rows._replace(seed=batch_seed(number, seeds)) if isinstance(rows, SampledRows) else rows


def content_of(rows: RaggedRows | SampledRows) -> list[Any]:
    """Return what rows are made of, for `Epochs.fingerprint`."""
    return [*rows.rows, np.float64(rows.rate)] if isinstance(rows, SampledRows) else [*rows]


def unseeded(*sides: RaggedRows | SampledRows) -> str:
    """Return the name of the first tokenizer whose samples have no seed, or ""."""
    tokenizers = [side.tokenizer for side in sides if isinstance(side, SampledRows)]
    return next((type(each).__name__ for each in tokenizers if each.sampling == "unseeded"), "")


def expected_lengths(texts: tf.Tensor, lengths: np.ndarray, tokenizer: Any, rate: float) -> np.ndarray:
    """Return numbers of tokens that about 96 of 100 samples of each text do not exceed, int64 (n,).

    They are n (1 + 3/2 (r − 1)) + 2 for a text of n tokens without sampling, where r is the ratio of the mean lengths.
    The factor is rounded up to tenths, so that it is the same each time.
    """
    count = lengths[:_MEASURED].sum()
    sampled = tokenizer.sample(texts[:_MEASURED], rate, [0, 0]).row_lengths().numpy().sum()
    factor = math.ceil(10 * (1 + 1.5 * max(sampled / max(count, 1) - 1, 0))) / 10
    return np.ceil(lengths * factor).astype(np.int64) + 2
