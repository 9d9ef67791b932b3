"""What a generation continues: prompts of a decoder, start tokens and target prefixes of an encoder–decoder."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.ops import kv_cache as caches

Tensor = Any


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Tokens that come before the first generated one, the last of each row in the last column.

    Attributes:
        ids: integers (B, P), P ≥ 1.
        real: booleans (B, P), False for padding in front.
        positions: integers (B, P), counted over tokens that are no padding.
        empty: booleans (B,), rows that have nothing to be generated for.
        context: what the encoder has made of the source, or None for a decoder alone.
    """

    ids: Tensor
    real: Tensor
    positions: Tensor
    empty: Tensor
    context: Any

    @property
    def before(self) -> Any:
        """P − 1: how many columns are read before the first step; an integer where it is known."""
        length = self.ids.shape[1]
        return (ops.shape(self.ids)[1] if length is None else length) - 1


def prepare(
    model: Any, source_ids: Tensor, prefix_ids: Tensor | None = None, padding_mask: Tensor | None = None
) -> Prompt:
    """The prompt of a model: its source itself where it has no `encode`, else a start token and the target prefix."""
    if model.pad_id is None:
        real = ops.ones_like(source_ids, "bool") if padding_mask is None else ops.cast(padding_mask, "bool")
    else:
        if padding_mask is not None:
            source_ids = ops.where(padding_mask, source_ids, ops.cast(model.pad_id, source_ids.dtype))
        real = ops.not_equal(source_ids, model.pad_id)
    empty = ops.logical_not(ops.any(real, axis=-1))
    if not hasattr(model, "encode"):
        ids, real = align(source_ids, real)
        return Prompt(ids, real, count_positions(real), empty, None)
    context = model.encode(source_ids)
    ids = ops.full((ops.shape(source_ids)[0], 1), model.start_id, "int32")
    real = ops.ones_like(ids, dtype="bool")  # though a start token may have padding's id
    if prefix_ids is not None:
        real = ops.concatenate([real, ops.not_equal(prefix_ids, model.pad_id)], axis=1)
        ids, real = align(ops.concatenate([ids, ops.cast(prefix_ids, "int32")], axis=1), real)
        return Prompt(ids, real, count_positions(real), empty, context)
    return Prompt(ids, real, ops.zeros_like(ids), empty, context)


def align(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of (B, P) rotated so that its last real token stands last; padding behind comes to the front."""
    length = ops.shape(ids)[1]
    index = ops.arange(length, dtype="int32")
    last = ops.max(ops.where(real, index, -1), axis=-1, keepdims=True)
    index = ops.mod(index + last + 1, length)
    return ops.take_along_axis(ids, index, axis=1), ops.take_along_axis(real, index, axis=1)


def count_positions(real: Tensor) -> Tensor:
    """0, 1, 2, … over what is no padding; 0 for padding in front."""
    return ops.maximum(ops.cumsum(ops.cast(real, "int32"), axis=1) - 1, 0)


def empty_cache(
    model: Any, prompt: Prompt, length: Any, hypotheses: int, update: Callable[..., Tensor]
) -> Any:
    """A cache with room for `length` entries, or for none where it is to grow."""
    if caches.grows(update):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "`update` must write into a cache of a fixed size, as `ops.slice_update` and `ops.select_update` do, "
                f"on the {keras.backend.backend()} backend. Received: update={update.__name__}"
            )
        # Zero, but a zero that TensorFlow cannot know: a size that it knows must not change from step to step.
        length = ops.sum(ops.cast(prompt.empty[:0], "int32"))
    options = {} if hypotheses == 1 else {"hypotheses": hypotheses}
    return model.empty_cache(ops.shape(prompt.ids)[0], length, **options)


def written(visible: Tensor, count: Tensor, update: Callable[..., Tensor]) -> Tensor:
    """Of what a hypothesis may see (B, R, S), the first `count` entries where no others have been written yet."""
    return visible[:, :, :count] if caches.grows(update) else visible


def new_cache(model: Any, prompt: Prompt, hypotheses: int, steps: int, update: Callable[..., Tensor]) -> Any:
    """A cache that holds all of the prompt but its last token, with room for `steps` steps of all hypotheses."""
    cache = empty_cache(model, prompt, prompt.before + hypotheses * steps, hypotheses, update)
    if isinstance(prompt.before, int) and prompt.before == 0:
        return cache
    _, cache = step(
        model,
        prompt.ids[:, :-1],
        cache,
        prompt.context,
        cache_index=0,
        positions=prompt.positions[:, :-1],
        padding_mask=prompt.real[:, :-1],
        update=update,
    )
    return cache


def step(
    model: Any,
    ids: Tensor,
    cache: Any,
    context: Any,
    padding_mask: Tensor | None = None,
    method: str = "step",
    **options: Any,
) -> tuple[Tensor, Any]:
    """`model.step`, or another method of its arguments, of either kind of model.

    A decoder-only model takes no context, and no mask where its `pad_id` says what is padding.
    """
    given = () if context is None else (context,)
    if padding_mask is not None and (given or model.pad_id is None):
        options["padding_mask"] = padding_mask
    return getattr(model, method)(ids, cache, *given, **options)
