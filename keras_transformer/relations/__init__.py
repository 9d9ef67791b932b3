r"""Which queries may attend to which keys.

A relation is a value: frozen, hashable, serialisable, free of arrays. It answers two questions: an exact
predicate on positions (`related`), and for a tiling of the T×S matrix, which blocks are empty, partial or full
(`blocks`), so that a kernel can skip work without ever changing the answer. `True` means "may attend".

Relations compose: `a & b` (the pairs in both), `a | b` (in either), `~a` (outside).

Axes: B batch, T queries, S keys, N heads.
"""

from keras_transformer.relations.base import And as And
from keras_transformer.relations.base import Not as Not
from keras_transformer.relations.base import Or as Or
from keras_transformer.relations.base import Relation as Relation
from keras_transformer.relations.graphs import Adjacency as Adjacency
from keras_transformer.relations.graphs import Bipartite as Bipartite
from keras_transformer.relations.graphs import GlobalTokens as GlobalTokens
from keras_transformer.relations.identifiers import get as get
from keras_transformer.relations.masks import from_additive as from_additive
from keras_transformer.relations.masks import from_hidden as from_hidden
from keras_transformer.relations.positional import Causal as Causal
from keras_transformer.relations.positional import Dilated as Dilated
from keras_transformer.relations.positional import Full as Full
from keras_transformer.relations.positional import PrefixLM as PrefixLM
from keras_transformer.relations.positional import SlidingWindow as SlidingWindow
from keras_transformer.relations.positional import Strided as Strided
from keras_transformer.relations.symmetries import AUTOMORPHISMS as AUTOMORPHISMS
from keras_transformer.relations.symmetries import INCREASING_RELABELLINGS as INCREASING_RELABELLINGS
from keras_transformer.relations.symmetries import PERMUTATIONS as PERMUTATIONS
from keras_transformer.relations.symmetries import SEPARATE_PERMUTATIONS as SEPARATE_PERMUTATIONS
from keras_transformer.relations.symmetries import TRANSLATIONS as TRANSLATIONS
from keras_transformer.relations.symmetries import kept_under as kept_under
from keras_transformer.relations.tiling import EMPTY as EMPTY
from keras_transformer.relations.tiling import FULL as FULL
from keras_transformer.relations.tiling import PARTIAL as PARTIAL

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
