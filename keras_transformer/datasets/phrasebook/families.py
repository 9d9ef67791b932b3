"""A family of sentences: one template over the product of its axes, and how many of it are taken."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from keras_transformer.datasets.phrasebook.phrases import Pair


def shuffled(items: Sequence[Any], rng: random.Random) -> list[Any]:
    """The items in random order.

    Sorts by `rng.random()`, the one method whose sequence Python promises to keep across versions.
    """
    return sorted(items, key=lambda _: rng.random())


@dataclass(frozen=True)
class Family:
    """Sentences of one shape.

    Args:
        name: What the sentences are about.
        limit: How many sentences are taken at most.
        template: Builds a pair from one element of each axis; None where they do not go together.
        axes: What the template combines.
    """

    name: str
    limit: int
    template: Callable[..., Pair | None]
    axes: tuple[Sequence[Any], ...]

    def __len__(self) -> int:
        """Number of combinations, those that give nothing included."""
        return math.prod(len(axis) for axis in self.axes)

    def pair(self, index: int) -> Pair | None:
        """The pair of one combination, counted with the first axis running fastest."""
        choices = []
        for axis in self.axes:
            index, choice = divmod(index, len(axis))
            choices.append(axis[choice])
        return self.template(*choices)

    def everything(self) -> Iterator[Pair]:
        """All pairs, in a fixed order."""
        pairs = (self.pair(index) for index in range(len(self)))
        return (pair for pair in pairs if pair is not None)

    def sample(self, seed: int) -> list[Pair]:
        """At most `limit` distinct pairs, chosen by the seed."""
        chosen: dict[Pair, None] = {}
        for index in shuffled(range(len(self)), random.Random(f"{self.name}-{seed}")):
            pair = self.pair(index)
            if pair is not None:
                chosen[pair] = None
            if len(chosen) == self.limit:
                break
        return list(chosen)
