"""The generation loop, the same for all searches (see `search.interface`).

It is written with `keras.ops`. Only the key/value cache differs between XLA in Python and exports.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops, tree

from keras_transformer import ops as kt_ops
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.generative_model import GenerativeModel
from keras_transformer.generation.prompts import Prompt, PromptedModel, prepare
from keras_transformer.generation.samplers import Sampler
from keras_transformer.generation.search.interface import Inputs, State, TokenSearch
from keras_transformer.generation.settings import Settings
from keras_transformer.ops.kv_cache import zero_size
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
        source_ids: integers (B, S), padded after the tokens, or prompts padded on either side.
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
    decoder = _prompted(inputs)
    if _can_drop_rows(inputs) and isinstance(search := new_search(inputs, decoder), TokenSearch):
        state = _run_without_ended_rows(inputs, search)
    else:
        search = new_search(inputs, decoder.encoded())
        state = ops.while_loop(search.running, search.step, search.start())
    results = search.results(state)
    return {**results, "ids": search.tokens.to_id(results["ids"])}


def new_search(inputs: Inputs, decoder: PromptedModel | None = None) -> Any:
    """Create the search of a sampler; with a `decoder` that has read its prompt, the search continues from there."""
    return samplers.search_of(inputs.settings.sampler)(inputs, decoder or _prompted(inputs).encoded())


def _prompted(inputs: Inputs, prompt: Prompt | None = None) -> PromptedModel:
    """Return the model with its prompt, by default that of the inputs; the source is not encoded."""
    model: Any = inputs.model
    # A matrix–vector product needs no precomputed kernel.
    one_row = inputs.source_ids.shape[0] == 1 and inputs.settings.sampler.hypotheses == 1
    shortlist, kernel = inputs.settings.logits_processors.shortlist, None
    if shortlist is not None:
        kernel = model.output_kernel(shortlist.token_ids)
    elif hasattr(model, "output_kernel") and not one_row:
        kernel = model.output_kernel()
    if prompt is None:
        prompt = prepare(model, inputs.source_ids, inputs.prefix_ids, inputs.padding_mask, inputs.start_ids)
    return PromptedModel.not_encoded(model, inputs.kv_cache, prompt, kernel)


def _can_drop_rows(inputs: Inputs) -> bool:
    """Return True if loops can carry a batch that shrinks, and the rows of the model's cache can be selected."""
    is_dynamic = inputs.kv_cache.drops_rows and keras.backend.backend() == "tensorflow"
    return is_dynamic and hasattr(inputs.model, "take_rows")


def _run_without_ended_rows(inputs: Inputs, search: TokenSearch) -> State:
    """Return the last state of a search; rows that have ended leave the batch.

    An inner loop decodes until a quarter of its rows have ended, and an outer loop selects the others. The outer loop
    carries "step", the indices "rows" (B',) of the rows of the last inner loop, the indices "kept" (B'',) of those of
    them that have not ended, their "cached" context and cache, and the state of all rows (B) without these, "state".
    The encoder, the prompt and the output kernel are in its body: ONNX Runtime packs the weights that the inner loop
    multiplies only if they are constants of the graph directly around it.

    Args:
        inputs: the inputs of the generation.
        search: the search of all rows, whose decoder has not encoded the source.
    """
    model: Any = inputs.model

    def read_prompts(selected: Inputs, decoder: PromptedModel, is_empty: bool = False) -> State:
        decoder = decoder.encoded()
        context = {} if decoder.context is None else {"context": decoder.context}
        prompted = new_search(selected, decoder)
        return {"cache": prompted.empty_cache() if is_empty else prompted.start_cache(), **context}

    def of_rows(rows: Tensor) -> tuple[Inputs, PromptedModel]:
        selected = inputs.of_rows(rows)
        return selected, _prompted(selected, search.decoder.prompt.of_rows(rows))

    def select_and_run(carry: State) -> State:
        rows, state = ops.take(carry["rows"], carry["kept"], axis=0), carry["state"]
        selected, decoder = of_rows(rows)
        cached = ops.cond(
            carry["step"] == 0,
            lambda: read_prompts(selected, decoder),
            lambda: {
                name: model.take_rows(values, carry["kept"]) for name, values in carry["cached"].items()
            },
        )
        running = new_search(selected, decoder.with_context(cached.get("context")))
        new = ops.while_loop(
            lambda new: ops.logical_and(
                new["step"] < running.max_new_tokens,
                ops.sum(ops.cast(_unfinished(running, new), "int32")) > ops.shape(rows)[0] * 3 // 4,
            ),
            running.step,
            {
                **{name: ops.take(values, rows, axis=0) for name, values in state.items()},
                "step": carry["step"],
                "cache": cached["cache"],
            },
        )
        return {
            "step": new["step"],
            "rows": rows,
            "kept": _indices(_unfinished(running, new)),
            "cached": {**cached, "cache": new["cache"]},
            "state": {
                name: ops.scatter_update(values, rows[:, None], new[name]) for name, values in state.items()
            },
        }

    state = search.start_rows()
    rows = _indices(_unfinished(search, state))
    carry = ops.while_loop(
        lambda carry: ops.logical_and(carry["step"] < search.max_new_tokens, ops.shape(carry["kept"])[0] > 0),
        select_and_run,
        {
            "step": ops.zeros((), "int32"),
            "rows": rows,
            "kept": ops.arange(ops.shape(rows)[0], dtype="int32"),
            "cached": _empty(lambda: read_prompts(*of_rows(rows), is_empty=True), rows),
            "state": state,
        },
    )
    return {**carry["state"], "step": carry["step"]}


def _unfinished(search: TokenSearch, state: State) -> Tensor:
    """Return the mask (B,) of rows with a running hypothesis."""
    return ops.any(search.unfinished(state), axis=1)


def _indices(mask: Tensor) -> Tensor:
    """Return the indices of the rows where a mask (B,) is True."""
    return ops.cast(ops.nonzero(mask)[0], "int32")


def _empty(function: Callable[[], State], rows: Tensor) -> State:
    """Return tensors like those that a function returns, with 0 as each size that is not static."""
    import tensorflow as tf

    outputs = tf.function(function, autograph=False).get_concrete_function().structured_outputs
    zero = zero_size(rows)

    def empty(output: Any) -> Tensor:
        return ops.zeros([zero if size is None else size for size in output.shape], output.dtype)

    return tree.map_structure(empty, outputs)
