"""Splitting pairs into train, validation and test, such that held-out sentences hold no unseen word."""

import random
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from keras_transformer.datasets.phrasebook.families import shuffled
from keras_transformer.datasets.phrasebook.phrases import Pair

# A family this small is all in train: there is little to combine.
SMALLEST_FAMILY = 40
MINIMUM_COUNT = 5
_PUNCTUATION = string.punctuation + "¿¡"


def words(sentence: str) -> list[str]:
    """The words of a sentence, in lower case and without the punctuation around them."""
    stripped = (word.strip(_PUNCTUATION) for word in sentence.lower().split())
    return [word for word in stripped if word]


def _marked(pair: Pair) -> list[tuple[str, str]]:
    """The words of both sentences, each with its language."""
    return [("es", word) for word in words(pair[0])] + [("en", word) for word in words(pair[1])]


def hold_out(
    families: Mapping[str, Sequence[Pair]], size: int, rng: random.Random
) -> tuple[list[Pair], list[Pair]]:
    """Takes pairs out of families in proportion to their sizes, leaving every word in enough of the others.

    Args:
        families: The pairs of each family.
        size: How many pairs to take out.
        rng: What chooses them.

    Returns:
        The remaining pairs and those taken out, both shuffled; fewer than `size` where no more can be spared.
    """
    counts = Counter(word for pairs in families.values() for pair in pairs for word in _marked(pair))
    total = sum(len(pairs) for pairs in families.values() if len(pairs) >= SMALLEST_FAMILY)
    taken: dict[Pair, None] = {}
    spare: list[Pair] = []

    def take(pair: Pair) -> bool:
        """Takes the pair unless one of its words would become rare."""
        used = Counter(_marked(pair))
        if any(counts[word] - number < MINIMUM_COUNT for word, number in used.items()):
            return False
        counts.subtract(used)
        taken[pair] = None
        return True

    for pairs in families.values():
        if len(pairs) < SMALLEST_FAMILY:
            continue
        quota = size * len(pairs) // total
        for pair in shuffled(pairs, rng):
            if not quota:
                spare.append(pair)
            elif take(pair):
                quota -= 1
    # Rounding down and rare words leave a few places over.
    for pair in shuffled(spare, rng):
        if len(taken) == size:
            break
        take(pair)
    rest = [pair for pairs in families.values() for pair in pairs if pair not in taken]
    return shuffled(rest, rng), shuffled(list(taken), rng)
