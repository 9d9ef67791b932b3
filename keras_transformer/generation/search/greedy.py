"""Greedy search."""

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import is_allowed
from keras_transformer.generation.search.interface import State, TokenSearch
from keras_transformer.generation.search.logits import choose, highest, is_invalid
from keras_transformer.typing import Tensor


class GreedySearch(TokenSearch):
    """Choose the best token at every step, for each of R independent hypotheses."""

    def results(self, state: State) -> dict[str, Tensor]:
        """Return the results of `generate_ids`."""
        scores = ops.sum(state["token_scores"], axis=-1)
        return {
            "ids": state["ids"],
            "lengths": state["lengths"],
            "scores": scores,
            "ranking_scores": self._ranking_scores(scores, state["lengths"]),
            "token_scores": state["token_scores"],
            "failed_step": state["failed_step"],
        }

    def _start(self, last_tokens: Tensor, empty: Tensor) -> State:
        rows = ops.shape(last_tokens)[0]
        per_hypothesis, per_token = (rows, self.hypotheses), (rows, self.hypotheses, self.max_new_tokens)
        return {
            "last_tokens": ops.tile(last_tokens[:, None], (1, self.hypotheses)),
            "ids": ops.full(per_token, self.padding_value, "int32"),
            "token_scores": ops.zeros(per_token, "float32"),
            "lengths": ops.zeros(per_hypothesis, "int32"),
            "ended": ops.tile(empty[:, None], (1, self.hypotheses)),
            "failed_step": ops.full((rows,), -1, "int32"),
        }

    def _visible(self, state: State) -> Tensor:
        own = np.tile(np.eye(self.hypotheses, dtype=bool), (1, self.max_new_tokens))
        return ops.convert_to_tensor(own[None])

    def _advance(self, state: State, logits: Tensor) -> State:
        step = state["step"]
        log_probabilities = ops.log_softmax(logits)  # (B, R, V)
        invalid = ops.logical_and(is_invalid(log_probabilities), ops.logical_not(state["ended"]))
        token, best = self._next(state, logits)
        score = choose(log_probabilities, token)  # without the constraints
        # A sequence ends where all tokens are forbidden.
        stops = ops.logical_or(ops.logical_or(state["ended"], invalid), ops.logical_not(is_allowed(best)))
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
            "token_scores": ops.where(column, score[:, :, None], state["token_scores"]),
            "lengths": state["lengths"] + ops.cast(ops.logical_not(stops), "int32"),
            "ended": ended,
            "failed_step": ops.where(failed, step, state["failed_step"]),
        }

    def _next(self, state: State, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen tokens (B, R) and the highest candidate (B, R), from logits (B, R, V)."""
        return self._choose(self._candidates(state, logits), state["step"])

    def _candidates(self, state: State, logits: Tensor) -> Tensor:
        """Return the logits (B, R, V) to choose from, `FORBIDDEN` for tokens that must not be chosen."""
        return self._processed(logits, state["ids"], state["step"])

    def _choose(self, candidates: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen tokens (B, R), and the highest candidate (B, R)."""
        del step
        return highest(candidates)

    def _ranking_scores(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores (B, R) by which hypotheses are sorted."""
        del lengths
        return scores


class HighestSearch(GreedySearch):
    """Greedy search that compares only the highest logits with the tokens that must not be chosen."""

    def _next(self, state: State, logits: Tensor) -> tuple[Tensor, Tensor]:
        values, tokens = self._highest(logits, state, 1)
        best = ops.max(values, axis=-1)
        # The first of several maxima has the lowest id.
        return ops.min(
            ops.where(ops.equal(values, best[..., None]), tokens, logits.shape[-1] - 1), axis=-1
        ), best
