"""Training of vocabularies by repeatedly merging the most frequent pair of symbols."""

import collections
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.text.training.corpus import Texts, read_texts
from keras_transformer_options.arguments import ArgumentError, check_positive_integer

_TEXTS_AT_ONCE = 1000


def count_words(texts: Texts, cut: Callable[[tf.Tensor], tf.RaggedTensor]) -> dict[str, int]:
    """Count the words of texts.

    Args:
        texts: texts and paths; see `read_texts`.
        cut: a function of strings (B,) to words (B, None).

    Returns:
        The count of each word, in the order of first occurrence.
    """
    counts: collections.Counter[bytes] = collections.Counter()
    remaining = read_texts(texts)
    while batch := list(itertools.islice(remaining, _TEXTS_AT_ONCE)):
        counts.update(cut(tf.constant([text.encode() for text in batch])).values.numpy().tolist())
    if not counts:
        raise ArgumentError("{texts} must hold at least one word. Received: none")
    return {word.decode(): count for word, count in counts.items()}


def most_frequent_characters(counts: Mapping[str, int], number: int) -> set[str]:
    """Return the most frequent characters of words.

    Args:
        counts: the count of each word.
        number: the maximum number of characters; ties are broken by code point.
    """
    characters: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    return set(sorted(characters, key=lambda character: (-characters[character], character))[:number])


def learn_merges(
    words: Mapping[Sequence[str], int],
    pieces: Sequence[str],
    vocabulary_size: int,
    min_frequency: int,
    merge: Callable[[str, str], str],
) -> list[tuple[str, str, str]]:
    """Learn the merges of byte-pair encoding by repeatedly merging the most frequent pair of symbols.

    Ties between equally frequent pairs are broken by the ids of their symbols, so that the order of the words does not
    matter.

    Args:
        words: words as sequences of symbols, and the count of each.
        pieces: the initial symbols, including special tokens, in the order of their ids.
        vocabulary_size: the maximum number of symbols after merging.
        min_frequency: the minimum number of occurrences of a pair.
        merge: a function of two symbols that returns the merged one.

    Returns:
        (left, right, merged) of each pair, in the order of merging.
    """
    check_positive_integer(vocabulary_size=vocabulary_size, min_frequency=min_frequency)
    if vocabulary_size < len(pieces):
        raise ArgumentError(
            f"{{vocabulary_size}} must be at least {len(pieces)} for these texts: each special token and each symbol "
            "that words are made of needs an id",
            vocabulary_size=vocabulary_size,
        )
    learner = _Learner(words, pieces)
    merges: dict[tuple[str, str, str], None] = {}
    while len(learner.pieces) < vocabulary_size and (pair := learner.most_frequent(min_frequency)):
        left, right = (learner.pieces[id_] for id_ in pair)
        merged = merge(left, right)
        learner.merge(pair, merged)
        # A pair may recur if a different merge results in the same piece; it keeps its rank.
        merges[left, right, merged] = None
    return list(merges)


def pieces(symbols: Sequence[str], merges: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the vocabulary of the initial symbols and the pieces that `learn_merges` adds to them."""
    return list(dict.fromkeys([*symbols, *(merged for _, _, merged in merges)]))


class _Learner:
    """Words as lists of ids, with the count of each pair of ids and the words that contain it."""

    def __init__(self, words: Mapping[Sequence[str], int], pieces: Sequence[str]):
        self.pieces = list(pieces)
        self._ids = {piece: id_ for id_, piece in enumerate(pieces)}
        self._words = [[self._ids[symbol] for symbol in word] for word in words]
        self._counts = list(words.values())
        self._pairs: collections.Counter[tuple[int, int]] = collections.Counter()
        self._places: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        for place, word in enumerate(self._words):
            for pair in itertools.pairwise(word):
                self._pairs[pair] += self._counts[place]
                self._places[pair].add(place)
        self._queue = [(-count, pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._queue)

    def most_frequent(self, min_frequency: int) -> tuple[int, int] | None:
        """Return the most frequent pair, or None if none is frequent enough."""
        while self._queue:
            count, pair = heapq.heappop(self._queue)
            if -count == self._pairs[pair]:
                return pair if -count >= min_frequency else None
            if self._pairs[pair] > 0:  # its count has decreased meanwhile
                heapq.heappush(self._queue, (-self._pairs[pair], pair))
        return None

    def merge(self, pair: tuple[int, int], merged: str) -> None:
        """Merge every occurrence of a pair into one symbol."""
        if merged not in self._ids:
            self._ids[merged] = len(self.pieces)
            self.pieces.append(merged)
        id_ = self._ids[merged]
        changes: Any = collections.Counter()
        for place in self._places.pop(pair):
            word, count = self._words[place], self._counts[place]
            new = _merged(word, pair, id_)
            for old_pair in itertools.pairwise(word):
                changes[old_pair] -= count
            for new_pair in itertools.pairwise(new):
                changes[new_pair] += count
                self._places[new_pair].add(place)
            self._words[place] = new
        for changed, change in changes.items():
            self._pairs[changed] += change
            if change > 0:
                heapq.heappush(self._queue, (-self._pairs[changed], changed))
        self._pairs[pair] = 0


def _merged(word: Sequence[int], pair: tuple[int, int], id_: int) -> list[int]:
    new: list[int] = []
    i = 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            new.append(id_)
            i += 2
        else:
            new.append(word[i])
            i += 1
    return new
