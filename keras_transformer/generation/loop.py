"""The generation loop.

It is written once over `keras.ops`. Only the strategy of the cache differs between XLA in Python and exports.

A search is a frozen dataclass over a state of tensors, with `start`, `running`, `visible`, `advance` and `results`. Its
R hypotheses are R tokens of one row at every step, so that the cache stores the prompt once for all of them and the
memory of an encoder is read once.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import prompts, samplers
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.samplers import Beam, Contrastive, Sampler, Speculative
from keras_transformer.generation.search import contrastive, speculative
from keras_transformer.generation.search.beam import BeamSearch
from keras_transformer.generation.search.sampling import SamplingSearch
from keras_transformer.generation.validation import padding_value

Tensor = Any


def generate_ids(
    model: Any,
    source_ids: Tensor,
    max_new_tokens: int,
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    *,
    sampler: Sampler | str = "greedy",
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Tensor | None = None,
    padding_mask: Tensor | None = None,
    rows: Tensor | None = None,
    noise: Tensor | None = None,
    limits: Tensor | None = None,
    seed: Tensor | None = None,
) -> dict[str, Tensor]:
    """Decode with a key/value cache until every row has ended or reached its limit.

    Padding and start ids are never generated. A row whose source is all padding generates nothing.

    Args:
        model: an encoder–decoder or a decoder-only model (see `GenerativeModel`).
        source_ids: integers (B, S), padded on either side.
        max_new_tokens: M, the maximum number of new tokens, with the end token.
        kv_cache: how the cache is stored: `ops.StaticCache()`, or `ops.GrowingCache()` in exports.
        sampler: a sampler of R hypotheses, of which N are returned.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output (see `constraints`).
        prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder, padded on either side; not part of
            the output.
        padding_mask: booleans (B, S), False for padding in `source_ids`; ids equal to `pad_id` are padding too.
        rows: integers (B,), the row numbers that seed the sampling noise, by default 0, 1, 2, …
        noise: float32 (B, R, M, V) in [0, 1], noise in place of `categorical.uniform`, for graphs without integer
            hashes.
        limits: integers (B,) in [1, M], the maximum number of new tokens of each row.
        seed: integers (1,), in place of the sampler's seed; an input, so that another seed does not recompile.

    Returns:
        "ids": int32 (B, N, M), padded after the end token; "lengths": int32 (B, N), with the end token; "scores":
        float32 (B, N), the summed log-probabilities; "ranking_scores": float32 (B, N), the scores by which hypotheses
        are sorted; "token_scores": float32 (B, N, M), the log-probability of each token; "failed_step": int32 (B,), the
        step at which a row's logits were NaN or infinite, else −1. If there are fewer than N different sequences, the
        others have no tokens and scores of −∞.
    """
    sampler = samplers.get(sampler)
    logits_processors = LogitsProcessors.of(model, max_new_tokens, min_new_tokens, constraints)
    if isinstance(sampler, Speculative | Contrastive):
        logits_processors.check_sampler(sampler)
        run = speculative.generate_ids if isinstance(sampler, Speculative) else contrastive.generate_ids
        return run(
            model,
            source_ids,
            max_new_tokens,
            logits_processors,
            sampler,
            prefix_ids,
            limits,
            kv_cache,
            padding_mask,
        )
    loop = prepare(
        model,
        sampler,
        logits_processors,
        max_new_tokens,
        source_ids,
        prefix_ids,
        kv_cache,
        padding_mask=padding_mask,
        rows=rows,
        noise=noise,
        limits=limits,
        seed=seed,
    )
    (_, _, state) = ops.while_loop(loop.unfinished, loop.step, loop.start())
    return loop.search.results(state)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The initial state, stopping condition and step of one generation.

    Attributes:
        model: as in `generate_ids`; so is `kv_cache`.
        search: a `BeamSearch` or `SamplingSearch`.
        max_new_tokens: M.
        before: the number of cache entries of the prompt.
        last_positions: integers (B, R), the positions of the prompts' last tokens.
        context: the return value of `encode`, or None for a decoder-only model.
        output_kernel: the model's precomputed `output_kernel`, or None.
        prompt: the tokens before the first step.
    """

    model: Any
    search: Any
    max_new_tokens: int
    before: Any
    last_positions: Tensor
    context: Any
    output_kernel: Tensor | None = None
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache()
    prompt: prompts.Prompt | None = None

    def start(self) -> tuple[Tensor, Any, Any]:
        """Return step 0, the cache with the prompt except its last token, and the state of the search."""
        prompt, hypotheses = self.prompt, self.search.hypotheses
        return (
            ops.zeros((), "int32"),
            prompts.new_cache(self.model, prompt, hypotheses, self.max_new_tokens, self.kv_cache),
            self.search.start(ops.cast(prompt.ids[:, -1], "int32"), prompt.empty),
        )

    def unfinished(self, step: Tensor, _cache: Any, state: Any) -> Tensor:
        """Return True if another step is needed."""
        return ops.logical_and(step < self.max_new_tokens, self.search.running(state))

    def step(self, step: Tensor, cache: Any, state: Any) -> tuple[Tensor, Any, Any]:
        """Decode one token for every hypothesis."""
        search = self.search
        options = {}
        if search.hypotheses > 1:
            options["attention_mask"] = _visible(search, self.before, state, step)
        if self.output_kernel is not None:
            options["output_kernel"] = self.output_kernel
        logits, cache = prompts.step(
            self.model,
            state["last_tokens"],
            cache,
            self.context,
            cache_index=self.before + step * search.hypotheses,
            positions=self.last_positions + step,
            kv_cache=self.kv_cache,
            **options,
        )
        return step + 1, cache, search.advance(state, ops.cast(logits, "float32"), step)


