"""Arguments of blocks: one for all or one for each, relations, positions and padding."""

from collections.abc import Iterable, Sequence
from typing import Any

from keras import ops

from keras_transformer import relations
from keras_transformer.layers.masks import merge
from keras_transformer.layers.positions.rotary_scaling import RotaryScaling
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


def causal_relation(identifier: Any, name: str = "relation") -> relations.Relation:
    """Return the relation of `relations.get`; raise a ValueError if it relates a token to a later one."""
    relation = relations.get(identifier, name)
    if relation.bandwidth()[1] != 0:
        raise ValueError(f"`{name}` must not relate a token to a later one. Received: {name}={relation!r}")
    return relation


def per_block(name: str, value: Any, num_layers: int) -> list[Any]:
    """Return an argument for each block, given one for all blocks or a list with one for each."""
    if not isinstance(value, list | tuple):
        return [value] * num_layers
    if len(value) != num_layers:
        raise ValueError(
            f"`{name}` must be one for all blocks, or a list with one for each of {num_layers}. "
            f"Received: {name}={value!r}"
        )
    return list(value)


def one_if_equal(values: Sequence[Any]) -> Any:
    """Return the values of blocks as a tuple, or one value for all if they are equal."""
    return values[0] if all(value == values[0] for value in values) else tuple(values)


def max_length_of(max_length: int | None, scalings: Iterable[RotaryScaling | None]) -> int | None:
    """Return the maximum length of a text, as given and as limited by scalings of rotary positions."""
    if max_length is not None:
        check_positive_integer(max_length=max_length)
    limits = [max_length, *(scaling.max_length for scaling in scalings if scaling is not None)]
    return min((limit for limit in limits if limit is not None), default=None)


def relation_positions(attention: Any, positions: Tensor | None) -> Tensor | None:
    """Return the argument `positions` of a block, for positions (B, T) that restart in each text of a packed row.

    It is None if the relation is unchanged by translations: indices in the row then give the same result faster.
    """
    relation = getattr(attention, "relation", None)
    return None if relation is None or relations.TRANSLATIONS in relation.symmetries() else positions


def real_tokens(ids: Tensor, padding_mask: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """Return the Keras mask (B, T) of ids (B, T), given one by padding id and lengths (B,), if any."""
    if lengths is None:
        return padding_mask
    return merge(padding_mask, positions_of(ids) < ops.cast(lengths, "int32")[:, None])


def positions_of(ids: Tensor) -> Tensor:
    """Return the positions (B, T) of ids (B, T), which may be symbolic tensors of unknown length."""
    return ops.cumsum(ops.ones_like(ids, "int32"), axis=1) - 1


def padding_arguments(padding_mask: Tensor | None, lengths: Tensor | None) -> dict[str, Tensor | None]:
    """Return the arguments of a block for padding: the lengths (B,) if given, else the mask."""
    return {"padding_mask": padding_mask} if lengths is None else {"key_lengths": lengths}
