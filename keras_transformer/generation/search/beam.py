"""Beam search with a cache shared by all hypotheses, which is never reordered."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN, ForcedWords, is_allowed
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search.greedy import HighestSearch
from keras_transformer.generation.search.interface import Inputs, State, TokenSearch
from keras_transformer.generation.search.logits import is_invalid
from keras_transformer.generation.search.top_k import top_k
from keras_transformer.ops.indexing import pick
from keras_transformer.typing import Tensor

_LOWEST_PRIORITY = 2**22  # larger than any other priority, and exact in float32


def beam_search(inputs: Inputs, decoder: PromptedModel) -> TokenSearch:
    """Create the search of a `Beam`; a beam of one is greedy search."""
    return (BeamSearch if inputs.settings.sampler.hypotheses > 1 else BeamOfOneSearch)(inputs, decoder)


class BeamOfOneSearch(HighestSearch):
    """Greedy search with length-penalized ranking scores."""

    def _ranking_scores(self, scores: Tensor, lengths: Tensor) -> Tensor:
        penalties = ops.convert_to_tensor(self.sampler.penalties(self.max_new_tokens))
        return scores / ops.take(penalties, lengths, axis=0)


class BeamSearch(TokenSearch):
    """Beam search with R running hypotheses and the R best finished hypotheses of each row.

    Each step writes R entries into a row's cache, which are never moved. A matrix of ancestors (B, R, M) holds, for
    each hypothesis and step, the index of its entry among the R; only this matrix is reordered with the hypotheses.
    """

    def __init__(self, inputs: Inputs, decoder: PromptedModel) -> None:
        super().__init__(inputs, decoder)
        self.batch_size = ops.shape(decoder.last_positions)[0]

    def _start(self, last_tokens: Tensor, empty: Tensor) -> State:
        """Return the state of a single hypothesis, repeated R times; see the base class."""
        per_hypothesis = self.batch_size, self.hypotheses
        per_token = *per_hypothesis, self.max_new_tokens
        ids, token_scores = ops.full(per_token, self.padding_value, "int32"), ops.zeros(per_token, "float32")
        first = ops.equal(ops.arange(self.hypotheses), 0)
        empty = empty[:, None]
        return {
            "last_tokens": ops.tile(last_tokens[:, None], (1, self.hypotheses)),
            "ids": ids,
            "token_scores": token_scores,
            "ancestors": ops.zeros(per_token, "int32"),
            "scores": _or_forbidden(ops.logical_and(first, ops.logical_not(empty))),
            "ended_ids": ids,
            "ended_token_scores": token_scores,
            "ended_lengths": ops.zeros(per_hypothesis, "int32"),
            # A row with an empty source has one finished hypothesis, which is empty.
            "ended_ranking": _or_forbidden(ops.logical_and(first, empty)),
            "failed_step": ops.full((self.batch_size,), -1, "int32"),
        }

    def unfinished(self, state: State) -> Tensor:
        """Return the mask (B, R) of running hypotheses."""
        return _exists(state["scores"])

    def _visible(self, state: State) -> Tensor:
        """Return the attention mask (B, R, M·R) of the cache entries of each hypothesis and its ancestors."""
        ancestors = self._with_column(state["ancestors"], ops.arange(self.hypotheses), state["step"])
        visible = ops.equal(ancestors[..., None], ops.arange(self.hypotheses))  # (B, R, M, R)
        return ops.reshape(visible, [-1, self.hypotheses, self.max_new_tokens * self.hypotheses])

    def _parents(self, state: State, step: Tensor) -> Tensor:
        return ops.take(state["ancestors"], step, axis=2)

    def _advance(self, state: State, logits: Tensor) -> State:
        step, vocabulary = state["step"], logits.shape[-1]
        log_probabilities = ops.log_softmax(logits)  # (B, R, V)
        invalid = ops.any(ops.logical_and(is_invalid(log_probabilities), _exists(state["scores"])), axis=1)
        alive = ops.logical_and(_exists(state["scores"]), ops.logical_not(invalid)[:, None])[..., None]

        def extended_scores(values: Tensor) -> Tensor:
            """Return the scores of hypotheses extended by tokens with log-probabilities (B, R, …)."""
            scores = state["scores"][..., None] + ops.minimum(values, 0.0)
            return ops.where(ops.logical_and(alive, _exists(values)), scores, FORBIDDEN)

        if self.logits_processors.words is None:
            scores, parents, tokens = self._best_candidates(state, log_probabilities, extended_scores)
        else:
            processed = self._processed(log_probabilities, state["ids"], step)
            scores, parents, tokens = self._constrained_candidates(
                self.logits_processors.words, extended_scores(processed), state["ids"], step
            )
        ends = self.logits_processors.ends(tokens)
        running_scores = ops.where(ends, FORBIDDEN, scores)
        if self.logits_processors.words is None:
            running_scores, order = ops.top_k(running_scores, self.hypotheses)
        else:  # sorted by bank, not by score
            priorities = -ops.cast(ops.arange(scores.shape[1]), "float32")
            _, order = ops.top_k(ops.where(_exists(running_scores), priorities, FORBIDDEN), self.hypotheses)
            running_scores = self._pick(running_scores, order)

        # The R best candidates, and the R best that do not end, (B, 2R).
        best = ops.zeros_like(order) + ops.arange(self.hypotheses, dtype=order.dtype)
        best_and_running = ops.concatenate([best, order], axis=1)
        parents, tokens = self._pick(parents, best_and_running), self._pick(tokens, best_and_running)
        scores = ops.concatenate([scores[:, : self.hypotheses], running_scores], axis=1)
        flat = ops.reshape(log_probabilities, [-1, self.hypotheses * vocabulary])
        new_scores = ops.where(_exists(scores), self._pick(flat, parents * vocabulary + tokens), 0.0)
        candidates = {
            "ids": self._with_column(self._pick(state["ids"], parents), tokens, step),
            "token_scores": self._with_column(self._pick(state["token_scores"], parents), new_scores, step),
            "scores": scores,
        }
        ends = ends[:, : self.hypotheses]
        if self.limits is None:
            new = {name: values[:, : self.hypotheses] for name, values in candidates.items()}
            ended = self._merge_ended(state, new, ends, step + 1)
        else:
            at_limit = (step + 1 >= self.limits)[:, None]
            truncated = ops.logical_and(at_limit, _exists(running_scores))
            truncated = self._complete(truncated, candidates["ids"][:, self.hypotheses :], step + 1)
            ended = self._merge_ended(state, candidates, ops.concatenate([ends, truncated], axis=1), step + 1)
            running_scores = ops.where(at_limit, FORBIDDEN, running_scores)
        entries = self._with_column(state["ancestors"], ops.arange(self.hypotheses), step)
        running = {
            "ids": candidates["ids"][:, self.hypotheses :],
            "token_scores": candidates["token_scores"][:, self.hypotheses :],
            "ancestors": self._pick(entries, parents[:, self.hypotheses :]),
            "last_tokens": tokens[:, self.hypotheses :],
            "scores": running_scores,
        }
        if self.sampler.early_stopping:
            running["scores"] = self._without_stopped(running_scores, ended["ended_ranking"], step + 1)
        failed = ops.logical_and(invalid, state["failed_step"] < 0)
        return {**running, **ended, "failed_step": ops.where(failed, step, state["failed_step"])}

    def results(self, state: State) -> dict[str, Tensor]:
        """Return the results of `generate_ids` for the best finished and truncated hypotheses."""
        truncated = {
            "ids": state["ids"],
            "token_scores": state["token_scores"],
            "scores": state["scores"],
        }
        complete = self._complete(_exists(state["scores"]), state["ids"], self.max_new_tokens)
        ended = self._merge_ended(state, truncated, complete, self.max_new_tokens)
        count = self.sampler.num_return
        exists = _exists(ended["ended_ranking"])
        token_scores = ops.where(exists[..., None], ended["ended_token_scores"], 0.0)
        absent = ops.convert_to_tensor(float("-inf"), "float32")
        return {
            "ids": ops.where(exists[..., None], ended["ended_ids"], self.padding_value)[:, :count],
            "lengths": ops.where(exists, ended["ended_lengths"], 0)[:, :count],
            "scores": ops.where(exists, ops.sum(token_scores, axis=-1), absent)[:, :count],
            "ranking_scores": ops.where(exists, ended["ended_ranking"], absent)[:, :count],
            "token_scores": token_scores[:, :count],
            "failed_step": state["failed_step"],
        }

    def _best_candidates(
        self, state: State, log_probabilities: Tensor, extended_scores: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, parents and tokens (B, C) of the best continuations of log-probabilities (B, R, V), sorted.

        They are among the C best continuations of each hypothesis, whose order does not depend on its score.
        """
        count = self._num_candidates(log_probabilities)
        # (B, R, siblings)
        highest, tokens = self._highest(log_probabilities, state, count, self.batch_size * self.hypotheses)
        siblings = tokens.shape[-1]
        scores = ranking = extended_scores(highest)
        if self.sampler.diversity:
            rank = ops.cumsum(ops.cast(_exists(highest), "float32"), axis=-1) - 1
            ranking = ops.where(_exists(scores), scores - self.sampler.diversity * rank, FORBIDDEN)
        flat = [-1, self.hypotheses * siblings]
        _, index = top_k(ops.reshape(ranking, flat), count, self.batch_size)
        return (
            self._pick(ops.reshape(scores, flat), index),
            index // siblings,
            self._pick(ops.reshape(tokens, flat), index),
        )

    def _constrained_candidates(
        self, words: ForcedWords, scores: Tensor, ids: Tensor, step: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return candidates as in `_best_candidates`, sorted in rounds over the banks of `ForcedWords`.

        Candidates are the best continuations, the best one of each hypothesis, and all continuations by word tokens.
        """
        hypotheses, vocabulary = self.hypotheses, scores.shape[-1]
        count = self._num_candidates(scores)
        flat = ops.reshape(scores, [-1, hypotheses * vocabulary])
        _, best = top_k(flat, count, self.batch_size)
        continuations = ops.concatenate(
            [
                ops.cast(ops.top_k(scores, 1)[1], "int32"),
                ops.zeros_like(ids[:, :, :1]) + ops.convert_to_tensor(sorted({*words.ids()}), "int32"),
            ],
            axis=2,
        )  # (B, R, 1 + U)
        continuations = continuations + ops.arange(hypotheses, dtype="int32")[:, None] * vocabulary
        continuations = ops.reshape(continuations, [-1, hypotheses * continuations.shape[2]])
        index = ops.concatenate([ops.cast(best, "int32"), continuations], axis=1)  # (B, C)
        candidate_scores, parents, tokens = self._pick(flat, index), index // vocabulary, index % vocabulary
        earlier = np.tril(np.ones((index.shape[1], index.shape[1]), bool), -1)
        is_duplicate = ops.any(
            ops.logical_and(ops.equal(index[:, :, None], index[:, None, :]), earlier), axis=2
        )
        candidate_scores = ops.where(is_duplicate, FORBIDDEN, candidate_scores)
        progress = words.progress(self._with_column(self._pick(ids, parents), tokens, step), step + 1)
        better = ops.logical_or(
            candidate_scores[:, None, :] > candidate_scores[:, :, None],
            ops.logical_and(ops.equal(candidate_scores[:, None, :], candidate_scores[:, :, None]), earlier),
        )
        same_bank = ops.equal(progress[:, None, :], progress[:, :, None])
        rank = ops.sum(ops.cast(ops.logical_and(better, same_bank), "int32"), axis=2)
        missing = words.total - progress
        remaining = (self.max_new_tokens if self.limits is None else self.limits[:, None]) - step - 1
        # Candidates with too few remaining tokens to complete the words come last.
        priority = rank * (words.total + 1) + missing + ops.where(missing > remaining, _LOWEST_PRIORITY, 0)
        priorities = -ops.cast(priority, "float32")
        _, order = ops.top_k(ops.where(_exists(candidate_scores), priorities, FORBIDDEN), count)
        return self._pick(candidate_scores, order), self._pick(parents, order), self._pick(tokens, order)

    def _num_candidates(self, scores: Tensor) -> int:
        """Return C, the number of candidates, so that at least R of them do not end.

        For each end token, each hypothesis has one continuation that ends.
        """
        return min(
            (1 + len(self.logits_processors.end_ids)) * self.hypotheses, self.hypotheses * scores.shape[-1]
        )

    def _complete(self, mask: Tensor, ids: Tensor, length: Any) -> Tensor:
        """Return a mask (B, R) of hypotheses (B, R, M) without those that lack forced words."""
        words = self.logits_processors.words
        if words is None:
            return mask
        return ops.logical_and(mask, ops.equal(words.progress(ids, length), words.total))

    def _merge_ended(self, state: State, candidates: State, ends: Tensor, length: Any) -> State:
        """Merge the candidates (B, J, …) that end, a mask (B, J), into the R best finished hypotheses."""
        penalties = ops.convert_to_tensor(self.sampler.penalties(self.max_new_tokens))
        ends = ops.logical_and(ends, _exists(candidates["scores"]))
        ranking = ops.where(ends, candidates["scores"] / ops.take(penalties, length, axis=0), FORBIDDEN)
        best, order = ops.top_k(ops.concatenate([state["ended_ranking"], ranking], axis=1), self.hypotheses)
        lengths = ops.cast(ends, "int32") * length

        def merged(name: str, values: Tensor) -> Tensor:
            return self._pick(ops.concatenate([state[f"ended_{name}"], values], axis=1), order)

        return {
            "ended_ids": merged("ids", candidates["ids"]),
            "ended_token_scores": merged("token_scores", candidates["token_scores"]),
            "ended_lengths": merged("lengths", lengths),
            "ended_ranking": best,
        }

    def _without_stopped(self, scores: Tensor, ended_ranking: Tensor, length: Tensor) -> Tensor:
        """Return the running scores, `FORBIDDEN` in rows that stop early.

        Scores never increase, and the length penalty is largest at the next length or at the limit.
        """
        penalties, rank = self.sampler.penalties(self.max_new_tokens), self.hypotheses
        if self.sampler.early_stopping is True:
            following = np.append(penalties[1:], penalties[-1])
            penalties, rank = np.maximum(following, penalties[-1]), self.sampler.num_return
        worst = ended_ranking[:, rank - 1]
        if self.sampler.early_stopping == "num_beams":
            stops = _exists(worst)
        else:
            penalty = ops.take(ops.convert_to_tensor(penalties), length, axis=0)
            stops = ops.max(scores, axis=1) / penalty <= worst
        # At the limit, running hypotheses compete too.
        stops = ops.logical_and(stops, length < self.max_new_tokens)
        return ops.where(stops[:, None], FORBIDDEN, scores)

    def _pick(self, values: Tensor, index: Tensor) -> Tensor:
        return pick(values, index, self.batch_size)

    def _with_column(self, values: Tensor, column: Tensor, step: Tensor) -> Tensor:
        """Return (B, R, M) with `column`, (B, R) or (R,), written at `step`."""
        at = ops.equal(ops.arange(self.max_new_tokens), step)
        return ops.where(at, ops.cast(column, values.dtype)[..., None], values)


def _exists(scores: Tensor) -> Tensor:
    """Return where there is a hypothesis or candidate: other scores are `FORBIDDEN`."""
    return is_allowed(scores)


def _or_forbidden(condition: Tensor) -> Tensor:
    """Return 0 where the condition is True, else `FORBIDDEN`."""
    return ops.where(condition, 0.0, FORBIDDEN)
