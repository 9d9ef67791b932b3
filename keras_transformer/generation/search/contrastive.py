"""Contrastive search: choose among candidates for one position by their hidden states."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import prompts
from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.samplers import Contrastive
from keras_transformer.generation.search.sampling import is_invalid, log_normalizer, results_of_one
from keras_transformer.generation.search.top_k import top_k
from keras_transformer.generation.validation import padding_value

Tensor = Any
State = dict[str, Tensor]


def generate_ids(
    model: Any,
    source_ids: Tensor,
    max_new_tokens: int,
    logits_processors: LogitsProcessors,
    sampler: Contrastive,
    prefix_ids: Tensor | None = None,
    limits: Tensor | None = None,
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    padding_mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the results of `loop.generate_ids` for `Contrastive`."""
    check_model(model)
    prompt = prompts.prepare(model, source_ids, prefix_ids, padding_mask)
    step = _Step(model, sampler, logits_processors, max_new_tokens, prompt, limits, kv_cache)

    def unfinished(number: Tensor, _cache: Any, state: State) -> Tensor:
        return ops.logical_and(number < max_new_tokens, ops.logical_not(ops.all(state["ended"])))

    _, _, state = ops.while_loop(unfinished, step, (ops.zeros((), "int32"), *step.start()))
    return results_of_one(state)