def prepare(
    model: Any,
    sampler: Sampler,
    logits_processors: LogitsProcessors,
    max_new_tokens: int,
    source_ids: Tensor,
    prefix_ids: Tensor | None = None,
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    *,
    padding_mask: Tensor | None = None,
    **given: Tensor | None,
) -> Loop:
    """Create the loop of one generation; `given` are `rows`, `noise`, `limits` and `seed` of `generate_ids`."""
    prompt = prompts.prepare(model, source_ids, prefix_ids, padding_mask)
    if given.get("rows") is None:
        given["rows"] = ops.arange(ops.shape(source_ids)[0], dtype="int32")
    search = new_search(
        model, sampler, logits_processors, max_new_tokens, batch_size=ops.shape(source_ids)[0], **given
    )
    # A vector product needs no precomputed kernel.
    one_row = source_ids.shape[0] == 1 and search.hypotheses == 1
    kernel = model.output_kernel() if hasattr(model, "output_kernel") and not one_row else None
    return Loop(
        model,
        search,
        max_new_tokens,
        prompt.before,
        prompt.positions[:, -1:] + ops.zeros((1, search.hypotheses), "int32"),
        prompt.context,
        kernel,
        kv_cache,
        prompt,
    )


def new_search(
    model: Any,
    sampler: Sampler,
    logits_processors: LogitsProcessors,
    max_new_tokens: int,
    *,
    batch_size: Any = None,
    rows: Tensor | None = None,
    noise: Tensor | None = None,
    limits: Tensor | None = None,
    seed: Tensor | None = None,
) -> Any:
    """Create the search of a sampler."""
    logits_processors.check_sampler(sampler)
    if isinstance(sampler, Beam) and sampler.num_beams > 1:
        return BeamSearch(
            sampler, logits_processors, max_new_tokens, padding_value(model), limits, batch_size
        )
    return SamplingSearch(
        sampler, logits_processors, max_new_tokens, padding_value(model), rows, noise, limits, seed
    )


def _visible(search: Any, before: Any, state: Any, step: Tensor) -> Tensor:
    """Return the attention mask (B, R, P − 1 + M·R), or (1, …): the whole prompt, then the entries of the search."""
    visible = search.visible(state, step)
    if isinstance(before, int) and before == 0:
        return visible
    everything = ops.ones((ops.shape(visible)[0], search.hypotheses, before), "bool")
    return ops.concatenate([everything, visible], axis=2)
