"""Beam search whose hypotheses share one cache that is never reordered."""

import dataclasses
from typing import Any

from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.independent import is_not_finite
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Beam

Tensor = Any
State = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """R running hypotheses and the R best of those that have ended, for each row (see `loop`).

    Each step writes R entries into a row's cache, and they stay where they are. A matrix of ancestors says which
    of the R entries of each step belongs to a hypothesis; it alone follows the hypotheses when they change places.

    Attributes:
        sampler: the beam's settings.
        rules: what may be generated.
        longest: M.
        pad_id: fills up ended sequences.
    """

    sampler: Beam
    rules: Rules
    longest: int
    pad_id: int

    @property
    def hypotheses(self) -> int:
        """R."""
        return self.sampler.num_beams

    def start(self, newest: Tensor, blank: Tensor) -> State:
        """The state before the first step, from the last tokens of the prompts (B,): one hypothesis, R times."""
        newest = ops.repeat(newest[:, None], self.hypotheses, axis=1)
        nothing = ops.repeat(ops.zeros_like(newest)[:, :, None], self.longest, axis=2)
        ids, token_scores = nothing + self.pad_id, ops.cast(nothing, "float32")
        first = ops.equal(ops.arange(self.hypotheses), 0)
        blank = blank[:, None]
        return {
            "newest": newest,
            "ids": ids,
            "token_scores": token_scores,
            "ancestors": nothing,
            "scores": _or_forbidden(ops.logical_and(first, ops.logical_not(blank))),
            "ended_ids": ids,
            "ended_token_scores": token_scores,
            "ended_lengths": ops.zeros_like(newest),
            # A row without a source has one answer, which is empty.
            "ended_ranking": _or_forbidden(ops.logical_and(first, blank)),
            "failed_step": ops.zeros_like(newest[:, 0]) - 1,
        }

    def running(self, state: State) -> Tensor:
        """Whether any hypothesis goes on."""
        return ops.any(_exists(state["scores"]))

    def visible(self, state: State, step: Tensor) -> Tensor:
        """Which entries of the cache each hypothesis may see, (B, R, M·R): its ancestors', and its own."""
        ancestors = self._with_column(state["ancestors"], ops.arange(self.hypotheses), step)
        seen = ops.equal(ancestors[..., None], ops.arange(self.hypotheses))  # (B, R, M, R)
        return ops.reshape(seen, [-1, self.hypotheses, self.longest * self.hypotheses])

    def advance(self, state: State, logits: Tensor, step: Tensor) -> State:
        """The state one token further, from logits (B, R, V)."""
        vocabulary = logits.shape[-1]
        normalizer = ops.logsumexp(logits, axis=-1)[..., None]  # (B, R, 1)
        broken = ops.any(ops.logical_and(is_not_finite(normalizer[..., 0]), _exists(state["scores"])), axis=1)
        shaped = self.rules(logits, state["ids"], step)
        reached = state["scores"][..., None] + ops.minimum(shaped - normalizer, 0.0)
        possible = ops.logical_and(_exists(shaped), _exists(state["scores"])[..., None])
        possible = ops.logical_and(possible, ops.logical_not(broken)[:, None, None])
        scores, parents, tokens = self._best_candidates(ops.where(possible, reached, FORBIDDEN))
        entries = self._with_column(state["ancestors"], ops.arange(self.hypotheses), step)
        own = ops.reshape(
            ops.where(possible, logits - normalizer, FORBIDDEN), [-1, self.hypotheses * vocabulary]
        )
        own = _pick(own, parents * vocabulary + tokens)
        candidates = {
            "ids": self._with_column(_pick(state["ids"], parents), tokens, step),
            "token_scores": self._with_column(_pick(state["token_scores"], parents), own, step),
            "ancestors": _pick(entries, parents),
            "newest": tokens,
            "scores": scores,
        }
        ends = self.rules.ends(tokens)
        ended = self._merge_ended(state, candidates, ends, step + 1)
        going_on = ops.where(ends, FORBIDDEN, scores)
        going_on, order = ops.top_k(going_on, self.hypotheses)
        running = {name: _pick(values, order) for name, values in candidates.items()}
        running["scores"] = going_on
        if self.sampler.early_stopping:
            running["scores"] = self._without_hopeless(going_on, ended["ended_ranking"], step + 1)
        failed = ops.logical_and(broken, state["failed_step"] < 0)
        return {**running, **ended, "failed_step": ops.where(failed, step, state["failed_step"])}

    def results(self, state: State) -> dict[str, Tensor]:
        """What `generate_ids` returns: the best of those that have ended and those cut at the limit."""
        cut = {
            "ids": state["ids"],
            "token_scores": state["token_scores"],
            "scores": state["scores"],
        }
        all_end = ops.ones_like(state["newest"], dtype="bool")
        ended = self._merge_ended(state, cut, all_end, self.longest)
        count = self.sampler.num_return
        found = _exists(ended["ended_ranking"])
        token_scores = ops.where(found[..., None], ended["ended_token_scores"], 0.0)
        absent = ops.convert_to_tensor(float("-inf"), "float32")
        return {
            "ids": ops.where(found[..., None], ended["ended_ids"], self.pad_id)[:, :count],
            "lengths": ops.where(found, ended["ended_lengths"], 0)[:, :count],
            "scores": ops.where(found, ops.sum(token_scores, axis=-1), absent)[:, :count],
            "ranking_scores": ops.where(found, ended["ended_ranking"], absent)[:, :count],
            "token_scores": token_scores[:, :count],
            "failed_step": state["failed_step"],
        }

    def _best_candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score, parent and token (B, C) of the best continuations, from (B, R, V), the best first."""
        hypotheses, vocabulary = self.hypotheses, scores.shape[-1]
        # Each hypothesis has one continuation for each end token, so that many more leave R that go on.
        count = min((1 + len(self.rules.end_ids)) * hypotheses, hypotheses * vocabulary)
        if not self.sampler.diversity:
            found, index = ops.top_k(ops.reshape(scores, [-1, hypotheses * vocabulary]), count)
            return found, index // vocabulary, index % vocabulary
        siblings = min(count, vocabulary)
        found, tokens = ops.top_k(scores, siblings)  # (B, R, siblings)
        rank = ops.cast(ops.arange(siblings), "float32")
        chosen = ops.where(_exists(found), found - self.sampler.diversity * rank, FORBIDDEN)
        flat = [-1, hypotheses * siblings]
        _, index = ops.top_k(ops.reshape(chosen, flat), count)
        return (
            _pick(ops.reshape(found, flat), index),
            index // siblings,
            _pick(ops.reshape(tokens, flat), index),
        )

    def _merge_ended(self, state: State, candidates: State, ends: Tensor, length: Any) -> State:
        """The R best of the sequences that have ended, those that now end among the R best candidates included."""
        count = self.hypotheses
        new = {name: values[:, :count] for name, values in candidates.items()}
        penalties = ops.convert_to_tensor(self.sampler.penalties(self.longest))
        ranking = new["scores"] / ops.take(penalties, length, axis=0)
        ends = ops.logical_and(ends[:, :count], _exists(new["scores"]))
        ranking = ops.where(ends, ranking, FORBIDDEN)
        best, order = ops.top_k(ops.concatenate([state["ended_ranking"], ranking], axis=1), count)
        lengths = ops.zeros_like(state["ended_lengths"]) + length

        def merged(name: str, values: Tensor) -> Tensor:
            return _pick(ops.concatenate([state[f"ended_{name}"], values], axis=1), order)

        return {
            "ended_ids": merged("ids", new["ids"]),
            "ended_token_scores": merged("token_scores", new["token_scores"]),
            "ended_lengths": merged("lengths", lengths),
            "ended_ranking": best,
        }

    def _without_hopeless(self, scores: Tensor, ended_ranking: Tensor, length: Tensor) -> Tensor:
        """The running scores, `FORBIDDEN` in rows where none can enter the n-best any more.

        Scores only fall, and what divides them is largest at the next length or at the last.
        """
        penalties = ops.convert_to_tensor(self.sampler.penalties(self.longest))
        following = ops.take(penalties, ops.minimum(length + 1, self.longest), axis=0)
        attainable = ops.max(scores, axis=1) / ops.maximum(following, penalties[-1])
        worst = ended_ranking[:, self.sampler.num_return - 1]
        # At the limit the running ones compete as they are.
        hopeless = ops.logical_and(attainable <= worst, length < self.longest)
        return ops.where(hopeless[:, None], FORBIDDEN, scores)

    def _with_column(self, values: Tensor, column: Tensor, step: Tensor) -> Tensor:
        """(B, R, M) with `column`, (B, R) or (R,), written at `step`."""
        at = ops.equal(ops.arange(self.longest), step)
        return ops.where(at, ops.cast(column, values.dtype)[..., None], values)


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values[b, index[b, r]] for (B, J, …) and (B, R), by one gather over all rows."""
    inner = [int(size) for size in values.shape[2:]]
    count = values.shape[1]
    row = ops.arange(ops.shape(values)[0], dtype="int32")[:, None] * count
    flat = ops.reshape(row + ops.cast(index, "int32"), [-1])
    return ops.reshape(
        ops.take(ops.reshape(values, [-1, *inner]), flat, axis=0), [-1, index.shape[1], *inner]
    )


def _exists(scores: Tensor) -> Tensor:
    return scores > FORBIDDEN / 2


def _or_forbidden(condition: Tensor) -> Tensor:
    """0 where the condition holds."""
    return ops.where(condition, 0.0, FORBIDDEN)
