"""Texts whose segmentation into tokens is sampled anew in each epoch: BPE-dropout and SentencePiece's sampling."""

import math
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer.data.epochs import Seeds
from keras_transformer.data.storage import RaggedRows, RowsToStore
from keras_transformer_options.arguments import check, is_number

_MEASURED = 8192  # texts, to estimate how much longer samples are


def check_sampling(sampling: Any, **tokenizers: Any) -> bool:
    """Return whether segmentations are sampled; raise a ValueError if a tokenizer cannot sample them."""
    check(is_number(sampling) and 0 <= sampling < 1, "be in [0, 1)", sampling=sampling)
    if not sampling:
        return False
    for argument, tokenizer in tokenizers.items():
        if getattr(tokenizer, "sampling", None) is None:
            raise ValueError(
                f"`sampling` must be 0 for a `{argument}` that cannot sample segmentations. "
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
        factor: the ratio of lengths, with and without sampling, that most samples do not exceed.
        seed: the seed of a batch, see `seeded`.
    """

    rows: RaggedRows
    texts: RaggedRows
    tokenizer: Any
    rate: float
    factor: float
    seed: Seeds = (0,)

    @classmethod
    def of(
        cls, rows: RaggedRows, texts: RaggedRows, tokenizer: Any, rate: float, special_ids: int = 0
    ) -> Self:
        """Estimate `factor` from the first texts; `special_ids` of each text's ids in `rows` are special.

        It is 1 + 3/2 (r − 1), where r is the ratio of the mean numbers of tokens with and without sampling, rounded up
        to tenths, so that it is the same each time.
        """
        count = min(_MEASURED, rows.count)
        samples = cls(rows, texts, tokenizer, rate, 1.0).sample(np.arange(count))
        ratio = (len(samples.flat) + special_ids * count) / max(rows.lengths(0, count).sum(), 1)
        return cls(rows, texts, tokenizer, rate, math.ceil(10 * (1 + 1.5 * max(ratio - 1, 0))) / 10)

    def gather(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample the ids of rows, in the form of `RaggedRows.gather`.

        Samples of `length` tokens or more, which leave no position for an end token, are replaced.
        """
        ids, lengths = self.rows.gather(rows, length)
        sampled, counts = self.sample(np.maximum(rows, 0)).gather(np.arange(len(rows)), length)
        fits = (counts < length) & (lengths >= 0)
        return np.where(fits, sampled, ids), np.where(fits, counts, lengths)

    def sample(self, rows: np.ndarray) -> RaggedRows:
        """Sample the ids of the texts of rows (B,), without special ids."""
        seed = np.random.default_rng(self.seed).integers(2**63 - 1, size=2)
        return RowsToStore.of_tokens(
            self.tokenizer.sample(self.texts.strings(rows), self.rate, seed)
        ).to_rows()

    def lengths(self, start: int, end: int) -> np.ndarray:
        """Return the number of tokens, int64, that about 96 % of the samples of each text do not exceed."""
        return np.ceil(self.rows.lengths(start, end) * self.factor).astype(np.int64) + 2


def seeded(rows: RaggedRows | SampledRows, seed: Seeds) -> RaggedRows | SampledRows:
    """Set the seed of rows with samples; return other rows unchanged."""
    return rows._replace(seed=seed) if isinstance(rows, SampledRows) else rows


def nondeterministic_tokenizer(*sides: RaggedRows | SampledRows | None) -> str:
    """Return the class name of the first tokenizer whose sampler takes no seed, or ""."""
    tokenizers = [side.tokenizer for side in sides if isinstance(side, SampledRows)]
    names = [type(item).__name__ for item in tokenizers if item.sampling == "nondeterministic"]
    return names[0] if names else ""
