"""The generation loop.

It is written once over `keras.ops`. What differs between running under XLA and running inside an export is the
function that writes into the cache, and nothing else.

A search, greedy or not, is a pure object over a state of tensors: `start`, `running`, `visible`, `advance` and
`results`. Its R hypotheses are R tokens of one row at every step: the cache holds a prompt once for all of them, and
the memory of an encoder is read once.
"""

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import prompts, samplers
from keras_transformer.generation.beam_search import BeamSearch
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.independent import Independent
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Beam, Sampler

Tensor = Any


def generate_ids(
    model: Any,
    source_ids: Tensor,
    max_new_tokens: int,
    update: Callable[[Tensor, Tensor, Tensor], Tensor] = kt_ops.slice_update,
    *,
    sampler: Sampler | str = "greedy",
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Tensor | None = None,
    rows: Tensor | None = None,
    noise: Tensor | None = None,
) -> dict[str, Tensor]:
    """Decoding with a key/value cache; stops when every row has ended or is full.

    Pad and start ids are never generated. A row whose source is all padding generates nothing.

    A model has `empty_cache`, `step`, `vocabulary_size`, `pad_id` and `end_id`. One with `encode` and `start_id`, as
    `models.Transformer`, decodes from what `encode(source_ids)` returns, which is the third argument of its
    `step`; one without is a decoder alone, continues `source_ids` itself, and its `step` has no such argument.
    More than one hypothesis needs the arguments `attention_mask` of `step` and `hypotheses` of `empty_cache`.

    Args:
        model: an encoder–decoder or a decoder.
        source_ids: integers (B, S); padding may stand on either side.
        max_new_tokens: M, the longest output, the end token included.
        update: how to write into the cache (see `ops.cache`).
        sampler: how tokens are chosen, with R hypotheses of which N are returned.
        min_new_tokens: tokens before an end token may come.
        constraints: what else may not be generated (see `constraints`).
        prefix_ids: integers (B, Q), what the target of an encoder–decoder begins with, padding on either side; not
            part of the output.
        rows: integers (B,), the number of each row that sampling draws for, by default 0, 1, 2, …
        noise: float32 (B, R, M, V) in [0, 1], what sampling draws with instead of `sampling.uniform`: the input of
            graphs that have no integer hashes.

    Returns:
        "ids": int32 (B, N, M), padding after the end token; "lengths": int32 (B, N), the end token included;
        "scores": float32 (B, N), the summed log-probabilities; "ranking_scores": float32 (B, N), what
        hypotheses are ranked by; "token_scores": float32 (B, N, M), the log-probability of each token;
        "failed_step": int32 (B,), the step at which a row's logits were NaN or infinite, else −1. Where there
        are fewer than N different sequences, the others have no tokens and scores of −∞.
    """
    sampler = samplers.get(sampler)
    rules = Rules.of(model, max_new_tokens, min_new_tokens, constraints)
    prompt = prompts.prepare(model, source_ids, prefix_ids)
    if isinstance(sampler, Beam) and sampler.num_beams > 1:
        search: Any = BeamSearch(sampler, rules, max_new_tokens, model.pad_id)
    else:
        rows = ops.arange(ops.shape(source_ids)[0], dtype="int32") if rows is None else rows
        search = Independent(sampler, rules, max_new_tokens, model.pad_id, rows, noise)
    last_positions = prompt.positions[:, -1:]

    def unfinished(step: Tensor, _cache: Any, state: Any) -> Tensor:
        return ops.logical_and(step < max_new_tokens, search.running(state))

    def extend(step: Tensor, cache: Any, state: Any) -> tuple[Any, ...]:
        options = {} if search.hypotheses == 1 else {"attention_mask": _visible(search, prompt, state, step)}
        logits, cache = prompts.step(
            model,
            state["newest"],
            cache,
            prompt.context,
            slot=prompt.before + step * search.hypotheses,
            positions=ops.repeat(last_positions + step, search.hypotheses, axis=1),
            update=update,
            **options,
        )
        return step + 1, cache, search.advance(state, ops.cast(logits, "float32"), step)

    start = (
        ops.zeros((), "int32"),
        prompts.new_cache(model, prompt, search.hypotheses, max_new_tokens, update),
        search.start(ops.cast(prompt.ids[:, -1], "int32"), prompt.blank),
    )
    _, _, state = ops.while_loop(unfinished, extend, start)
    return search.results(state)


def _visible(search: Any, prompt: prompts.Prompt, state: Any, step: Tensor) -> Tensor:
    """Booleans (B, R, P − 1 + M·R), or (1, …): the whole prompt, and what the search says of the rest."""
    visible = search.visible(state, step)
    if isinstance(prompt.before, int) and prompt.before == 0:
        return visible
    everything = ops.ones((ops.shape(visible)[0], search.hypotheses, prompt.before), "bool")
    return ops.concatenate([everything, visible], axis=2)
