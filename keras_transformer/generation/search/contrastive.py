"""Contrastive search: choose among candidates for one position by their hidden states."""

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN, is_allowed
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search.interface import Inputs, SingleSequenceSearch, State
from keras_transformer.generation.search.logits import is_invalid
from keras_transformer.generation.search.top_k import top_k
from keras_transformer.ops.indexing import pick
from keras_transformer.typing import Tensor


class ContrastiveSearch(SingleSequenceSearch):
    """Decode R candidates for the next token in each step, and keep one of them."""

    def __init__(self, inputs: Inputs, decoder: PromptedModel) -> None:
        super().__init__(inputs, decoder)
        self.candidates = min(self.sampler.top_k, self.model.vocabulary_size)

    def start(self) -> State:
        """Return the state before the first step; the cache has the full prompt."""
        decoder, prompt = self.decoder, self.decoder.prompt
        length = decoder.before + 1 + self.candidates * self.max_new_tokens
        hidden, cache = decoder.step(
            prompt.ids,
            decoder.empty_cache(length, self.candidates),
            0,
            prompt.positions,
            padding_mask=prompt.real,
            method="hidden_step",
        )
        state = super().start()
        seen = ops.concatenate(
            [_unit(hidden), ops.repeat(_unit(hidden[:, -1:]) * 0, self.max_new_tokens, axis=1)], axis=1
        )
        zeros = ops.zeros_like(state["ids"])
        return {
            **state,
            "cache": decoder.repeat(cache, self.candidates),
            "logits": ops.cast(self.model.logits(hidden[:, -1:]), "float32")[:, 0],  # (B, V)
            "seen": seen,  # (B, P + M, D)
            "real": ops.concatenate([prompt.real, ops.cast(zeros, "bool")], axis=1),  # (B, P + M)
            "chosen": zeros - 1,  # the index of the kept candidate of each step
        }

    def step(self, state: State) -> State:
        """Decode R candidates and keep one of them."""
        step, logits, decoder = state["step"], state["logits"], self.decoder
        log_probabilities = ops.log_softmax(logits)
        invalid = ops.logical_and(is_invalid(log_probabilities), ops.logical_not(state["ended"]))
        processed = self._processed(logits[:, None], state["ids"][:, None], step)[:, 0]
        best, index = top_k(processed, self.candidates)  # (B, R)
        possible = is_allowed(best)
        ended = ops.logical_or(ops.logical_or(state["ended"], invalid), ops.logical_not(possible[:, 0]))
        tokens = ops.where(ended[:, None], self.padding_value, index)
        first = decoder.before + 1  # the index of the first candidate
        hidden, cache = decoder.step(
            tokens,
            state["cache"],
            first + step * self.candidates,
            ops.repeat(decoder.last_positions + 1 + step, self.candidates, axis=1),
            method="hidden_step",
            attention_mask=self._visible(state["chosen"], step),
        )
        units = _unit(hidden)
        similarity = ops.einsum("brd,bsd->brs", units, state["seen"])
        similarity = ops.max(ops.where(state["real"][:, None], similarity, -2.0), axis=-1)
        alpha = self.sampler.penalty_alpha
        probabilities = ops.take_along_axis(ops.softmax(processed, axis=-1), index, axis=1)
        objective = ops.where(possible, (1 - alpha) * probabilities - alpha * similarity, FORBIDDEN)
        kept = ops.top_k(objective, 1)[1]  # (B, 1), ties choose the more probable
        token = ops.take_along_axis(tokens, kept, axis=1)[:, 0]
        score = pick(log_probabilities, token[:, None])[:, 0]
        column = ops.logical_and(
            ops.equal(ops.arange(self.max_new_tokens), step), ops.logical_not(ended)[:, None]
        )
        at = ops.equal(ops.arange(first + self.max_new_tokens), first + step)
        last = ops.take_along_axis(hidden, kept[..., None], axis=1)  # (B, 1, D)
        stops = ops.logical_or(ended, self.logits_processors.ends(token))
        if self.limits is not None:
            stops = ops.logical_or(stops, step + 1 >= self.limits)
        failed = ops.logical_and(invalid, state["failed_step"] < 0)
        return {
            "step": step + 1,
            "cache": decoder.select(cache, ops.repeat(kept, self.candidates, axis=1)),
            "logits": ops.cast(self.model.logits(last), "float32")[:, 0],
            "seen": ops.where(at[:, None], _unit(last), state["seen"]),
            "real": ops.logical_or(state["real"], at),
            "chosen": ops.where(ops.equal(ops.arange(self.max_new_tokens), step), kept, state["chosen"]),
            "ids": ops.where(column, token[:, None], state["ids"]),
            "token_scores": ops.where(column, score[:, None], state["token_scores"]),
            "lengths": state["lengths"] + ops.cast(ops.logical_not(ended), "int32"),
            "ended": stops,
            "failed_step": ops.where(failed, step, state["failed_step"]),
        }

    def _visible(self, chosen: Tensor, step: Tensor) -> Tensor:
        """Return the attention mask (B, R, P + M·R) of the prompt, the kept candidates and each candidate itself."""
        count = self.candidates
        index = ops.arange(count, dtype="int32")
        kept = ops.equal(chosen[..., None], index)[:, None]  # (B, 1, M, R)
        own = np.eye(count, dtype=bool)[None, :, None, :]  # (1, R, 1, R)
        now = ops.reshape(ops.equal(ops.arange(self.max_new_tokens), step), [1, 1, -1, 1])
        entries = ops.logical_or(kept, ops.logical_and(now, own))  # (B, R, M, R)
        entries = ops.reshape(entries, [-1, count, self.max_new_tokens * count])
        prompt = ops.ones((ops.shape(entries)[0], count, self.decoder.before + 1), "bool")
        return ops.concatenate([prompt, entries], axis=2)


def _unit(hidden: Tensor) -> Tensor:
    """Normalize vectors to length 1, in float32."""
    hidden = ops.cast(hidden, "float32")
    return hidden / ops.maximum(ops.sqrt(ops.sum(hidden * hidden, axis=-1, keepdims=True)), 1e-12)
