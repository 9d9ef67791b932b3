"""Near ties: the tokens that a search would also choose if float32 rounded the logits differently.

Axes: T steps, V vocabulary size.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_transformer import generation
from keras_transformer.generation.constraints import FORBIDDEN, Constraint, History, is_allowed
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.samplers import Sample
from keras_transformer.ops import StaticCache
from keras_transformer.ops.random import keep_mask
from keras_transformer.typing import Tensor
from keras_transformer_serving import closeness, parity
from keras_transformer_serving.graphs import uniform_noise
from keras_transformer_serving.parity import NEAR_TIE

# At lower temperatures the weights of near ties underflow, and a draw is a greedy choice.
_COLDEST = NEAR_TIE / 500
_TRIALS = 64  # searches with other changes of scores
_MULTIPLIER = 1664525


def near_ties_of(
    pipeline: Any, out: generation.Generation, inputs_of: Callable[[int], dict[str, np.ndarray]]
) -> parity.NearTies | None:
    """Return the near ties of a pipeline's outputs; None for beams, see `beams_of`.

    Args:
        pipeline: the pipeline, with a seed if it samples.
        out: its outputs for a batch.
        inputs_of: a function from a row to the model's inputs for it.
    """
    sampler = pipeline.sampler
    draws, is_contrastive = isinstance(sampler, Sample), isinstance(sampler, generation.Contrastive)
    if sampler.hypotheses > 1 and not draws and not is_contrastive:
        return None

    @functools.lru_cache(maxsize=1)  # the steps of a row are asked for one after the other
    def of_hypothesis(row: int, hypothesis: int) -> np.ndarray:
        length = out.lengths[row, hypothesis]
        logits = _logits(pipeline, inputs_of(row), out.ids[row, hypothesis], length)
        if not draws:
            return greedy_choices(logits)
        noise = uniform_noise(sampler.seed, np.array([row]), hypothesis + 1, len(logits))[0, hypothesis]
        return draws_of(logits, sampler, noise)

    def of_step(row: int, hypothesis: int, step: int) -> list[int]:
        if step >= out.lengths[row, hypothesis]:  # it has ended
            return []
        if is_contrastive:
            choices = contrastive_choices(pipeline, inputs_of(row), out.ids[row, hypothesis], step)
        else:
            choices = np.flatnonzero(of_hypothesis(row, hypothesis)[step])
        return [id_ for id_ in choices.tolist() if id_ != out.ids[row, hypothesis, step]]

    return of_step


def beams_of(
    pipeline: Any,
    out: generation.Generation,
    inputs_of: Callable[[int], dict[str, np.ndarray]],
    search: Callable[[Any, np.ndarray], generation.Generation],
) -> parity.NearBeams | None:
    """Return a function that recognises beams that differ after a near tie; None for other searches.

    Args:
        pipeline: the pipeline.
        out: its outputs for a batch.
        inputs_of: a function from a row to the model's inputs for it.
        search: a function that runs a pipeline on rows (N,) of the batch.
    """
    sampler = pipeline.sampler
    if not isinstance(sampler, generation.Beam) or sampler.hypotheses == 1:
        return None

    def are_close(row: int, *hypotheses: np.ndarray) -> bool:
        """Compare the length-normalised log-probabilities of hypotheses (R, M)."""
        ranks = []
        for ids in hypotheses:
            repeated = {name: np.repeat(values, len(ids), axis=0) for name, values in inputs_of(row).items()}
            scores = generation.score(pipeline.model, target_ids=ids, **repeated)
            ranks.append(scores.scores / sampler.penalties(pipeline.max_new_tokens)[scores.lengths])
        return bool(np.abs(ranks[0] - ranks[1]).max() <= NEAR_TIE)

    def are_near(row: int, received: np.ndarray) -> bool:
        if are_close(row, out.ids[row, : len(received)], received):
            return True
        changed = pipeline.with_settings(constraints=[*pipeline.constraints, _Rounding()])
        found = search(changed, np.full(_TRIALS, row)).ids[:, : len(received)]
        return any(are_close(row, ids, received) for ids in np.unique(found, axis=0))

    return are_near


@dataclasses.dataclass(frozen=True)
class _Rounding(Constraint):
    """Lower the scores of about half of the candidates by `NEAR_TIE`, other candidates in each row of a batch.

    A row of a beam search then finds what it would find if rounding decided otherwise, at one step or at several.
    """

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Lower the scores of continuations by a hash of the row and of the ids so far."""
        powers = ops.convert_to_tensor(
            np.cumprod(np.full(history.ids.shape[-1], _MULTIPLIER, "int32")), "int32"
        )
        before = ops.sum(ops.where(history.written, history.ids * powers, 0), axis=-1, keepdims=True)
        rows = ops.arange(ops.shape(logits)[0], dtype="int32")[:, None, None]
        tokens = ops.arange(logits.shape[-1], dtype="int32")
        return logits - NEAR_TIE * ops.cast(keep_mask(0.5, (0, 0), [rows, before, tokens]), "float32")


