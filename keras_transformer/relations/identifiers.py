"""Relations by name or by config."""

from typing import Any

import keras

from keras_transformer.relations.base import Relation
from keras_transformer.relations.graphs import Bipartite
from keras_transformer.relations.positional import Causal, Full

_NAMES: dict[str, type[Relation]] = {"bipartite": Bipartite, "causal": Causal, "full": Full}


def get(identifier: Relation | str | dict[str, Any] | None) -> Relation:
    """The relation that an identifier stands for, as `keras.initializers.get` does.

    Args:
        identifier: a relation; the name of one that takes no arguments ("full", "causal", "bipartite"); its
            serialised config; or None for `Full()`.

    Returns:
        A relation.

    Raises:
        ValueError: for anything else.
    """
    if identifier is None:
        return Full()
    if isinstance(identifier, Relation):
        return identifier
    if isinstance(identifier, str) and identifier in _NAMES:
        return _NAMES[identifier]()
    relation, cause = None, None
    if isinstance(identifier, dict):
        try:
            relation = keras.saving.deserialize_keras_object(identifier)
        except TypeError as error:  # a class that Keras does not know, or arguments that the class refuses
            cause = error
    if isinstance(relation, Relation):
        return relation
    raise ValueError(
        f"`relation` must be a Relation, its config, None or one of {sorted(_NAMES)}. "
        f"Received: relation={identifier!r}"
    ) from cause
