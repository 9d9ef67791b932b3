"""The generation loop, the same for all searches (see `search.base`).

It is written with `keras.ops`. Only the key/value cache differs between XLA in Python and exports.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.generative_model import GenerativeModel
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.samplers import Sampler
from keras_transformer.generation.search.base import Inputs
from keras_transformer.generation.settings import Settings
from keras_transformer.typing import Tensor


def generate_ids(
    model: GenerativeModel,
    source_ids: Tensor,
    max_new_tokens: int,
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    *,
    sampler: Sampler | str = "greedy",
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Tensor | None = None,
    start_ids: Tensor | None = None,
    padding_mask: Tensor | None = None,
    rows: Tensor | None = None,
    noise: Tensor | None = None,
    limits: Tensor | None = None,
    minimums: Tensor | None = None,
    temperatures: Tensor | None = None,
    seed: Tensor | None = None,
) -> dict[str, Tensor]:
    """Generate with a key/value cache until every row has ended or reached its limit.

    A row is an element of the batch. Padding and start ids are never generated, and a row whose source is all padding
    generates nothing.

    Args:
        model: an encoder–decoder or a decoder-only model (see `GenerativeModel`).
        source_ids: integers (B, S), padded on either side.
        max_new_tokens: M, the maximum number of new tokens, including the end token.
        kv_cache: how the cache is stored: `ops.StaticCache()`, or `ops.GrowingCache()` in exports.
        sampler: a sampler of R hypotheses, of which N are returned.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output (see `constraints`).
        prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder, padded on either side; not part of
            the output.
        start_ids: integers (B,), the first input of the decoder in each row, by default the model's `start_id`.
        padding_mask: booleans (B, S), False for padding in `source_ids`; ids equal to `pad_id` are padding too.
        rows: integers (B,), the row numbers that seed the sampling noise, by default 0, 1, 2, …
        noise: float32 (B, R, M) in [0, 1], uniform noise that replaces `categorical.uniform`, for runtimes without
            its integer operations.
        limits: integers (B,) in [1, M], the maximum number of new tokens of each row.
        minimums: integers (B,), the minimum number of tokens of each row before an end token, in addition to
            `min_new_tokens`.
        temperatures: float32 (B,) in [1e-20, 1e20], which replace the temperature of a `Sample`.
        seed: integers (1,) or (B,), which replace the sampler's seed; as an input, a new seed does not recompile. A
            `Sample` with seed=None needs it, or `noise`.

    Returns:
        A dictionary of "ids": int32 (B, N, M), padded after the end token; "lengths": int32 (B, N), including the end
        token; "scores": float32 (B, N), the summed log-probabilities; "ranking_scores": float32 (B, N), the scores by
        which hypotheses are sorted; "token_scores": float32 (B, N, M), the log-probability of each token;
        "failed_step": int32 (B,), the step at which a row's logits were NaN or infinite, else −1. If a row has fewer
        than N different sequences, the others are empty with scores of −∞.
    """
    settings = Settings.of(model, sampler, max_new_tokens, min_new_tokens, constraints)
    return run_search(
        Inputs(
            model,
            settings,
            kv_cache,
            source_ids,
            prefix_ids=prefix_ids,
            start_ids=start_ids,
            padding_mask=padding_mask,
            rows=rows,
            noise=noise,
            limits=limits,
            minimums=minimums,
            temperatures=temperatures,
            seed=seed,
        )
    )


def run_search(inputs: Inputs) -> dict[str, Tensor]:
    """Return the results of `generate_ids` for validated settings."""
    search = new_search(inputs)
    results = search.results(ops.while_loop(search.running, search.step, search.start()))
    return {**results, "ids": search.tokens.to_id(results["ids"])}


def new_search(inputs: Inputs, decoder: PromptedModel | None = None) -> Any:
    """Create the search of a sampler; with a `decoder` that has read its prompt, the search continues from there."""
    sampler, source_ids = inputs.settings.sampler, inputs.source_ids
    if decoder is None:
        # A matrix–vector product needs no precomputed kernel.
        one_row = source_ids.shape[0] == 1 and sampler.hypotheses == 1
        model: Any = inputs.model
        shortlist, kernel = inputs.settings.logits_processors.shortlist, None
        if shortlist is not None:
            kernel = model.output_kernel(shortlist.token_ids)
        elif hasattr(model, "output_kernel") and not one_row:
            kernel = model.output_kernel()
        decoder = PromptedModel.of(
            inputs.model,
            inputs.kv_cache,
            source_ids,
            inputs.prefix_ids,
            inputs.padding_mask,
            kernel,
            inputs.start_ids,
        )
    return samplers.search_of(sampler)(inputs, decoder)