def near_choices_of(
    pipeline: Any, out: generation.Generation, inputs_of: Callable[[int], dict[str, np.ndarray]]
) -> parity.NearChoices:
    """Return the near choices of the first hypotheses of a pipeline's outputs; the arguments are as `near_ties_of`."""

    @functools.cache
    def of_row(row: int) -> list[tuple[int, int]]:
        length = int(out.lengths[row, 0])
        if not length:
            return []
        ids = out.ids[row, 0]
        probabilities = closeness.softmax(_logits(pipeline, inputs_of(row), ids, length))
        chosen = np.take_along_axis(probabilities, ids[:length, None], -1)
        near = (probabilities >= chosen - closeness.NEAR_TIE) & (probabilities >= chosen / 2)
        near[np.arange(length), ids[:length]] = False
        return [(int(step), int(id_)) for step, id_ in np.argwhere(near)]

    return of_row


def _logits(pipeline: Any, inputs: dict[str, np.ndarray], ids: np.ndarray, length: int) -> np.ndarray:
    """Return the logits (T, V) of the T steps of an output (M,), with constraints, `FORBIDDEN` for forbidden tokens.

    They are computed in one pass over prompt and output, without a key/value cache.
    """
    model, before = pipeline.model, ids[None, : length - 1]
    source = inputs["source_ids"]
    if is_encoder_decoder(model):
        start = inputs.get("start_ids", np.full(1, model.start_id))[:, None]
        target = np.concatenate([start, inputs.get("prefix_ids", before[:, :0]), before], axis=1)
        logits = model({"source_ids": source, "target_ids": target})
    else:
        logits = model(np.concatenate([source, before], axis=1))
    processors = LogitsProcessors.of(model, pipeline.max_new_tokens, constraints=pipeline.constraints)
    history = History(
        ops.convert_to_tensor(np.tile(ids, [1, length, 1])), ops.arange(length)[None], processors.end_ids
    )
    processed = processors(ops.cast(logits[:, -length:], "float32"), history)  # (1, T, V)
    array: np.ndarray = ops.convert_to_numpy(processed)[0].astype("float64")
    if processors.shortlist is not None:
        listed = np.isin(np.arange(array.shape[-1]), processors.shortlist.token_ids)
        array = np.where(listed, array, FORBIDDEN)
    return array


def greedy_choices(logits: np.ndarray, margin: float = NEAR_TIE) -> np.ndarray:
    """Return a mask (T, V) of the tokens whose logits are at most `margin` below the highest of logits (T, V)."""
    return logits >= logits.max(axis=-1, keepdims=True) - margin


def contrastive_choices(
    pipeline: Any, inputs: dict[str, np.ndarray], ids: np.ndarray, step: int, margin: float = NEAR_TIE
) -> np.ndarray:
    """Return the tokens that contrastive search may choose if logits and objectives change by at most a margin.

    Args:
        pipeline: the pipeline.
        inputs: the model's inputs for one row.
        ids: the output (M,), of which the first `step` tokens are read.
        step: the step.
        margin: the margin.
    """
    sampler, model = pipeline.sampler, pipeline.model
    logits = _logits(pipeline, inputs, ids, step + 1)[-1]  # (V,)
    limit = min(sampler.top_k, len(logits))
    lowest = np.sort(logits)[-limit]
    candidates = np.flatnonzero((logits >= lowest - margin) & (is_allowed(logits)))
    rows = {name: np.repeat(values, len(candidates), axis=0) for name, values in inputs.items()}
    output = np.concatenate(
        [np.repeat(ids[None, :step], len(candidates), axis=0), candidates[:, None]], axis=1
    )
    name = "prefix_ids" if is_encoder_decoder(model) else "source_ids"
    rows[name] = np.concatenate([rows.get(name, output[:, :0]), output], axis=1)
    decoder = PromptedModel.of(model, StaticCache(), **rows)
    prompt = decoder.prompt
    hidden, _ = decoder.step(
        prompt.ids,
        decoder.empty_cache(prompt.ids.shape[1], 1),
        0,
        prompt.positions,
        padding_mask=prompt.real,
        method="hidden_step",
    )
    vectors = ops.convert_to_numpy(ops.cast(hidden, "float32")).astype("float64")  # (R, P, D)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    similarity = np.einsum("rd,rpd->rp", vectors[:, -1], vectors[:, :-1])
    similarity = np.where(ops.convert_to_numpy(prompt.real)[:, :-1], similarity, -2.0).max(axis=1)
    probabilities = np.exp(logits - logits.max())
    probabilities = probabilities[candidates] / probabilities.sum()
    alpha = sampler.penalty_alpha
    objective = (1 - alpha) * probabilities - alpha * similarity
    is_kept = logits[candidates] > lowest + margin  # among the candidates, whatever changes
    best = objective[is_kept].max(initial=-np.inf)
    return candidates[objective >= best - margin]


