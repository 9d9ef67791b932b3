"""Greedy search and sampling, with independent hypotheses."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.samplers import Beam, Greedy, Sample
from keras_transformer.generation.search import categorical

Tensor = Any
State = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class SamplingSearch:
    """Choose one token per step for each of R independent hypotheses (see `loop`).

    Attributes:
        sampler: greedy, sampling, or a beam of one, which is greedy.
        logits_processors: the constraints.
        max_new_tokens: M.
        padding_value: the id that pads ended sequences.
        rows: integers (B,), the row numbers that seed the noise.
        noise: uniform numbers (B, R, M, V) in place of seeded noise.
        limits: integers (B,), the maximum number of new tokens of each row.
        seed: integers (1,), in place of the sampler's seed.
    """

    sampler: Greedy | Sample | Beam
    logits_processors: LogitsProcessors
    max_new_tokens: int
    padding_value: int
    rows: Tensor | None = None
    noise: Tensor | None = None
    limits: Tensor | None = None
    seed: Tensor | None = None

    @property
    def hypotheses(self) -> int:
        """R."""
        return self.sampler.hypotheses

    def start(self, last_tokens: Tensor, empty: Tensor) -> State:
        """Return the state before the first step, from the last tokens of the prompts (B,)."""
        last_tokens = ops.repeat(last_tokens[:, None], self.hypotheses, axis=1)
        nothing = ops.repeat(ops.zeros_like(last_tokens)[:, :, None], self.max_new_tokens, axis=2)
        return {
            "last_tokens": last_tokens,
            "ids": nothing + self.padding_value,
            "token_scores": ops.cast(nothing, "float32"),
            "lengths": ops.zeros_like(last_tokens),
            "ended": ops.repeat(empty[:, None], self.hypotheses, axis=1),
            "failed_step": ops.zeros_like(last_tokens[:, 0]) - 1,
        }

    def running(self, state: State) -> Tensor:
        """Return True while any hypothesis is running."""
        return ops.logical_not(ops.all(state["ended"]))

    def visible(self, state: State, step: Tensor) -> Tensor | None:
        """Return the attention mask (1, R, M·R) of the cache entries of each hypothesis; None for one."""
        if self.hypotheses == 1:
            return None
        own = np.tile(np.eye(self.hypotheses, dtype=bool), (1, self.max_new_tokens))
        return ops.convert_to_tensor(own[None])

    def advance(self, state: State, logits: Tensor, step: Tensor) -> State:
        """Return the state after one more token, from logits (B, R, V)."""
        normalizer = log_normalizer(logits)  # (B, R)
        invalid = ops.logical_and(is_invalid(logits, normalizer), ops.logical_not(state["ended"]))
        candidates = self.logits_processors(logits, state["ids"], step, self.limits)
        if isinstance(self.sampler, Sample):
            candidates = categorical.draw(candidates, self.sampler, self._noise(logits, step))
        token, best = highest(candidates)
        if isinstance(self.sampler, Sample) or self.logits_processors.changes_logits:
            chosen = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), token[..., None])
            own = ops.max(ops.where(chosen, logits, FORBIDDEN), axis=-1)  # the model's own logit
        else:
            own = best
        # A sequence ends where all tokens are forbidden.
        stops = ops.logical_or(ops.logical_or(state["ended"], invalid), best <= FORBIDDEN / 2)
        token = ops.where(stops, self.padding_value, token)
        column = ops.logical_and(
            ops.equal(ops.arange(self.max_new_tokens), step), ops.logical_not(stops)[:, :, None]
        )
        failed = ops.logical_and(ops.any(invalid, axis=1), state["failed_step"] < 0)
        ended = ops.logical_or(stops, self.logits_processors.ends(token))
        if self.limits is not None:
            ended = ops.logical_or(ended, (step + 1 >= self.limits)[:, None])
        return {
            "last_tokens": token,
            "ids": ops.where(column, token[:, :, None], state["ids"]),
            "token_scores": ops.where(column, (own - normalizer)[:, :, None], state["token_scores"]),
            "lengths": state["lengths"] + ops.cast(ops.logical_not(stops), "int32"),
            "ended": ended,
            "failed_step": ops.where(failed, step, state["failed_step"]),
        }

    def results(self, state: State) -> dict[str, Tensor]:
        """Return the results of `generate_ids`."""
        scores = ops.sum(state["token_scores"], axis=-1)
        ranking = scores
        if isinstance(self.sampler, Beam):
            penalties = ops.convert_to_tensor(self.sampler.penalties(self.max_new_tokens))
            ranking = scores / ops.take(penalties, state["lengths"], axis=0)
        return {
            "ids": state["ids"],
            "lengths": state["lengths"],
            "scores": scores,
            "ranking_scores": ranking,
            "token_scores": state["token_scores"],
            "failed_step": state["failed_step"],
        }

    def _noise(self, logits: Tensor, step: Tensor) -> Tensor:
        if self.noise is not None:
            return ops.take(self.noise, step, axis=2)
        vocabulary = logits.shape[-1]
        seed = self.sampler.seed if self.seed is None else self.seed
        return categorical.uniform(seed, self.rows, self.hypotheses, step, vocabulary)


def results_of_one(state: State) -> dict[str, Tensor]:
    """Return the results of `generate_ids`, from a state of one sequence per row."""
    scores = ops.sum(state["token_scores"], axis=-1)[:, None]
    return {
        "ids": state["ids"][:, None],
        "lengths": state["lengths"][:, None],
        "scores": scores,
        "ranking_scores": scores,
        "token_scores": state["token_scores"][:, None],
        "failed_step": state["failed_step"],
    }


def is_invalid(logits: Tensor, normalizer: Tensor) -> Tensor:
    """Return the mask of logits (…, V) with NaN or +∞, or only −∞, by comparisons that every runtime supports."""
    # The sum of the logits is tested too, because XLA's exponential on a CPU can map NaN to a number. `logical_not` is
    # avoided, because TensorFlow rewrites ¬(a < b) as a ≥ b, which is False for NaN.
    whole = ops.logical_and(ops.sum(logits, axis=-1) < 1e38, ops.abs(normalizer) < 1e38)
    return ops.equal(ops.cast(whole, "int32"), 0)


def log_normalizer(logits: Tensor) -> Tensor:
    """Return log Σ exp of logits (…, V); NaN if one is +∞ or all are −∞."""
    highest = ops.max(logits, axis=-1)
    return ops.log(ops.sum(ops.exp(logits - highest[..., None]), axis=-1)) + highest


def highest(candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best id (B, R) of logits (B, R, V), the lowest one of a tie, and its value."""
    index = ops.arange(candidates.shape[-1], dtype="int32")
    best = ops.max(candidates, axis=-1)
    # `argmax` of TensorFlow is lowered to an operation without ONNX equivalent.
    ids = ops.min(ops.where(ops.equal(candidates, best[..., None]), index, candidates.shape[-1] - 1), axis=-1)
    return ops.cast(ids, "int32"), best
