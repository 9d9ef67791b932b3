"""A Spanish-English phrasebook inside the package, for end-to-end tests of a translation pipeline.

Its sentences were generated from a closed grammar of a few hundred words, with one translation each way. Held-out
sentences are new combinations of words seen in training, so a small model can learn them almost completely: its
score shows that a pipeline works, but does not measure real translation.
"""

import gzip
import importlib.resources
import random
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any

from keras_transformer_options.arguments import check_not_negative

__all__ = ["load_data"]

Pair = tuple[str, str]

_SMALLEST_FAMILY = 40  # pairs of smaller families, which have few combinations, are not held out
_MINIMUM_COUNT = 5
_PUNCTUATION = string.punctuation + "¿¡"


def load_data(
    num_pairs: int | None = None, seed: int = 0, *, num_validation: int = 1000, num_test: int = 1500
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Load the phrasebook as train, validation and test pairs.

    No sentence of either language is in two of the lists, and every word of a validation or test sentence occurs at
    least five times in the training pairs.

    Args:
        num_pairs: total number of pairs in the three lists; None for all 24,671.
        seed: seed of the split, and of the choice of pairs if `num_pairs` is given.
        num_validation: number of validation pairs.
        num_test: number of test pairs.

    Returns:
        Three lists of (Spanish, English) pairs: train, validation, test.

    Example:
        >>> train, validation, test = load_data()
        >>> len(train), len(validation), len(test)
        (22171, 1000, 1500)
    """
    check_not_negative(num_validation=num_validation, num_test=num_test)
    families = list(_families().values())
    rng = random.Random(f"split-{seed}")
    available = sum(map(len, families))
    held_out = num_validation + num_test
    if num_pairs is not None:
        if not held_out < num_pairs <= available:
            raise ValueError(
                f"`num_pairs` must be more than num_validation + num_test = {held_out} and at most "
                f"{available}. Received: num_pairs={num_pairs}"
            )
        kept = set(_shuffled([pair for pairs in families for pair in pairs], rng)[:num_pairs])
        families = [[pair for pair in pairs if pair in kept] for pairs in families]
    train, held_out_pairs = _hold_out(families, held_out, rng)
    if len(held_out_pairs) < held_out:
        raise ValueError(
            f"`num_validation` + `num_test` must be at most {len(held_out_pairs)}, so that every held-out word is "
            f"also in train. Received: num_validation={num_validation}, num_test={num_test}"
        )
    return train, held_out_pairs[:num_validation], held_out_pairs[num_validation:]


def _families() -> dict[str, list[Pair]]:
    """Read the pairs of each family of sentences."""
    content = importlib.resources.files(__package__).joinpath("phrasebook.tsv.gz").read_bytes()
    families: dict[str, list[Pair]] = {}
    for line in gzip.decompress(content).decode().splitlines():
        spanish, english, family = line.split("\t")
        families.setdefault(family, []).append((spanish, english))
    return families


def _shuffled(items: Iterable[Any], rng: random.Random) -> list[Any]:
    """Shuffle with `rng.random()`, the only method whose sequence Python guarantees across versions."""
    return sorted(items, key=lambda _: rng.random())


def _hold_out(families: list[list[Pair]], size: int, rng: random.Random) -> tuple[list[Pair], list[Pair]]:
    """Hold out at most `size` pairs, from families in proportion to their sizes; return them and the rest."""
    counts = Counter(word for pairs in families for pair in pairs for word in _words(pair))
    large = [pairs for pairs in families if len(pairs) >= _SMALLEST_FAMILY]
    taken: dict[Pair, None] = {}
    spare: list[Pair] = []

    def take(pairs: list[Pair], number: int) -> list[Pair]:
        """Take pairs whose words remain frequent enough in the others; return the pairs not examined."""
        for index, pair in enumerate(pairs):
            if not number:
                return pairs[index:]
            used = Counter(_words(pair))
            if all(counts[word] - times >= _MINIMUM_COUNT for word, times in used.items()):
                counts.subtract(used)
                taken[pair] = None
                number -= 1
        return []

    for pairs in large:
        spare += take(_shuffled(pairs, rng), size * len(pairs) // sum(map(len, large)))
    # Rounding down and rare words leave a few pairs still to be chosen.
    take(_shuffled(spare, rng), size - len(taken))
    rest = [pair for pairs in families for pair in pairs if pair not in taken]
    return _shuffled(rest, rng), _shuffled(taken, rng)


def _words(pair: Pair) -> list[tuple[int, str]]:
    """Return the words of both sentences in lower case without punctuation, each with its language (0 or 1)."""
    return [(side, word.strip(_PUNCTUATION)) for side in (0, 1) for word in pair[side].lower().split()]
