"""Run the generation loop from Python, compiled once for each bucket of shapes."""

import dataclasses
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.generation import samplers, validation
from keras_transformer.generation.compilation import bucket, compiled
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.constraints import get as get_constraint
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.loop import generate_ids

Tensor = Any
Arrays = dict[str, np.ndarray]

MAX_CACHED_GENERATORS = 32
"""The number of generators that a model caches; the least recently used one is dropped."""

_CACHE_LOCK = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Generation:
    """Generated ids and scores of B rows, N hypotheses (one by default) of up to M tokens each.

    The hypotheses of a beam are sorted, best first; if it has found fewer than N, the others have length 0 and
    score −∞. Samples keep the order in which they were drawn.

    Attributes:
        ids: int32 (B, N, M), with the end token, padded with `pad_id`, or with `end_id` for a model without `pad_id`.
        lengths: int32 (B, N), with the end token.
        scores: float32 (B, N), summed log-probabilities under the model's own distribution.
        ranking_scores: float32 (B, N), the scores by which hypotheses are sorted, length penalty included.
        token_scores: float32 (B, N, M), the log-probability of each token, 0 after the end.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    ranking_scores: np.ndarray
    token_scores: np.ndarray | None = None

    @property
    def best(self) -> np.ndarray:
        """The ids (B, M) of the first hypothesis."""
        return self.ids[:, 0]


class Generator:
    """Generate with one model and fixed settings.

    Batches are padded to a few shapes, so that calls of similar sizes reuse a compiled function.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or a decoder-only model (see `GenerativeModel`).
        sampler: a sampler or its name.
        max_new_tokens: M, the maximum number of new tokens.
        jit_compile: whether to compile with XLA.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output.

    Raises:
        TypeError: If the model has no `step` or `empty_cache`.
        ValueError: If `sampler` is unknown, a setting is out of range or constraints contradict each other.
    """

    def __init__(
        self,
        model: Any,
        sampler: Any = "greedy",
        max_new_tokens: int = 64,
        jit_compile: bool = True,
        *,
        min_new_tokens: int = 0,
        constraints: Sequence[Constraint] = (),
    ) -> None:
        self.model = model
        self.sampler = samplers.get(sampler)
        LogitsProcessors.of(model, max_new_tokens, min_new_tokens, constraints).check_sampler(self.sampler)
        validation.check_max_new_tokens(max_new_tokens)
        if isinstance(self.sampler, samplers.Beam):
            self.sampler.penalties(max_new_tokens)  # raises if they are outside float32
        if not isinstance(jit_compile, bool):
            raise ValueError(f"`jit_compile` must be True or False. Received: jit_compile={jit_compile!r}")
        self.max_new_tokens = int(max_new_tokens)
        self.min_new_tokens = int(min_new_tokens)
        self.constraints = tuple(constraints)
        self.jit_compile = jit_compile
        self._variables: list[Any] = []
        self._runs: dict[Any, Callable[[Any], Any]] = {}

    def __call__(
        self,
        source_ids: Any,
        prefix_ids: Any = None,
        rows: Any = None,
        noise: Any = None,
        limits: Any = None,
        seed: int | None = None,
        padding_mask: Any = None,
    ) -> Generation:
        """Generate for a batch of padded sources.

        Args:
            source_ids: integers (B, S); for a decoder-only model the prompts.
            prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder.
            rows: integers (B,) in [0, 2³¹), the row numbers that seed the sampling noise, by default 0, 1, 2, …
            noise: floats (B, R, L, V) in [0, 1], sampling noise in place of the seed.
            limits: integers (B,) in [1, M], the maximum number of new tokens of each row, by default M.
            seed: an integer in [0, 2³²), in place of the sampler's seed.
            padding_mask: booleans (B, S), False for padding; ids equal to the model's `pad_id` are padding too.

        Returns:
            A `Generation` with L = max(limits) columns; empty for B = 0.

        Raises:
            ValueError: If ids are not a matrix of ids in the vocabulary, a prompt is empty or too long, a prefix has
                padding between tokens, no sequence satisfies the constraints, or the model's logits are NaN.
        """
        given = self._checked_inputs(source_ids, prefix_ids, rows, noise, limits, seed, padding_mask)
        batch_size, max_limit = len(given["source_ids"]), self._max_limit(given)
        if batch_size == 0:
            return self._empty()
        result = {
            name: keras.ops.convert_to_numpy(value)[:batch_size]
            for name, value in self._compiled()(self._padded_all(given)).items()
        }
        validation.check_finite(result.pop("failed_step"))
        validation.check_found(result["scores"])
        for name in ("ids", "token_scores"):
            result[name] = result[name][..., :max_limit]
        integers = ("ids", "lengths")
        return Generation(
            **{
                name: value.astype(np.int32 if name in integers else np.float32)
                for name, value in result.items()
            }
        )

    def _checked_inputs(
        self,
        source_ids: Any,
        prefix_ids: Any,
        rows: Any,
        noise: Any = None,
        limits: Any = None,
        seed: int | None = None,
        padding_mask: Any = None,
    ) -> Arrays:
        """Return the validated inputs of the loop."""
        source_ids = self._ids("source_ids", source_ids)
        batch_size = len(source_ids)
        real = validation.source_mask(self.model, source_ids, padding_mask)
        given = self._masked(source_ids, real)
        if prefix_ids is not None:
            given["prefix_ids"] = validation.checked_prefix(self.model, prefix_ids, batch_size)
        if limits is not None:
            given["limits"] = validation.checked_integers(
                "limits", limits, batch_size, 1, self.max_new_tokens
            )
        reads_last = isinstance(self.sampler, samplers.Contrastive)  # it reads every token it generates
        draft = getattr(self.sampler, "draft", None)
        prefixes = given["prefix_ids"] != self.model.pad_id if "prefix_ids" in given else real[:, :0]
        validation.check_lengths(self.model, real, prefixes, self._max_limit(given), reads_last, draft)
        rows = validation.checked_integers(
            "rows", np.arange(batch_size) if rows is None else rows, batch_size
        )
        samples = isinstance(self.sampler, samplers.Sample)
        if seed is not None:
            validation.check_seed(seed)
        if samples:
            given["rows"] = rows
            seed = self.sampler.seed if seed is None else seed
            given["seed"] = np.array([seed], np.uint32).view(np.int32)
        if noise is not None:
            if not samples:
                raise ValueError(
                    f"`noise` must be None for a sampler that draws nothing. Received: sampler={self.sampler}"
                )
            shape = (batch_size, self.sampler.hypotheses, self._max_limit(given), self.model.vocabulary_size)
            given["noise"] = validation.checked_noise(noise, shape)
        return given

    def _max_limit(self, given: Arrays) -> int:
        """Return the largest limit of any row."""
        limits = given.get("limits")
        return self.max_new_tokens if limits is None or not len(limits) else int(limits.max())

    def _compiled(self, name: str = "_loop") -> Callable[[Any], Any]:
        """Return a compiled method; compile it again if quantization or LoRA has replaced the model's variables."""
        variables = self._all_variables()
        same = len(variables) == len(self._variables) and all(map(operator.is_, variables, self._variables))
        if not same:
            self._variables = variables
            self._runs = {}
        if name not in self._runs:
            self._runs[name] = compiled(variables, getattr(self, name), self.jit_compile)
        return self._runs[name]

    def _all_variables(self) -> list[Any]:
        drafts = [self.sampler.draft] if isinstance(self.sampler, samplers.Speculative) else []
        return [variable for model in (self.model, *drafts) for variable in model.variables]

    def _loop(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return generate_ids(
            self.model,
            max_new_tokens=self.max_new_tokens,
            sampler=self.sampler,
            min_new_tokens=self.min_new_tokens,
            constraints=self.constraints,
            **arrays,
        )

    def _padded_all(self, given: Arrays) -> Arrays:
        """Pad each input to one of a few shapes; padding rows have a limit of 1."""
        ids = dict.fromkeys(("source_ids", "prefix_ids", "target_ids"), validation.padding_value(self.model))
        values_of = {**ids, "limits": 1}
        return {name: self._padded(values, values_of.get(name, 0)) for name, values in given.items()}

    def _padded(self, values: np.ndarray, padding_value: int) -> np.ndarray:
        """Pad each axis to the next power of two; noise, which has M steps, only the first."""
        if values.ndim == 4:
            shape = [bucket(len(values), 1), values.shape[1], self.max_new_tokens, values.shape[3]]
        else:
            shape = [bucket(size, smallest) for size, smallest in zip(values.shape, (1, 8), strict=False)]
        dtype = {"f": np.float32, "b": np.bool_}.get(values.dtype.kind, np.int32)
        padded = np.full(shape, padding_value, dtype)
        padded[tuple(slice(size) for size in values.shape)] = values
        return padded

    def _masked(self, source_ids: np.ndarray, real: np.ndarray) -> Arrays:
        """Return ids with `pad_id` at padding, or ids and a mask for a model without `pad_id`."""
        if self.model.pad_id is None:
            return {"source_ids": source_ids, "padding_mask": real}
        return {"source_ids": np.where(real, source_ids, self.model.pad_id)}

    def _empty(self) -> Generation:
        shape = (0, self.sampler.num_return)
        scores, tokens = np.zeros(shape, np.float32), (*shape, self.max_new_tokens)
        return Generation(
            np.zeros(tokens, np.int32),
            np.zeros(shape, np.int32),
            scores,
            scores,
            np.zeros(tokens, np.float32),
        )

    def checked_pair(
        self, source_ids: Any, target_ids: Any, padding_mask: Any = None, target_padding_mask: Any = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return validated ids and masks (False for padding) of sources and targets.

        There are as many targets as sources, targets have non-empty sources and are padded on the right.
        """
        source_ids = self._ids("source_ids", source_ids)
        target_ids = self._ids("target_ids", target_ids)
        if len(target_ids) != len(source_ids):
            raise ValueError(
                "`target_ids` must have as many rows as `source_ids`. "
                f"Received: target_ids.shape={target_ids.shape}, {len(source_ids)} sources"
            )
        sources = validation.source_mask(self.model, source_ids, padding_mask)
        targets = validation.target_mask(self.model, target_ids, target_padding_mask)
        validation.check_tokens(sources, not is_encoder_decoder(self.model) or targets.any(axis=1))
        validation.check_padding("target_ids", targets)
        return source_ids, sources, target_ids, targets

    def _ids(self, name: str, ids: Any) -> np.ndarray:
        return validation.checked_ids(name, ids, self.model.vocabulary_size)


def generate(
    model: Any,
    source_ids: Any,
    sampler: Any = "greedy",
    *,
    max_new_tokens: Any = 64,
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Any = None,
    padding_mask: Any = None,
    rows: Any = None,
    noise: Any = None,
) -> Generation:
    """Generate target ids for source ids, or continue prompts.

    The sampler's settings except its seed, `min_new_tokens` and `constraints` are compiled in: each new combination is
    compiled once, and the model caches the last 32. Ids, `max_new_tokens`, rows, noise and seed are inputs and may
    change between calls; a new function is compiled only for another power of two of rows, columns or tokens.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or a decoder-only model (see `GenerativeModel`).
        source_ids: integers (B, S), padded with the model's `pad_id`, or with any id if a `padding_mask` is given;
            for a decoder-only model the prompts, padded on either side.
        sampler: a sampler or its name.
        max_new_tokens: M, the maximum number of new tokens, with the end token; or integers (B,), one for each row,
            with maximum M.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output, such as `NoRepeatNGram(3)`.
        prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder, which are not part of the output.
        padding_mask: booleans (B, S), False for padding; ids equal to the model's `pad_id` are padding too. A model
            whose `pad_id` is None, such as GPT-2, needs the mask for padded prompts.
        rows: integers (B,) in [0, 2³¹), the row numbers that seed the sampling noise, by default 0, 1, 2, …
        noise: floats (B, R, M, V) in [0, 1], sampling noise in place of the seed.

    Returns:
        A `Generation`.

    Raises:
        TypeError: If the model has no `step` or `empty_cache`.
        ValueError: If an argument is out of range, no sequence satisfies the constraints, or logits are NaN.

    Example:
        >>> out = generate(model, source_ids, Beam(4, num_return=2), max_new_tokens=32)
        >>> out.ids.shape, out.best.shape
        ((2, 2, 32), (2, 32))
    """
    settings = (sampler, max_new_tokens, min_new_tokens, constraints)
    generator, inputs = cached_generator(Generator, model, source_ids, *settings)
    return generator(prefix_ids=prefix_ids, padding_mask=padding_mask, rows=rows, noise=noise, **inputs)


def cached_generator(
    cls: Any,
    model: Any,
    source_ids: Any,
    sampler: Any,
    max_new_tokens: Any,
    min_new_tokens: int,
    constraints: Sequence[Constraint],
) -> tuple[Any, dict[str, Any]]:
    """Return the model's cached generator for all limits of a bucket, and the inputs of this call."""
    validation.check_generates("model", model)
    source_ids = validation.checked_ids("source_ids", source_ids, model.vocabulary_size)
    batch_size = len(source_ids)
    if np.ndim(max_new_tokens) == 0:
        least = largest = max_new_tokens
    else:
        limits = validation.checked_integers(
            "max_new_tokens", max_new_tokens, batch_size, 1, validation.MAX_NEW_TOKENS
        )
        least, largest = (int(limits.min()), int(limits.max())) if batch_size else (1, 1)
    sampler = samplers.get(sampler)
    LogitsProcessors.of(model, least, min_new_tokens, constraints)  # raises for invalid arguments
    constraints = tuple(map(get_constraint, constraints))
    validation.check_max_new_tokens(largest)
    inputs = {
        "source_ids": source_ids,
        "limits": np.broadcast_to(max_new_tokens, batch_size),
        "seed": getattr(sampler, "seed", None),
    }
    if isinstance(sampler, samplers.Sample):
        sampler = dataclasses.replace(sampler, seed=0)  # the seed is an input
    max_limit = bucket(largest, 8) if batch_size else largest  # an empty batch is not run
    key = (cls, sampler, max_limit, min_new_tokens, constraints)
    with _CACHE_LOCK:
        # On the model, so that compiled functions live as long as it does; `__dict__` bypasses attribute tracking.
        kept = model.__dict__.setdefault("_generators", {})
        generator = kept.pop(key, None) or cls(
            model, sampler, max_limit, min_new_tokens=min_new_tokens, constraints=constraints
        )
        kept[key] = generator  # most recently used last
        if len(kept) > MAX_CACHED_GENERATORS:
            del kept[next(iter(kept))]
    return generator, inputs
