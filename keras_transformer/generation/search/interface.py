"""The interface of searches and their base classes.

Axes: B rows of the batch, R hypotheses of a row, P prompt tokens, M new tokens, V vocabulary size.
"""

import abc
import dataclasses
from typing import Any, Protocol

import numpy as np
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation.constraints import History
from keras_transformer.generation.generative_model import GenerativeModel
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search.top_k import top_k
from keras_transformer.generation.settings import Settings
from keras_transformer.generation.validation import padding_value
from keras_transformer.typing import Tensor

State = dict[str, Any]

_OF_ROWS = (
    "source_ids",
    "prefix_ids",
    "start_ids",
    "padding_mask",
    "noise",
    "limits",
    "minimums",
    "temperatures",
)
"""The inputs with an axis of rows first, except "rows" and "seed"."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a generation: the model, the validated settings, and the tensors of `generate_ids`.

    Attributes:
        model: the model.
        settings: the sampler, the logits processors and M, the maximum number of new tokens.
        kv_cache: how the cache is stored.
        source_ids: integers (B, S), the sources or prompts.
        prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder, or None.
        start_ids: integers (B,), the start token of each row of an encoder–decoder, or None for the model's.
        padding_mask: booleans (B, S), False for padding of the sources, or None.
        rows: integers (B,), the row numbers that seed the noise, or None for 0, 1, 2, …
        noise: float32 (B, R, M), uniform noise in place of the seeded noise, or None.
        limits: integers (B,), the maximum number of new tokens of each row, or None for M.
        minimums: integers (B,), the minimum number of new tokens of each row, or None for 0.
        temperatures: float32 (B,), the temperature of each row in place of the sampler's, or None.
        seed: integers (1,) or (B,), the seed in place of the sampler's, or None.
    """

    model: GenerativeModel
    settings: Settings
    kv_cache: kt_ops.KVCache = kt_ops.StaticCache()
    source_ids: Any = None
    prefix_ids: Tensor | None = None
    start_ids: Tensor | None = None
    padding_mask: Tensor | None = None
    rows: Tensor | None = None
    noise: Tensor | None = None
    limits: Tensor | None = None
    minimums: Tensor | None = None
    temperatures: Tensor | None = None
    seed: Tensor | None = None

    def of_rows(self, index: Tensor) -> "Inputs":
        """Return the inputs of some rows of the batch, with `index` (B',)."""

        def take(values: Any) -> Any:
            return None if values is None else ops.take(values, index, axis=0)

        return dataclasses.replace(
            self,
            **{name: take(getattr(self, name)) for name in _OF_ROWS},
            rows=index if self.rows is None else take(self.rows),
            seed=self.seed if self.seed is None or self.seed.shape[0] == 1 else take(self.seed),
        )


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a search: ids or, with a `VocabularyShortlist` of S ids, indices of the shortlist.

    With a shortlist, S + i is the token with id i, for tokens that are not generated.

    Attributes:
        table: the ids of tokens, (S + V,); None without a shortlist.
        count: S, 0 without a shortlist.
    """

    table: np.ndarray | None = None
    count: int = 0

    @classmethod
    def of(cls, model: GenerativeModel, logits_processors: LogitsProcessors) -> "Tokens":
        """Return the tokens of a search for a model."""
        if logits_processors.shortlist is None:
            return cls()
        ids = logits_processors.shortlist.token_ids
        return cls(np.array([*ids, *range(model.vocabulary_size)], np.int32), len(ids))

    def from_id(self, ids: Any) -> Any:
        """Return the tokens with the given ids, an integer or integers of any shape."""
        return ids + self.count

    def to_id(self, tokens: Any) -> Any:
        """Return the ids of tokens, integers of any shape."""
        return tokens if self.table is None else ops.take(ops.convert_to_tensor(self.table), tokens, axis=0)


class Search(Protocol):
    """The interface of a search, which one loop runs: `results(while_loop(running, step, start()))`.

    The state is a dictionary of tensors.
    """

    @abc.abstractmethod
    def start(self) -> State:
        """Return the state before the first step."""

    @abc.abstractmethod
    def running(self, state: State) -> Tensor:
        """Return True if another step is needed."""

    @abc.abstractmethod
    def step(self, state: State) -> State:
        """Return the state after a step, of the same structure."""

    @abc.abstractmethod
    def results(self, state: State) -> dict[str, Tensor]:
        """Return the results of `generate_ids`."""


class BaseSearch(Search):
    """Base class of searches of at most M steps, whose state has "step", and "ended" or a method `unfinished`."""

    def __init__(self, inputs: Inputs, decoder: PromptedModel) -> None:
        self.model: Any = inputs.model
        self.sampler: Any = inputs.settings.sampler
        self.logits_processors = inputs.settings.logits_processors
        self.max_new_tokens = inputs.settings.max_new_tokens
        self.tokens = Tokens.of(inputs.model, self.logits_processors)
        if self.tokens.count:
            self.logits_processors = self.logits_processors.on_shortlist()
        self.padding_value = self.tokens.from_id(padding_value(inputs.model))
        self.limits: Any = inputs.limits
        self.minimums = inputs.minimums
        self.decoder = decoder
        # The prompt ends with its last token, as it is padded on the left.
        self.last_prompt_ids = None if decoder.prompt is None else decoder.prompt.ids[:, -1]

    def running(self, state: State) -> Tensor:
        """Return True if another step is needed."""
        return ops.logical_and(state["step"] < self.max_new_tokens, ops.any(self.unfinished(state)))

    def unfinished(self, state: State) -> Tensor:
        """Return the mask of running hypotheses, (B, R) or (B,)."""
        return ops.logical_not(state["ended"])

    def _processed(self, logits: Tensor, ids: Tensor, step: Tensor) -> Tensor:
        """Apply the constraints to logits (B, R, V) that follow the first `step` of ids (B, R, M)."""
        return self.logits_processors(logits, self._history(ids, step))

    def _history(self, ids: Tensor, step: Tensor) -> History:
        processors = self.logits_processors
        return History(ids, step, processors.end_ids, self.limits, self.minimums, self.last_prompt_ids)


class SingleSequenceSearch(BaseSearch):
    """Base class of searches for one sequence per row; subclasses implement `step`."""

    def start(self) -> State:
        """Return the state of empty sequences."""
        prompt = self.decoder.prompt
        rows = ops.shape(prompt.ids)[0]
        return {
            "step": ops.zeros((), "int32"),
            "ids": ops.full((rows, self.max_new_tokens), self.padding_value, "int32"),
            "token_scores": ops.zeros((rows, self.max_new_tokens), "float32"),
            "lengths": ops.zeros((rows,), "int32"),
            "ended": prompt.empty,
            "failed_step": ops.full((rows,), -1, "int32"),
        }

    def results(self, state: State) -> dict[str, Tensor]:
        """Return the results of `generate_ids`."""
        scores = ops.sum(state["token_scores"], axis=-1)[:, None]
        return {
            "ids": state["ids"][:, None],
            "lengths": state["lengths"][:, None],
            "scores": scores,
            "ranking_scores": scores,
            "token_scores": state["token_scores"][:, None],
            "failed_step": state["failed_step"],
        }


class TokenSearch(BaseSearch):
    """Base class of searches that decode one token for each of R hypotheses in a step.

    A step writes R entries into the cache of a row, so that all hypotheses of the row share the entries of the prompt
    and the memory of the encoder. `stream` runs these searches step by step.
    """

    def __init__(self, inputs: Inputs, decoder: PromptedModel) -> None:
        super().__init__(inputs, decoder)
        self.hypotheses = self.sampler.hypotheses
        self.last_positions = decoder.last_positions + ops.zeros((1, self.hypotheses), "int32")

    def start(self) -> State:
        """Return the state before the first step; the cache has the prompt except its last token."""
        return {"step": ops.zeros((), "int32"), "cache": self.start_cache(), **self.start_rows()}

    def start_cache(self) -> Any:
        """Return a cache with the prompt except its last token."""
        cache = self.decoder.read_prompt(self.hypotheses, self.max_new_tokens)
        return self.decoder.repeat(cache, self.hypotheses)

    def empty_cache(self) -> Any:
        """Return a cache with space for the prompt except its last token, and for all steps."""
        cache = self.decoder.cache_of_prompt(self.hypotheses, self.max_new_tokens)
        return self.decoder.repeat(cache, self.hypotheses)

    def start_rows(self) -> State:
        """Return the state before the first step without "step" and "cache": all tensors have an axis of rows first."""
        prompt = self.decoder.prompt
        return self._start(self.tokens.from_id(ops.cast(prompt.ids[:, -1], "int32")), prompt.empty)

    def step(self, state: State) -> State:
        """Decode one token for every hypothesis."""
        step, hypotheses, decoder = state["step"], self.hypotheses, self.decoder
        options = {}
        if hypotheses > 1:
            options["attention_mask"] = self._with_prompt(self._visible(state))
        if decoder.output_kernel is not None:
            options["output_kernel"] = decoder.output_kernel
        logits, cache = decoder.step(
            self.tokens.to_id(state["last_tokens"]),
            state["cache"],
            decoder.before + step * hypotheses,
            self.last_positions + step,
            **options,
        )
        new = self._advance(state, ops.cast(logits, "float32"))
        parents = self._parents(new, step)
        cache = cache if parents is None else decoder.select(cache, parents)
        return {**new, "step": step + 1, "cache": cache}

    @abc.abstractmethod
    def _start(self, last_tokens: Tensor, empty: Tensor) -> State:
        """Return the state of the search, from the prompts' last tokens (B,) and the mask (B,) of empty sources.

        It has at least "last_tokens" (B, R) and "ids" (B, R, M).
        """

    @abc.abstractmethod
    def _visible(self, state: State) -> Tensor:
        """Return the attention mask (B, R, M·R) or (1, R, M·R), True at the cache entries of each hypothesis."""

    @abc.abstractmethod
    def _advance(self, state: State, logits: Tensor) -> State:
        """Return the state after one more token for every hypothesis, from logits (B, R, V)."""

    def _highest(
        self, logits: Tensor, state: State, count: int, num_lists: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Return the highest of logits (B, R, V) and their tokens, (B, R, C), in descending order, with constraints.

        At least `count` of them are allowed, if as many are. Special tokens among them are `FORBIDDEN`, wherever they
        are in the order: to forbid them in the whole vocabulary would take longer.
        """
        history = self._history(state["ids"], state["step"])
        constrained = self.logits_processors.constrained(logits, history)
        count = min(count + len(self.logits_processors.special(history)), logits.shape[-1])
        values, tokens = top_k(constrained, count, num_lists)
        return self.logits_processors.forbid_special(values, tokens, history), tokens

    def _parents(self, state: State, step: Tensor) -> Tensor | None:
        """Return the index (B, R) of the hypothesis that each new one continues; None if each continues itself."""
        del state, step
        return None

    def _with_prompt(self, visible: Tensor) -> Tensor:
        """Extend an attention mask (B|1, R, M·R) by all prompt tokens, to (B|1, R, P − 1 + M·R)."""
        before = self.decoder.before
        if isinstance(before, int) and before == 0:
            return visible
        rows = 1 if visible.shape[0] == 1 else ops.shape(self.last_positions)[0]
        prompt = ops.ones((rows, self.hypotheses, before), "bool")
        return ops.concatenate([prompt, visible], axis=2)
