r"""Symmetries of relations: the groups of position maps under which a relation is unchanged.

A pair of maps (f, g) leaves a relation unchanged if, for every query i and key j,
$$\mathrm{related}(f(i), g(j)) = \mathrm{related}(i, j).$$

Four names stand for the same group whatever the relation, and each of these groups contains the next: a translation is
a strictly increasing relabelling; on finitely many positions, a relabelling extends to a permutation; a permutation is
a pair of equal permutations of queries and keys.

The fifth, `AUTOMORPHISMS`, depends on the relation: the permutations of positions that map its edges onto its edges.
Every relation is unchanged under its automorphisms, by definition; where this is the only name, the relation has none
of the other symmetries for all values of its arguments.

A map that leaves two relations unchanged also leaves their intersection, union and complements unchanged, so a
composition has the symmetries that both operands have. It may have more than it lists: the union of an order and its
complement is the full relation, but lists the symmetries of the order.
"""

from keras_transformer_options.arguments import check_one_of

SEPARATE_PERMUTATIONS = "permutations of queries and keys apart"
"""Any permutation of the queries, and any other one of the keys."""
PERMUTATIONS = "permutations"
"""The same permutation of queries and keys."""
INCREASING_RELABELLINGS = "increasing relabellings"
"""Strictly increasing maps of positions."""
TRANSLATIONS = "translations"
"""Maps that add an integer to every position."""
AUTOMORPHISMS = "automorphisms of the graph"
"""Permutations of positions that map the edges of the relation onto its edges."""

_LARGEST_FIRST = (
    SEPARATE_PERMUTATIONS,
    PERMUTATIONS,
    INCREASING_RELABELLINGS,
    TRANSLATIONS,
    AUTOMORPHISMS,
)


def kept_under(largest: str) -> frozenset[str]:
    """Return the names of a group and of the groups it contains, for `Relation.symmetries`.

    Args:
        largest: the name of the largest group, such as `TRANSLATIONS`.

    Returns:
        The set of names, which always contains `AUTOMORPHISMS`.

    Example:
        >>> sorted(kept_under(TRANSLATIONS))
        ['automorphisms of the graph', 'translations']
    """
    check_one_of(_LARGEST_FIRST, largest=largest)
    return frozenset(_LARGEST_FIRST[_LARGEST_FIRST.index(largest) :])
