"""A generated Spanish-English phrasebook, for trying a translation pipeline end to end.

The sentences come from a closed grammar written for this project: a few hundred words and some eighty
templates, with agreement, conjugation and word order of both languages. Each Spanish sentence has one English
translation here and each English one has one Spanish source, and held-out sentences are new combinations of
words seen in training. So a small model can learn it almost completely; its score says that a pipeline works
and nothing about real translation.
"""

import random

from keras_transformer.datasets.phrasebook import (
    actions,
    descriptions,
    numbers_and_time,
    places,
    table_and_shop,
)
from keras_transformer.datasets.phrasebook.families import shuffled
from keras_transformer.datasets.phrasebook.phrases import Pair
from keras_transformer.datasets.phrasebook.split import hold_out

__all__ = ["FAMILIES", "generate", "load_data"]

FAMILIES = (
    *descriptions.FAMILIES,
    *numbers_and_time.FAMILIES,
    *actions.FAMILIES,
    *places.FAMILIES,
    *table_and_shop.FAMILIES,
)


def generate(seed: int = 0) -> dict[str, list[Pair]]:
    """Generates distinct pairs from every template.

    Args:
        seed: Chooses which combinations of a large template are taken; the same seed gives the same pairs
            on every machine.

    Returns:
        The (Spanish, English) pairs of each family of sentences, by its name.

    Example:
        >>> families = generate(seed=0)
        >>> ("Son las tres y cuarto.", "It is a quarter past three.") in families["clock"]
        True
    """
    seen: set[Pair] = set()
    families: dict[str, list[Pair]] = {}
    for family in FAMILIES:
        families[family.name] = [pair for pair in family.sample(seed) if pair not in seen]
        seen.update(families[family.name])
    return families


def load_data(
    num_pairs: int | None = None, seed: int = 0, *, num_validation: int = 1000, num_test: int = 1500
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Loads the phrasebook as train, validation and test pairs.

    No sentence of either language stands in two of the lists, and every word of a held-out sentence occurs
    at least five times in train.

    Args:
        num_pairs: Number of pairs in the three lists together; None for all.
        seed: Chooses the sentences and the split.
        num_validation: Number of validation pairs.
        num_test: Number of test pairs.

    Returns:
        Three lists of (Spanish, English) pairs: train, validation, test.

    Raises:
        ValueError: If the sizes are negative, or more than the phrasebook holds or can spare.

    Example:
        >>> train, validation, test = load_data()
        >>> len(validation), len(test)
        (1000, 1500)
    """
    for name, value in (("num_validation", num_validation), ("num_test", num_test)):
        if value < 0:
            raise ValueError(f"`{name}` must not be negative. Received: {name}={value}")
    families = generate(seed)
    rng = random.Random(f"split-{seed}")
    available = sum(len(pairs) for pairs in families.values())
    held_out = num_validation + num_test
    if num_pairs is not None:
        if not held_out < num_pairs <= available:
            raise ValueError(
                f"`num_pairs` must be more than num_validation + num_test = {held_out} and at most "
                f"{available}. Received: num_pairs={num_pairs}"
            )
        kept = set(shuffled([pair for pairs in families.values() for pair in pairs], rng)[:num_pairs])
        families = {name: [pair for pair in pairs if pair in kept] for name, pairs in families.items()}
    train, held = hold_out(families, held_out, rng)
    if len(held) < held_out:
        raise ValueError(
            f"`num_validation` + `num_test` must be at most {len(held)}, so that every held-out word is "
            f"also in train. Received: num_validation={num_validation}, num_test={num_test}"
        )
    return train, held[:num_validation], held[num_validation:]
