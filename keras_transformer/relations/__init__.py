r"""Relations: sets of (query, key) pairs, given by their positions: which query may attend to which key.

A relation is an immutable, hashable and serialisable object that holds no arrays. `related` tests pairs of positions;
`blocks` classifies the blocks of the T×S matrix as empty, partial or full, so that an attention kernel can skip empty
blocks and the mask of full ones. `True` means "may attend".

Relations compose: `a & b` (the pairs in both), `a | b` (the pairs in either), `~a` (the pairs not in `a`).

Axes: B batch, T queries, S keys, N heads.
"""

from typing import Any

from keras_transformer.configuration import retrieve
from keras_transformer.relations.graphs import Adjacency as Adjacency
from keras_transformer.relations.graphs import Bipartite as Bipartite
from keras_transformer.relations.graphs import GlobalTokens as GlobalTokens
from keras_transformer.relations.masks import from_additive as from_additive
from keras_transformer.relations.masks import from_hidden as from_hidden
from keras_transformer.relations.positional import Causal as Causal
from keras_transformer.relations.positional import Dilated as Dilated
from keras_transformer.relations.positional import Full as Full
from keras_transformer.relations.positional import PrefixLM as PrefixLM
from keras_transformer.relations.positional import SlidingWindow as SlidingWindow
from keras_transformer.relations.positional import Strided as Strided
from keras_transformer.relations.relation import EMPTY as EMPTY
from keras_transformer.relations.relation import FULL as FULL
from keras_transformer.relations.relation import PARTIAL as PARTIAL
from keras_transformer.relations.relation import And as And
from keras_transformer.relations.relation import Not as Not
from keras_transformer.relations.relation import Or as Or
from keras_transformer.relations.relation import Relation as Relation
from keras_transformer.relations.symmetries import AUTOMORPHISMS as AUTOMORPHISMS
from keras_transformer.relations.symmetries import INCREASING_RELABELLINGS as INCREASING_RELABELLINGS
from keras_transformer.relations.symmetries import PERMUTATIONS as PERMUTATIONS
from keras_transformer.relations.symmetries import SEPARATE_PERMUTATIONS as SEPARATE_PERMUTATIONS
from keras_transformer.relations.symmetries import TRANSLATIONS as TRANSLATIONS
from keras_transformer.relations.symmetries import kept_under as kept_under

__all__ = [
    "AUTOMORPHISMS",
    "EMPTY",
    "FULL",
    "INCREASING_RELABELLINGS",
    "PARTIAL",
    "PERMUTATIONS",
    "SEPARATE_PERMUTATIONS",
    "TRANSLATIONS",
    "Adjacency",
    "And",
    "Bipartite",
    "Causal",
    "Dilated",
    "Full",
    "GlobalTokens",
    "Not",
    "Or",
    "PrefixLM",
    "Relation",
    "SlidingWindow",
    "Strided",
    "from_additive",
    "from_hidden",
    "get",
    "kept_under",
]

_NAMES: dict[str, type[Relation]] = {"bipartite": Bipartite, "causal": Causal, "full": Full}


def get(identifier: Relation | str | dict[str, Any] | None, name: str = "relation") -> Relation:
    """Retrieve a relation, as `keras.initializers.get` retrieves an initializer.

    Args:
        identifier: a relation, its serialised config, "full", "causal", "bipartite", or None for `Full()`.
        name: the name of the argument in errors.
    """
    if identifier is None:
        return Full()
    expectation = f"be a Relation, its config, None or one of {sorted(_NAMES)}"
    return retrieve(Relation, _NAMES, expectation, **{name: identifier})
