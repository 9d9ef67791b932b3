"""Prompts of decoder-only models, and the start tokens and target prefixes of encoder–decoders."""

import dataclasses
from typing import Any

from keras import ops

from keras_transformer.generation.generative_model import GenerativeModel, is_encoder_decoder, source_is_ids
from keras_transformer.ops import KVCache
from keras_transformer.ops.indexing import pick
from keras_transformer.typing import Tensor


@dataclasses.dataclass(frozen=True)
class Prompt:
    """The tokens before the first generated token, padded on the left.

    Attributes:
        ids: integers (B, P), P ≥ 1.
        real: booleans (B, P), False for padding.
        positions: integers (B, P), the positions of tokens, which do not count padding.
        empty: booleans (B,), True if the source has no tokens.
        source_ids: integers (B, S), the source of an encoder–decoder; None for a decoder-only model.
    """

    ids: Tensor
    real: Tensor
    positions: Tensor
    empty: Tensor
    source_ids: Tensor | None

    @property
    def before(self) -> Any:
        """P − 1, the number of prompt tokens, including padding, read before the first step; an integer if static."""
        length = self.ids.shape[1]
        return (ops.shape(self.ids)[1] if length is None else length) - 1

    def of_rows(self, index: Tensor) -> "Prompt":
        """Return the prompts of some rows of the batch, with `index` (B',)."""
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Prompt(*(None if values is None else ops.take(values, index, axis=0) for values in fields))