def draws_of(logits: np.ndarray, sampler: Sample, noise: np.ndarray, margin: float = NEAR_TIE) -> np.ndarray:
    r"""Return a mask (T, V) of the tokens that noise may draw if differences of logits change by at most a margin.

    A token v is drawn if the noise u is between F(v − 1) and F(v), where F is the cumulative distribution. Its odds are
    a ratio of sums of weights, so that the change multiplies them by at most $e^{\pm m/\tau}$:

    $$\mathrm{logit}\, F(v-1) - m/\tau \;\le\; \mathrm{logit}\, u \;\le\; \mathrm{logit}\, F(v) + m/\tau$$

    If a filter is close to keeping or removing a token, both are possible. Sums of float32 weights are rounded besides.

    Args:
        logits: (T, V), `FORBIDDEN` for forbidden tokens.
        sampler: the temperature τ and the filters.
        noise: (T,), uniform numbers u in [0, 1].
        margin: m.
    """
    logits = np.where(is_allowed(logits), logits, -np.inf)
    if sampler.temperature < _COLDEST:
        return greedy_choices(logits, margin)
    change, rounding = margin / sampler.temperature, 2 * math.sqrt(logits.shape[-1]) * 2.0**-24
    least, dropped = _filtered(logits, sampler, change, rounding)
    kept, possible = logits > dropped + margin, (logits >= least - margin) & (logits > -np.inf)
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / sampler.temperature)
    of_kept, of_possible = weights * kept, weights * possible
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN for tokens that are not possible
        # The least F(v − 1): doubtful tokens are removed before v, and kept from v on.
        low = np.log(_cumulated(of_kept) - of_kept) - np.log(_cumulated(of_possible[:, ::-1])[:, ::-1])
        # The largest F(v): doubtful tokens are kept up to v, and removed after it.
        high = np.log(_cumulated(of_possible)) - np.log(_cumulated(of_kept[:, ::-1])[:, ::-1] - of_kept)
    reached = low - change <= _log_odds(noise + rounding)[:, None]
    return possible & reached & (_log_odds(noise - rounding)[:, None] <= high + change)


def _filtered(
    logits: np.ndarray, sampler: Sample, change: float, rounding: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest logit (T, 1) that the filters may keep, and the highest that they may drop."""
    vocabulary = logits.shape[-1]
    highest = logits.max(axis=-1, keepdims=True)
    least = dropped = np.full_like(highest, -np.inf)
    limit = min(sampler.top_k or vocabulary, vocabulary)
    if limit < vocabulary or sampler.top_p < 1:
        ordered, others = np.split(-np.sort(-logits), [limit], axis=-1)
        least, dropped = ordered[:, -1:], others.max(axis=-1, keepdims=True, initial=-np.inf)
        if sampler.top_p < 1:
            weights = np.exp((ordered - highest) / sampler.temperature)
            before = (_cumulated(weights) - weights) / weights.sum(axis=-1, keepdims=True)
            limit_odds = _log_odds(np.array(sampler.top_p))
            is_kept = (_log_odds(before + rounding) + change < limit_odds) | (ordered == highest)
            may_be_kept = (_log_odds(before - rounding) - change < limit_odds) | (ordered == highest)
            least = np.where(may_be_kept, ordered, highest).min(axis=-1, keepdims=True)
            dropped = np.maximum(dropped, np.where(is_kept, -np.inf, ordered).max(axis=-1, keepdims=True))
    if sampler.min_p > 0:
        lowest = highest + sampler.temperature * math.log(sampler.min_p)
        least, dropped = np.maximum(least, lowest), np.maximum(dropped, lowest)
    return least, dropped


def _cumulated(weights: np.ndarray) -> np.ndarray:
    return np.cumsum(weights, axis=-1)


def _log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Return ln(p / (1 − p)), infinite for numbers outside of (0, 1)."""
    clipped = np.clip(probabilities, 0, 1)
    with np.errstate(divide="ignore"):
        odds: np.ndarray = np.log(clipped) - np.log1p(-clipped)
    return odds
