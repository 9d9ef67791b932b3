"""Speculative decoding: greedy search with proposals of a draft model."""

from typing import Any

from keras import ops

from keras_transformer.generation.constraints import is_allowed
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search.interface import Inputs, SingleSequenceSearch, State
from keras_transformer.generation.search.logits import choose, highest, is_invalid
from keras_transformer.typing import Tensor


class SpeculativeSearch(SingleSequenceSearch):
    """Greedy search with proposals of a draft, verified by the model.

    In each round the draft proposes K tokens and the model reads them in one pass. Each row keeps the proposals up to
    the first that differs from the model's greedy choice, and that choice, independently of other rows. A round writes
    K + 1 entries into both caches at the same indices for all rows; rejected entries are marked as empty.
    """

    def __init__(self, inputs: Inputs, decoder: PromptedModel) -> None:
        super().__init__(inputs, decoder)
        self.num_tokens = self.sampler.num_tokens
        if self.limits is None:
            self.limits = ops.zeros_like(decoder.last_positions[:, 0]) + self.max_new_tokens
        self.draft = PromptedModel.of(
            self.sampler.draft,
            inputs.kv_cache,
            inputs.source_ids,
            inputs.prefix_ids,
            inputs.padding_mask,
            start_ids=inputs.start_ids,
        )

    def start(self) -> State:
        """Return the state before the first round; both caches have the prompt except its last token."""
        return {
            **super().start(),
            "last_tokens": ops.cast(self.decoder.prompt.ids[:, -1], "int32"),
            "cache": self.decoder.read_prompt(self.num_tokens + 1, self.max_new_tokens),
            "draft_cache": self.draft.read_prompt(self.num_tokens + 1, self.max_new_tokens),
        }

    def step(self, state: State) -> State:
        """Propose K tokens and keep the verified ones."""
        last = self.decoder.last_positions  # (B, 1)
        cache_index = state["step"] * (self.num_tokens + 1)
        ahead = state["lengths"][:, None] + ops.arange(self.num_tokens + 1, dtype="int32")  # (B, K + 1)
        # Rows that have ended or reached their limit write no cache entries.
        active = ops.logical_and(ahead < self.limits[:, None], ops.logical_not(state["ended"])[:, None])
        positions = last + ops.where(active, ahead, 0)
        draft_cache, column, ids = state["draft_cache"], state["last_tokens"][:, None], state["ids"]
        columns, histories = [], []
        for i in range(self.num_tokens + 1):
            column = ops.where(active[:, i : i + 1], column, self.padding_value)
            columns.append(column)
            if i:
                written = ops.equal(ops.arange(self.max_new_tokens), ahead[:, i : i + 1] - 1)
                ids = ops.where(written, column, ids)
            histories.append(ids)
            logits, draft_cache = _read(
                self.draft,
                column,
                draft_cache,
                cache_index + i,
                positions[:, i : i + 1],
                active[:, i : i + 1],
            )
            column, _ = highest(self._processed(logits, ids[:, None], ahead[:, i : i + 1]))
        proposed = ops.concatenate(columns, axis=1)  # (B, K + 1), beginning with the last token
        logits, cache = _read(self.decoder, proposed, state["cache"], cache_index, positions, active)
        predicted, best = highest(self._processed(logits, ops.stack(histories, axis=1), ahead))
        new = self._kept(state, proposed, logits, predicted, best, ahead)
        kept = last + new["lengths"][:, None]
        count = (new["lengths"] - state["lengths"])[
            :, None
        ]  # (B, 1), the number of tokens kept in this round
        return {
            **new,
            "step": state["step"] + 1,
            "cache": self.decoder.select(_forget(cache, kept), count),
            "draft_cache": self.draft.select(_forget(draft_cache, kept), count),
        }

    def _kept(
        self, state: State, proposed: Tensor, logits: Tensor, predicted: Tensor, best: Tensor, ahead: Tensor
    ) -> State:
        """Return the state with the tokens that greedy search would have generated."""
        log_probabilities = ops.log_softmax(logits)  # (B, K + 1, V)
        invalid = is_invalid(log_probabilities)
        stuck = ops.logical_or(invalid, ops.logical_not(is_allowed(best)))
        # A column is reached if all proposals before it are correct, no end tokens, and not stuck.
        is_correct = ops.equal(proposed[:, 1:], predicted[:, :-1])
        passed = ops.logical_and(
            is_correct, ops.logical_not(ops.logical_or(stuck, self.logits_processors.ends(predicted))[:, :-1])
        )
        first = ops.logical_not(state["ended"])[:, None]
        reached = ops.cumprod(ops.cast(ops.concatenate([first, passed], axis=1), "int32"), axis=1)
        reached = ops.logical_and(reached > 0, ahead < self.limits[:, None])
        kept = ops.logical_and(reached, ops.logical_not(stuck))
        count = ops.sum(ops.cast(kept, "int32"), axis=1)
        scores = choose(log_probabilities, predicted)
        offset = ops.arange(self.max_new_tokens, dtype="int32") - state["lengths"][:, None]  # (B, M)
        written = ops.logical_and(offset >= 0, offset < count[:, None])
        column = ops.clip(offset, 0, self.num_tokens)
        lengths = state["lengths"] + count
        ends = ops.any(
            ops.logical_and(reached, ops.logical_or(stuck, self.logits_processors.ends(predicted))), axis=1
        )
        last_tokens = ops.take_along_axis(predicted, ops.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
        failed = ops.logical_and(ops.any(ops.logical_and(reached, invalid), axis=1), state["failed_step"] < 0)
        return {
            "last_tokens": last_tokens,
            "ids": ops.where(written, ops.take_along_axis(predicted, column, axis=1), state["ids"]),
            "token_scores": ops.where(
                written, ops.take_along_axis(scores, column, axis=1), state["token_scores"]
            ),
            "lengths": lengths,
            "ended": ops.logical_or(state["ended"], ops.logical_or(ends, lengths >= self.limits)),
            "failed_step": ops.where(failed, lengths, state["failed_step"]),
        }


def _read(
    decoder: PromptedModel, ids: Tensor, cache: Any, cache_index: Tensor, positions: Tensor, real: Tensor
) -> tuple[Tensor, Any]:
    """Return the float32 logits (B, T, V) of ids (B, T), and the new cache."""
    logits, cache = decoder.step(
        ids, cache, decoder.before + cache_index, positions, padding_mask=real, trace=True
    )
    return ops.cast(logits, "float32"), cache


def _forget(cache: Any, first: Tensor) -> Any:
    """Mark cache entries at positions ≥ `first` (B, 1) as empty."""
    if isinstance(cache, dict):
        forgotten = {name: _forget(values, first) for name, values in cache.items() if name != "positions"}
        if "positions" in cache:
            forgotten["positions"] = ops.where(cache["positions"] >= first, -1, cache["positions"])
        return {name: forgotten[name] for name in cache}
    return [_forget(item, first) for item in cache] if isinstance(cache, list | tuple) else cache
