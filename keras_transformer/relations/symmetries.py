r"""The groups of position maps that a relation may be unchanged under.

A pair of maps (f, g) leaves a relation unchanged if, for every query i and key j,
$$\mathrm{related}(f(i), g(j)) = \mathrm{related}(i, j).$$

Four of the names stand for one group each, for every relation, and each group contains the next: positions are
integers, and on finitely many of them a translation is a strictly increasing relabelling, which is part of a
permutation, which is the same permutation on both sides.

The fifth, `AUTOMORPHISMS`, is relative to the relation: the permutations of positions that map its own edges
onto its edges. Every relation is unchanged under these, by definition; where it is the only name, no other group
leaves the whole family unchanged.

A map that leaves two relations unchanged leaves their intersection, union and complements unchanged. So
the symmetries of a composition contain the common ones of its parts, and intersecting the names is sound: a name
of a fixed group means the same in both sets, and `AUTOMORPHISMS` is true of anything. It may be too
small: the union of an order and its complement is complete, but lists the groups of the order.
"""

from keras_transformer.arguments import check_one_of

SEPARATE_PERMUTATIONS = "permutations of queries and keys apart"
PERMUTATIONS = "permutations"
INCREASING_RELABELLINGS = "increasing relabellings"
TRANSLATIONS = "translations"
AUTOMORPHISMS = "automorphisms of the graph"

_LARGEST_FIRST = (
    SEPARATE_PERMUTATIONS,
    PERMUTATIONS,
    INCREASING_RELABELLINGS,
    TRANSLATIONS,
    AUTOMORPHISMS,
)


def kept_under(largest: str) -> frozenset[str]:
    """Return the names of a group and of the groups it contains, for a relation's `symmetries`.

    Args:
        largest: one of this module's names.

    Returns:
        Names, `AUTOMORPHISMS` always among them.

    Raises:
        ValueError: if there is no such name.

    Example:
        >>> sorted(kept_under(TRANSLATIONS))
        ['automorphisms of the graph', 'translations']
    """
    check_one_of(_LARGEST_FIRST, largest=largest)
    return frozenset(_LARGEST_FIRST[_LARGEST_FIRST.index(largest) :])
