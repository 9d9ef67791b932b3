"""Byte-pair encoding of words in the TensorFlow graph."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import shifted

_NEVER = np.iinfo(np.int32).max


class MergeDropout(NamedTuple):
    """BPE-dropout: each round skips each possible merge with a probability.

    Attributes:
        rate: the probability.
        seed: integers (2,).

    References:
        Provilkov et al., "BPE-Dropout: Simple and Effective Subword Regularization" (2020), algorithm 1.
    """

    rate: float | tf.Tensor
    seed: tf.Tensor

    def keeps(self, count: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Return a mask (count,) of the merges to keep in round `number`."""
        seed = tf.random.experimental.stateless_fold_in(self.seed, number)
        return tf.random.stateless_uniform([count], seed) >= self.rate


class PairMerger:
    """Merge the symbols of words into pieces: each round merges the pair of highest priority in every word.

    Args:
        ids: pieces and their ids.
        merges: the pairs of pieces to merge, in order of priority.

    Raises:
        ValueError: if a merge is not a pair, or a piece of it or their concatenation is not in `ids`.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[Sequence[str]]):
        ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, pair in enumerate(merges):
            if len(pair) != 2 or any(piece not in ids for piece in (*pair, "".join(pair))):
                raise ValueError(
                    "`merges` must hold pairs of pieces whose concatenation is a piece of the vocabulary, too. "
                    f"Received: merges[{rank}]={pair!r}, with {[p for p in (*pair, ''.join(pair)) if p not in ids]} "
                    "not in the vocabulary"
                )
            ranks[ids[pair[0]], ids[pair[1]]] = rank, ids["".join(pair)]
        self.merges = merges
        self._size = max(ids.values()) + 1
        pairs = sorted((left * self._size + right, *ranks[left, right]) for left, right in ranks)
        keys, order, merged = np.array([*pairs, (np.iinfo(np.int64).max, _NEVER, 0)], np.int64).T
        self._one_at_a_time = _merges_to_earlier_pieces(ranks, self._size)
        with tf.init_scope(), tf.device("CPU"):
            self._keys = tf.constant(keys, tf.int64)
            self._ranks = tf.constant(order, tf.int32)
            self._merged = tf.constant(merged, tf.int32)

    def __call__(
        self,
        symbols: tf.Tensor,
        places: tf.Tensor,
        num_words: tf.Tensor,
        dropout: "MergeDropout | None" = None,
    ) -> tf.RaggedTensor:
        """Merge the symbols of each word.

        Args:
            symbols: int32 ids (N,), concatenated over all words.
            places: the word of each symbol, int32 (N,), ascending.
            num_words: the number of words, W.
            dropout: BPE-dropout, which skips merges at random; by default none.

        Returns:
            int32 ids (W, None).
        """
        nothing = tf.zeros([0], tf.int32)
        _, _, ids, rows, _ = tf.while_loop(
            lambda symbols, *_: tf.size(symbols) > 0,
            lambda *state: self._round(*state, dropout),
            (symbols, places, nothing, nothing, tf.constant(0)),
            shape_invariants=(*(tf.TensorShape([None]),) * 4, tf.TensorShape([])),
        )
        order = tf.argsort(rows, stable=True)
        return tf.RaggedTensor.from_value_rowids(
            tf.gather(ids, order),
            tf.cast(tf.gather(rows, order), tf.int64),
            tf.cast(num_words, tf.int64),
            validate=False,
        )

    def _round(
        self,
        symbols: tf.Tensor,
        words: tf.Tensor,
        ids: tf.Tensor,
        rows: tf.Tensor,
        number: tf.Tensor,
        dropout: "MergeDropout | None",
    ) -> tuple[tf.Tensor, ...]:
        """Merge the pair of highest priority in each word; move words without mergeable pairs to `ids` and `rows`."""
        keys = tf.cast(symbols, tf.int64) * self._size + tf.cast(shifted(symbols, -1, 0), tf.int64)
        entries = tf.searchsorted(self._keys, keys)
        mergeable = (tf.gather(self._keys, entries) == keys) & (words == shifted(words, -1, -1))
        if dropout is not None:
            mergeable &= dropout.keeps(tf.size(symbols), number)
        ranks = tf.where(mergeable, tf.gather(self._ranks, entries), _NEVER)
        first = tf.gather(tf.math.segment_min(ranks, words), words)
        unfinished = first < _NEVER
        here = self._non_overlapping(unfinished & (ranks == first), words)
        merged = tf.where(here, tf.gather(self._merged, entries), symbols)
        kept = unfinished & ~shifted(here, 1, False)
        finished = ~unfinished
        return (
            tf.boolean_mask(merged, kept),
            tf.boolean_mask(words, kept),
            tf.concat([ids, tf.boolean_mask(symbols, finished)], axis=0),
            tf.concat([rows, tf.boolean_mask(words, finished)], axis=0),
            number + 1,
        )

    def _non_overlapping(self, candidates: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """Return a mask of candidate pairs that do not overlap: in a, a, a only the first pair."""
        places = tf.range(tf.size(candidates))
        if self._one_at_a_time:
            earliest = tf.math.segment_min(tf.where(candidates, places, _NEVER), words)
            return candidates & (places == tf.gather(earliest, words))
        # The distance of each position from the last one that is not a candidate.
        others = tf.concat([[-1], tf.boolean_mask(places, ~candidates)], axis=0)
        run = places - tf.gather(others, tf.cumsum(tf.cast(~candidates, tf.int32)))
        return candidates & (run % 2 == 1)


def _merges_to_earlier_pieces(ranks: Mapping[tuple[int, int], tuple[int, int]], size: int) -> bool:
    """Return whether a merge results in a piece that an earlier merge uses; equal pairs are then merged one by one."""
    used = np.full(size, _NEVER)
    for pair, (rank, _) in ranks.items():
        for id_ in pair:
            used[id_] = min(used[id_], rank)
    return any(used[merged] < rank for rank, merged in ranks.values())
