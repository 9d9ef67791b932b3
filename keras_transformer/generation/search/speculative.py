"""Speculative decoding: greedy search with proposals of a draft model."""

import dataclasses
from typing import Any

from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import prompts
from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.samplers import Speculative
from keras_transformer.generation.search.sampling import (
    highest,
    is_invalid,
    log_normalizer,
    results_of_one,
)
from keras_transformer.generation.validation import padding_value

Tensor = Any
State = dict[str, Tensor]


def generate_ids(
    model: Any,
    source_ids: Tensor,
    max_new_tokens: int,
    logits_processors: LogitsProcessors,
    sampler: Speculative,
    prefix_ids: Tensor | None = None,
    limits: Tensor | None = None,
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    padding_mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the results of `loop.generate_ids` for `Greedy`, with proposals of `sampler.draft` verified by `model`.

    In each round the draft proposes K tokens and the model reads them in one pass; each row keeps the longest prefix
    that equals its greedy choices and one more token, independently of other rows. A round writes K + 1 entries into
    both caches at the same indices for all rows; rejected entries are marked as empty.
    """
    check_compatible(model, sampler.draft, "draft")
    both = [
        _Reader.of(each, source_ids, prefix_ids, sampler.num_tokens, max_new_tokens, kv_cache, padding_mask)
        for each in (model, sampler.draft)
    ]
    prompt = both[0].prompt
    batch = ops.zeros_like(ops.cast(prompt.ids[:, -1], "int32"))
    limits = batch + max_new_tokens if limits is None else limits
    round_ = _Round(
        both[0], both[1], logits_processors, sampler.num_tokens, max_new_tokens, padding_value(model), limits
    )
    start = {
        "last_tokens": ops.cast(prompt.ids[:, -1], "int32"),
        "ids": ops.repeat(batch[:, None], max_new_tokens, axis=1) + padding_value(model),
        "token_scores": ops.cast(ops.repeat(batch[:, None], max_new_tokens, axis=1), "float32"),
        "lengths": batch,
        "ended": prompt.empty,
        "failed_step": batch - 1,
    }

    def unfinished(number: Tensor, _caches: Any, state: State) -> Tensor:
        return ops.logical_and(number < max_new_tokens, ops.logical_not(ops.all(state["ended"])))

    caches = [each.cache for each in both]
    _, _, state = ops.while_loop(unfinished, round_, (ops.zeros((), "int32"), caches, start))
    return results_of_one(state)


def check_compatible(model: Any, other: Any, argument: str) -> None:
    """Raise if two models differ in vocabulary or special ids, or only one is decoder-only."""
    for name in ("vocabulary_size", "pad_id", "start_id", "end_id"):
        values = getattr(model, name, None), getattr(other, name, None)
        if values[0] != values[1]:
            raise ValueError(f"`{argument}` must have the same {name}. Received: {values[0]} and {values[1]}")
    if is_encoder_decoder(model) != is_encoder_decoder(other):
        raise ValueError(f"`{argument}` must be encoder–decoders, or all decoder-only. Received: one of each")


@dataclasses.dataclass(frozen=True)
class _Reader:
    """A model with its prompt, context and cache."""

    model: Any
    prompt: prompts.Prompt
    cache: Any
    kv_cache: kt_ops.KVCache

    @classmethod
    def of(
        cls,
        model: Any,
        source_ids: Tensor,
        prefix_ids: Tensor | None,
        num_tokens: int,
        steps: int,
        kv_cache: kt_ops.KVCache,
        padding_mask: Tensor | None,
    ) -> "_Reader":
        prompt = prompts.prepare(model, source_ids, prefix_ids, padding_mask)
        cache = prompts.new_cache(model, prompt, num_tokens + 1, steps, kv_cache)
        return cls(model, prompt, cache, kv_cache)

    def read(
        self, ids: Tensor, cache: Any, cache_index: Tensor, positions: Tensor, real: Tensor
    ) -> tuple[Tensor, Any]:
        """Return the float32 logits (B, T, V) of ids (B, T), and the new cache."""
        logits, cache = prompts.step(
            self.model,
            ids,
            cache,
            self.prompt.context,
            cache_index=self.prompt.before + cache_index,
            positions=positions,
            padding_mask=real,
            kv_cache=self.kv_cache,
        )
        return ops.cast(logits, "float32"), cache


@dataclasses.dataclass(frozen=True)
class _Round:
    """A step of the loop: propose K tokens and keep the verified ones."""

    model: _Reader
    draft: _Reader
    logits_processors: LogitsProcessors
    num_tokens: int
    max_new_tokens: int
    padding_value: int
    limits: Tensor

    def __call__(self, number: Tensor, caches: list[Any], state: State) -> tuple[Tensor, list[Any], State]:
        last = self.model.prompt.positions[:, -1:]  # (B, 1)
        cache_index = number * (self.num_tokens + 1)
        ahead = state["lengths"][:, None] + ops.arange(self.num_tokens + 1, dtype="int32")  # (B, K + 1)
        # Rows that have ended or reached their limit write no entries and read no positions.
        active = ops.logical_and(ahead < self.limits[:, None], ops.logical_not(state["ended"])[:, None])
        positions = last + ops.where(active, ahead, 0)
        draft_cache, column, ids = caches[1], state["last_tokens"][:, None], state["ids"]
        read, histories = [], []
        for i in range(self.num_tokens + 1):
            column = ops.where(active[:, i : i + 1], column, self.padding_value)
            read.append(column)
            if i:
                written = ops.equal(ops.arange(self.max_new_tokens), ahead[:, i : i + 1] - 1)
                ids = ops.where(written, column, ids)
            histories.append(ids)
            logits, draft_cache = self.draft.read(
                column, draft_cache, cache_index + i, positions[:, i : i + 1], active[:, i : i + 1]
            )
            column, _ = highest(
                self.logits_processors(logits, ids[:, None], ahead[:, i : i + 1], self.limits)
            )
        proposed = ops.concatenate(read, axis=1)  # (B, K + 1), the last token first
        logits, model_cache = self.model.read(proposed, caches[0], cache_index, positions, active)
        chosen, best = highest(
            self.logits_processors(logits, ops.stack(histories, axis=1), ahead, self.limits)
        )
        state = self._kept(state, proposed, logits, chosen, best, ahead)
        kept = last + state["lengths"][:, None]
        return number + 1, [_forget(model_cache, kept), _forget(draft_cache, kept)], state

    def _kept(
        self, state: State, proposed: Tensor, logits: Tensor, chosen: Tensor, best: Tensor, ahead: Tensor
    ) -> State:
        """Return the state with the tokens that greedy search would have generated."""
        normalizer = log_normalizer(logits)  # (B, K + 1)
        invalid = is_invalid(logits, normalizer)
        stuck = ops.logical_or(invalid, best <= FORBIDDEN / 2)
        # A column is reached if all proposals before it are correct and none has ended or is stuck.
        right = ops.equal(proposed[:, 1:], chosen[:, :-1])
        passed = ops.logical_and(
            right, ops.logical_not(ops.logical_or(stuck, self.logits_processors.ends(chosen))[:, :-1])
        )
        first = ops.logical_not(state["ended"])[:, None]
        reached = ops.cumprod(ops.cast(ops.concatenate([first, passed], axis=1), "int32"), axis=1)
        reached = ops.logical_and(reached > 0, ahead < self.limits[:, None])
        kept = ops.logical_and(reached, ops.logical_not(stuck))
        count = ops.sum(ops.cast(kept, "int32"), axis=1)
        own = ops.where(
            ops.equal(ops.arange(logits.shape[-1], dtype="int32"), chosen[..., None]), logits, FORBIDDEN
        )
        scores = ops.max(own, axis=-1) - normalizer
        offset = ops.arange(self.max_new_tokens, dtype="int32") - state["lengths"][:, None]  # (B, M)
        written = ops.logical_and(offset >= 0, offset < count[:, None])
        column = ops.clip(offset, 0, self.num_tokens)
        lengths = state["lengths"] + count
        ends = ops.any(
            ops.logical_and(reached, ops.logical_or(stuck, self.logits_processors.ends(chosen))), axis=1
        )
        last_tokens = ops.take_along_axis(chosen, ops.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
        failed = ops.logical_and(ops.any(ops.logical_and(reached, invalid), axis=1), state["failed_step"] < 0)
        return {
            "last_tokens": last_tokens,
            "ids": ops.where(written, ops.take_along_axis(chosen, column, axis=1), state["ids"]),
            "token_scores": ops.where(
                written, ops.take_along_axis(scores, column, axis=1), state["token_scores"]
            ),
            "lengths": lengths,
            "ended": ops.logical_or(state["ended"], ops.logical_or(ends, lengths >= self.limits)),
            "failed_step": ops.where(failed, lengths, state["failed_step"]),
        }


def _forget(cache: Any, first: Tensor) -> Any:
    """Mark cache entries at positions ≥ `first` (B, 1) as empty."""
    if isinstance(cache, dict):
        forgotten = {name: _forget(values, first) for name, values in cache.items() if name != "positions"}
        if "positions" in cache:
            forgotten["positions"] = ops.where(cache["positions"] >= first, -1, cache["positions"])
        return {name: forgotten[name] for name in cache}
    return [_forget(each, first) for each in cache] if isinstance(cache, list | tuple) else cache
