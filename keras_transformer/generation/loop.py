"""The generation loop.

It is written once over `keras.ops`. What differs between running under XLA and running inside an export is the
function that writes into the cache, and nothing else.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer import ops as kt_ops

Tensor = Any


def generate_ids(
    model: Any,
    source_ids: Tensor,
    max_new_tokens: int,
    update: Callable[[Tensor, Tensor, Tensor], Tensor] = kt_ops.slice_update,
) -> dict[str, Tensor]:
    """Greedy decoding with a key/value cache; stops when every row has ended or is full.

    Pad and start ids are never generated. A row whose source is all padding generates nothing.

    Args:
        model: has `encode`, `empty_cache`, `step`, `pad_id`, `start_id` and `end_id`, as `models.Transformer`.
        source_ids: integers (B, S).
        max_new_tokens: M, the longest output, the end token included.
        update: how to write into the cache (see `ops.cache`).

    Returns:
        "ids": int32 (B, M), padding after the end token; "lengths": int32 (B,), the end token included;
        "scores": float32 (B,), the summed log-probabilities.
    """
    batch_size = ops.shape(source_ids)[0]
    context = model.encode(source_ids)

    def unfinished(step: Tensor, _token: Any, _cache: Any, _ids: Any, ended: Tensor, *_: Any) -> Tensor:
        return ops.logical_and(step < max_new_tokens, ops.logical_not(ops.all(ended)))

    def extend(
        step: Tensor, token: Tensor, cache: Any, ids: Tensor, ended: Tensor, lengths: Tensor, scores: Tensor
    ) -> tuple[Any, ...]:
        positions = ops.broadcast_to(step, ops.shape(token))
        logits, cache = model.step(token, cache, context, slot=step, positions=positions, update=update)
        token, log_probability = _most_probable(logits[:, 0], (model.pad_id, model.start_id))
        token = ops.where(ended, model.pad_id, token)
        running = ops.logical_not(ended)
        return (
            step + 1,
            token[:, None],
            cache,
            update(ids, token[:, None], step),
            ops.logical_or(ended, ops.equal(token, model.end_id)),
            lengths + ops.cast(running, "int32"),
            scores + ops.where(running, log_probability, 0.0),
        )

    start = (
        ops.zeros((), "int32"),
        ops.full((batch_size, 1), model.start_id, "int32"),
        model.empty_cache(batch_size, max_new_tokens),
        ops.full((batch_size, max_new_tokens), model.pad_id, "int32"),
        ops.all(ops.equal(source_ids, model.pad_id), axis=-1),
        ops.zeros((batch_size,), "int32"),
        ops.zeros((batch_size,), "float32"),
    )
    _, _, _, ids, _, lengths, scores = ops.while_loop(unfinished, extend, start)
    return {"ids": ids, "lengths": lengths, "scores": scores}


def _most_probable(logits: Tensor, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The best id (B,) of logits (B, V), the lowest where several tie, and its log-probability (B,)."""
    index = ops.arange(logits.shape[-1])
    allowed = ops.all(ops.stack([ops.not_equal(index, id_) for id_ in forbidden]), axis=0)
    candidates = ops.where(allowed, logits, -1e30)
    best = ops.max(candidates, axis=-1, keepdims=True)
    # Not argmax: TensorFlow's lowering of it has no ONNX form.
    ids = ops.min(ops.where(ops.equal(candidates, best), index, logits.shape[-1] - 1), axis=-1)
    return ops.cast(ids, "int32"), best[:, 0] - ops.logsumexp(logits, axis=-1)
