"""Splits of examples for training and validation."""

import collections
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from keras_transformer_options.arguments import ArgumentError, check_fraction

Example = TypeVar("Example")
_MANY = 10
_LOGGER = logging.getLogger("keras_transformer")


def split(
    examples: Sequence[Example],
    share: float,
    seed: int = 0,
    *,
    key: Callable[[Example], Any] | None = None,
    strata: Callable[[Example], Any] | None = None,
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
        strata: a function from an example to its class, to hold out the fraction `share` of each class: at least one
            source of a class with two or more. By default the fraction is that of all sources.

    Returns:
        `(train, held_out)`, lists in the order of `examples`. The logger "keras_transformer" warns if a repeated
        source is more than half of the held-out examples, or more than a tenth and twice as many as the others on
        average.

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
    held_out = set()
    for group in _groups(examples, sources, ordered, strata):
        at_most = len(group) - (len(group) > 1 or strata is not None)
        held_out.update(group[: min(max(1, round(share * len(group))), at_most)])
    sets: tuple[list[Example], list[Example]] = ([], [])
    for example, source in zip(examples, sources, strict=True):
        sets[source in held_out].append(example)
    _warn_of_repeats([source for source in sources if source in held_out])
    return sets


def _groups(
    examples: Sequence[Example],
    sources: Sequence[str],
    ordered: list[str],
    strata: Callable[[Example], Any] | None,
) -> list[list[str]]:
    """Return the sources in groups by class."""
    if strata is None:
        return [ordered]
    classes: dict[str, Any] = {}
    for example, source in zip(examples, sources, strict=True):
        class_ = strata(example)
        classes[source] = min(classes.get(source, class_), class_, key=repr)  # in any order of the examples
    groups: dict[Any, list[str]] = {}
    for source in ordered:
        groups.setdefault(classes[source], []).append(source)
    return list(groups.values())


def _warn_of_repeats(held_out: Sequence[str]) -> None:
    """Warn if one source, such as a text that is repeated, has a large part of the held-out examples."""
    sources = collections.Counter(held_out)
    for source, count in sources.most_common(1):
        others, num_others = len(held_out) - count, len(sources) - 1
        is_frequent = count > len(held_out) / 10 and count * num_others > 2 * others
        if count >= _MANY and (is_frequent or count > others):
            _LOGGER.warning(
                "%d of the %d held-out examples have the same source, the others have %d sources. Metrics depend on it "
                "more than on others; remove repetitions from the data. The source: %.100s",
                count,
                len(held_out),
                num_others,
                source,
            )


def _source(example: Any) -> Any:
    return example[0] if isinstance(example, tuple | list) else example
