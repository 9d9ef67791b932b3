r"""The groups of position maps that a relation may be unchanged under.

A pair of maps (f, g) leaves a relation unchanged if, for every query i and key j,
$$\mathrm{related}(f(i), g(j)) = \mathrm{related}(i, j).$$

Four of the names stand for one group each, whatever the relation, and each group holds the next: positions are
integers, and on finitely many of them a translation is a strictly increasing relabelling, which is part of a
permutation, which is the same permutation on both sides.

The fifth, `AUTOMORPHISMS`, is relative to the relation: those permutations of positions that map its own edges
onto its edges. Every relation is unchanged under these, by definition; where it is the only name listed, there is
nothing more to say that holds for the whole family.

What leaves two relations unchanged leaves their intersection, their union and their complements unchanged. So
the symmetries of a composition contain the common ones of its parts, and intersecting the names is sound: a name
of a fixed group means the same in both sets, and `AUTOMORPHISMS` is true of anything. It may say too little: the
union of an order and its complement is complete, but lists what the order does.
"""

from keras_transformer.arguments import check_one_of

SEPARATE_PERMUTATIONS = "permutations of queries and keys apart"
PERMUTATIONS = "permutations"
INCREASING_RELABELLINGS = "increasing relabellings"
TRANSLATIONS = "translations"
AUTOMORPHISMS = "automorphisms of the graph"

_EACH_HOLDS_THE_NEXT = (
    SEPARATE_PERMUTATIONS,
    PERMUTATIONS,
    INCREASING_RELABELLINGS,
    TRANSLATIONS,
    AUTOMORPHISMS,
)


def kept_under(largest: str) -> frozenset[str]:
    """A group's name and those of all that follow from it, for a relation's `symmetries`.

    Args:
        largest: one of this module's names.

    Returns:
        Names, `AUTOMORPHISMS` always among them.

    Raises:
        ValueError: where there is no such name.

    Example:
        >>> sorted(kept_under(TRANSLATIONS))
        ['automorphisms of the graph', 'translations']
    """
    check_one_of(_EACH_HOLDS_THE_NEXT, largest=largest)
    return frozenset(_EACH_HOLDS_THE_NEXT[_EACH_HOLDS_THE_NEXT.index(largest) :])