@dataclasses.dataclass(frozen=True)
class PromptedModel:
    """A model that continues a prompt with a cache.

    Attributes:
        model: the model.
        kv_cache: how its cache is stored.
        before: P − 1, the number of cache entries before the last token of the prompt.
        last_positions: integers (B, 1), the positions of the prompts' last tokens.
        context: the return value of `encode`, or None for a decoder-only model.
        output_kernel: the model's precomputed `output_kernel`, or None.
        prompt: the tokens before the first step; None after they have been read.
    """

    model: GenerativeModel
    kv_cache: KVCache
    before: Any
    last_positions: Tensor
    context: Any = None
    output_kernel: Any = None
    prompt: Any = None

    @classmethod
    def of(
        cls,
        model: GenerativeModel,
        kv_cache: KVCache,
        source_ids: Tensor,
        prefix_ids: Tensor | None = None,
        padding_mask: Tensor | None = None,
        output_kernel: Any = None,
        start_ids: Tensor | None = None,
    ) -> "PromptedModel":
        """Prepare the prompt, and encode the source if the model is an encoder–decoder."""
        prompt = prepare(model, source_ids, prefix_ids, padding_mask, start_ids)
        return cls.not_encoded(model, kv_cache, prompt, output_kernel).encoded()

    @classmethod
    def not_encoded(
        cls, model: GenerativeModel, kv_cache: KVCache, prompt: Prompt, output_kernel: Any = None
    ) -> "PromptedModel":
        """Return a model whose source has not been encoded."""
        last = ops.take(prompt.positions, [-1], axis=1)  # of static size, also in ONNX
        return cls(model, kv_cache, prompt.before, last, None, output_kernel, prompt)

    def encoded(self) -> "PromptedModel":
        """Encode the source if the model is an encoder–decoder."""
        source_ids = self.prompt.source_ids
        return self if source_ids is None else self.with_context(self.model.encode(source_ids))

    def with_context(self, context: Any) -> "PromptedModel":
        """Return the model with the return value of `encode`."""
        return dataclasses.replace(self, context=context)

    def empty_cache(self, length: Any, hypotheses: int) -> Any:
        """Create a cache for at most `length` entries, with `hypotheses` entries for each position."""
        prompt = self.prompt
        length = self.kv_cache.loop_length(length, prompt.empty)
        return self.model.empty_cache(
            ops.shape(prompt.ids)[0], length, hypotheses=hypotheses, kv_cache=self.kv_cache
        )

    def cache_of_prompt(self, hypotheses: int, steps: int) -> Any:
        """Create a cache for the prompt except its last token, and for `steps` steps of all hypotheses."""
        return self.empty_cache(self.before + hypotheses * steps, hypotheses)

    def read_prompt(self, hypotheses: int, steps: int) -> Any:
        """Create a cache with the prompt except its last token, and space for `steps` steps of all hypotheses."""
        prompt, cache = self.prompt, self.cache_of_prompt(hypotheses, steps)
        if isinstance(self.before, int) and self.before == 0:
            return cache

        def read() -> Any:
            ids, positions, real = (values[:, :-1] for values in (prompt.ids, prompt.positions, prompt.real))
            return self.step(ids, cache, 0, positions, padding_mask=real)[1]

        # Exports may receive no prefix; attention over no tokens cannot be converted to ONNX.
        return read() if isinstance(self.before, int) else ops.cond(self.before > 0, read, lambda: cache)

    def step(
        self,
        ids: Tensor,
        cache: Any,
        cache_index: Any,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        method: str = "step",
        trace: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        """Call `model.step`, or another `method` with the same arguments.

        A decoder-only model is called without context, and without `padding_mask` if it has a `pad_id`; a model without
        `select` is called without `trace`.
        """
        if trace and hasattr(self.model, "select"):
            options["trace"] = True
        context = () if self.context is None else (self.context,)
        if padding_mask is not None and (context or self.model.pad_id is None):
            options["padding_mask"] = padding_mask
        return getattr(self.model, method)(
            ids,
            cache,
            *context,
            cache_index=cache_index,
            positions=positions,
            kv_cache=self.kv_cache,
            **options,
        )

    def repeat(self, cache: Any, hypotheses: int) -> Any:
        """Repeat the cache of a prompt for several hypotheses that continue it."""
        if hypotheses == 1:
            return cache
        return self.select(cache, ops.zeros((ops.shape(self.last_positions)[0], hypotheses), "int32"))

    def select(self, cache: Any, index: Tensor) -> Any:
        """Return the cache in which hypothesis r continues hypothesis `index[:, r]`, integers (B, R)."""
        return self.model.select(cache, index) if hasattr(self.model, "select") else cache


def prepare(
    model: GenerativeModel,
    source_ids: Tensor,
    prefix_ids: Tensor | None = None,
    padding_mask: Tensor | None = None,
    start_ids: Tensor | None = None,
) -> Prompt:
    """Create the prompt: the source of a decoder-only model, or the start token and target prefix of others."""
    if not source_is_ids(model):
        real = ops.ones_like(ops.reshape(source_ids, [ops.shape(source_ids)[0], -1])[:, :1], "bool")
    elif model.pad_id is None:
        real = ops.ones_like(source_ids, "bool") if padding_mask is None else ops.cast(padding_mask, "bool")
    else:
        if padding_mask is not None:
            source_ids = ops.where(padding_mask, source_ids, ops.cast(model.pad_id, source_ids.dtype))
        real = ops.not_equal(source_ids, model.pad_id)
    empty = ops.logical_not(ops.any(real, axis=-1))
    if not is_encoder_decoder(model):
        ids, real = align(source_ids, real)
        return Prompt(ids, real, count_positions(real), empty, None)
    if start_ids is None:
        ids = ops.full((ops.shape(source_ids)[0], 1), model.start_id, "int32")
    else:
        ids = ops.cast(start_ids, "int32")[:, None]
    real = ops.ones_like(ids, dtype="bool")  # a start token may equal the padding id
    if prefix_ids is not None:
        real = ops.concatenate([real, ops.not_equal(prefix_ids, model.pad_id)], axis=1)
        ids, real = align(ops.concatenate([ids, ops.cast(prefix_ids, "int32")], axis=1), real)
        return Prompt(ids, real, count_positions(real), empty, source_ids)
    return Prompt(ids, real, ops.zeros_like(ids), empty, source_ids)


def align(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate each row of (B, P) so that its last token comes last, which turns right padding into left padding."""
    length = ops.shape(ids)[1]
    index = ops.arange(length, dtype="int32")
    last = ops.max(ops.where(real, index, -1), axis=-1, keepdims=True, initial=-1)  # of an empty batch too
    index = ops.mod(index + last + 1, length)
    return pick(ids, index), pick(real, index)


def count_positions(real: Tensor) -> Tensor:
    """Return positions 0, 1, 2, … that count tokens only; left padding has position 0."""
    return ops.maximum(ops.cumsum(ops.cast(real, "int32"), axis=1) - 1, 0)