def check_model(model: Any) -> None:
    """Raise if a model does not return hidden states."""
    if not (hasattr(model, "hidden_step") and hasattr(model, "logits")):
        raise ValueError(
            "`model` must have `hidden_step` and `logits` for `Contrastive`. "
            f"Received: model of type {type(model).__name__}"
        )


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step of the loop: decode R candidates and keep one of them."""

    model: Any
    sampler: Contrastive
    logits_processors: LogitsProcessors
    max_new_tokens: int
    prompt: prompts.Prompt
    limits: Tensor | None
    kv_cache: kt_ops.KVCache

    @property
    def candidates(self) -> int:
        """R."""
        return min(self.sampler.top_k, self.model.vocabulary_size)

    def start(self) -> tuple[Any, State]:
        """Return the cache with the whole prompt, and the state before the first step."""
        ids = self.prompt.ids
        length = self.prompt.before + 1
        cache = prompts.empty_cache(
            self.model,
            self.prompt,
            length + self.candidates * self.max_new_tokens,
            self.candidates,
            self.kv_cache,
        )
        hidden, cache = self._read(ids, cache, 0, self.prompt.positions, padding_mask=self.prompt.real)
        batch = ops.zeros_like(ops.cast(ids[:, -1], "int32"))
        rows = ops.repeat(batch[:, None], self.max_new_tokens, axis=1)
        seen = ops.concatenate(
            [_unit(hidden), ops.repeat(_unit(hidden[:, -1:]) * 0, self.max_new_tokens, axis=1)], axis=1
        )
        return cache, {
            "logits": ops.cast(self.model.logits(hidden[:, -1:]), "float32")[:, 0],  # (B, V)
            "seen": seen,  # (B, P + M, D)
            "real": ops.concatenate([self.prompt.real, ops.cast(rows, "bool")], axis=1),  # (B, P + M)
            "chosen": rows - 1,  # the index of the kept candidate of each step
            "ids": rows + padding_value(self.model),
            "token_scores": ops.cast(rows, "float32"),
            "lengths": batch,
            "ended": self.prompt.empty,
            "failed_step": batch - 1,
        }

    def __call__(self, number: Tensor, cache: Any, state: State) -> tuple[Tensor, Any, State]:
        logits = state["logits"]
        normalizer = log_normalizer(logits)
        invalid = ops.logical_and(is_invalid(logits, normalizer), ops.logical_not(state["ended"]))
        shaped = self.logits_processors(logits[:, None], state["ids"][:, None], number, self.limits)[:, 0]
        best, index = top_k(shaped, self.candidates)  # (B, R)
        possible = best > FORBIDDEN / 2
        ended = ops.logical_or(ops.logical_or(state["ended"], invalid), ops.logical_not(possible[:, 0]))
        tokens = ops.where(ended[:, None], padding_value(self.model), index)
        hidden, cache = self._read(
            tokens,
            cache,
            self.prompt.before + 1 + number * self.candidates,
            ops.repeat(self.prompt.positions[:, -1:] + 1 + number, self.candidates, axis=1),
            attention_mask=self._visible(state["chosen"], number),
        )
        units = _unit(hidden)
        similarity = ops.einsum("brd,bsd->brs", units, state["seen"])
        similarity = ops.max(ops.where(state["real"][:, None], similarity, -2.0), axis=-1)
        alpha = self.sampler.penalty_alpha
        probabilities = ops.take_along_axis(ops.softmax(shaped, axis=-1), index, axis=1)
        objective = ops.where(possible, (1 - alpha) * probabilities - alpha * similarity, FORBIDDEN)
        kept = ops.top_k(objective, 1)[1]  # (B, 1), ties choose the more probable
        token = ops.take_along_axis(tokens, kept, axis=1)[:, 0]
        own = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), token[:, None])
        score = ops.max(ops.where(own, logits, FORBIDDEN), axis=-1) - normalizer
        column = ops.logical_and(
            ops.equal(ops.arange(self.max_new_tokens), number), ops.logical_not(ended)[:, None]
        )
        at = ops.equal(
            ops.arange(self.prompt.before + 1 + self.max_new_tokens), self.prompt.before + 1 + number
        )
        last = ops.take_along_axis(hidden, kept[..., None], axis=1)  # (B, 1, D)
        stops = ops.logical_or(ended, self.logits_processors.ends(token))
        if self.limits is not None:
            stops = ops.logical_or(stops, number + 1 >= self.limits)
        new = {
            "logits": ops.cast(self.model.logits(last), "float32")[:, 0],
            "seen": ops.where(at[:, None], _unit(last), state["seen"]),
            "real": ops.logical_or(state["real"], at),
            "chosen": ops.where(ops.equal(ops.arange(self.max_new_tokens), number), kept, state["chosen"]),
            "ids": ops.where(column, token[:, None], state["ids"]),
            "token_scores": ops.where(column, score[:, None], state["token_scores"]),
            "lengths": state["lengths"] + ops.cast(ops.logical_not(ended), "int32"),
            "ended": stops,
            "failed_step": ops.where(
                ops.logical_and(invalid, state["failed_step"] < 0), number, state["failed_step"]
            ),
        }
        return number + 1, cache, new

    def _read(
        self,
        ids: Tensor,
        cache: Any,
        cache_index: Any,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        return prompts.step(
            self.model,
            ids,
            cache,
            self.prompt.context,
            padding_mask,
            "hidden_step",
            cache_index=cache_index,
            positions=positions,
            kv_cache=self.kv_cache,
            **options,
        )

    def _visible(self, chosen: Tensor, number: Tensor) -> Tensor:
        """Return the attention mask (B, R, P + M·R) of the prompt, the kept candidates and each candidate itself."""
        count = self.candidates
        index = ops.arange(count, dtype="int32")
        kept = ops.equal(chosen[..., None], index)[:, None]  # (B, 1, M, R)
        own = np.eye(count, dtype=bool)[None, :, None, :]  # (1, R, 1, R)
        now = ops.reshape(ops.equal(ops.arange(self.max_new_tokens), number), [1, 1, -1, 1])
        entries = ops.logical_or(kept, ops.logical_and(now, own))  # (B, R, M, R)
        entries = ops.reshape(entries, [-1, count, self.max_new_tokens * count])
        prompt = ops.ones((ops.shape(entries)[0], count, self.prompt.before + 1), "bool")
        return ops.concatenate([prompt, entries], axis=2)


def _unit(hidden: Tensor) -> Tensor:
    """Normalize vectors to length 1, in float32."""
    hidden = ops.cast(hidden, "float32")
    return hidden / ops.maximum(ops.sqrt(ops.sum(hidden * hidden, axis=-1, keepdims=True)), 1e-12)
