"""Splits of examples for training and validation."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keras_transformer_options.arguments import ArgumentError, check_fraction

Example = TypeVar("Example")


def split(
    examples: Sequence[Example],
    share: float,
    seed: int = 0,
    *,
    key: Callable[[Example], Any] | None = None,
) -> tuple[list[Example], list[Example]]:
    """Split examples into a training set and a held-out set; examples with equal sources stay together.

    A random split of pairs or labelled texts would put some sources, with other targets or labels, into both sets. The
    split depends only on the sources and the seed, not on the order of the examples or the machine.

    Args:
        examples: the examples.
        share: the fraction of the distinct sources to hold out, between 0 and 1; at least one is held out.
        seed: the seed of the split.
        key: a function from an example to its source; by default the first item of a tuple or list, otherwise the
            example. For questions, `key=lambda question: question.context` holds out whole contexts.

    Returns:
        `(train, held_out)`, lists in the order of `examples`.

    Raises:
        ValueError: if `share` is not between 0 and 1, or there are fewer than two distinct sources.

    Example:
        >>> split([("a", 1), ("b", 2), ("a", 3), ("c", 4)], 0.3)
        ([('b', 2), ('c', 4)], [('a', 1), ('a', 3)])
    """
    check_fraction(share=share)
    # Compare representations, because a source may not be hashable, such as a list of words.
    sources = [repr(_source(example) if key is None else key(example)) for example in examples]
    ordered = sorted(set(sources), key=lambda source: hashlib.sha256(f"{seed}\0{source}".encode()).digest())
    if len(ordered) < 2:
        raise ArgumentError(
            "{examples} must have at least two distinct sources. "
            f"Received: {len(sources)} examples with {len(ordered)} distinct sources"
        )
    held_out = set(ordered[: min(max(1, round(share * len(ordered))), len(ordered) - 1)])
    sets: tuple[list[Example], list[Example]] = ([], [])
    for example, source in zip(examples, sources, strict=True):
        sets[source in held_out].append(example)
    return sets


def _source(example: Any) -> Any:
    return example[0] if isinstance(example, tuple | list) else example
