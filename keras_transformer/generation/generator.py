"""Run the generation loop from Python, compiled once for each bucket of shapes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.generation import validation
from keras_transformer.generation.compilation import Arrays, ModelFunctions, bucket, cached
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.generative_model import GenerativeModel
from keras_transformer.generation.loop import run_search
from keras_transformer.generation.search.interface import Inputs
from keras_transformer.generation.settings import Settings
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_seed


@dataclasses.dataclass(frozen=True)
class Generation:
    """Generated ids and scores for a batch of B rows, with N hypotheses (one by default) of at most M tokens each.

    The hypotheses of a beam search are sorted from best to worst; if it finds fewer than N, the others have length 0
    and score −∞. Samples are in the order in which they were drawn.

    Attributes:
        ids: int32 (B, N, M), including the end token, padded with `pad_id`, or `end_id` for a model without `pad_id`.
        lengths: int32 (B, N), including the end token.
        scores: float32 (B, N), summed log-probabilities under the model's own distribution.
        ranking_scores: float32 (B, N), the scores by which a beam search sorts, including the length penalty.
        token_scores: float32 (B, N, M), the log-probability of each token, 0 after the end.
        seed: the seed of a `Sample`, which repeats the same draws; None for other samplers, or with `noise`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    ranking_scores: np.ndarray
    token_scores: np.ndarray | None = None
    seed: int | None = None

    @property
    def best(self) -> np.ndarray:
        """The ids (B, M) of the first hypothesis."""
        return self.ids[:, 0]


class Generator(ModelFunctions):
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
        ValueError: if constraints contradict each other.
    """

    def __init__(
        self,
        model: GenerativeModel,
        sampler: Any = "greedy",
        max_new_tokens: int = 64,
        jit_compile: bool = True,
        *,
        min_new_tokens: int = 0,
        constraints: Sequence[Constraint] = (),
    ) -> None:
        settings = Settings.of(model, sampler, max_new_tokens, min_new_tokens, constraints)
        check(isinstance(jit_compile, bool), "be True or False", jit_compile=jit_compile)
        self._set(model, settings, jit_compile)

    @classmethod
    def of(cls, model: GenerativeModel, settings: Settings) -> Any:
        """Create a generator from validated settings."""
        generator = cls.__new__(cls)
        generator._set(model, settings)
        return generator

    def _set(self, model: GenerativeModel, settings: Settings, jit_compile: bool = True) -> None:
        super().__init__(model, jit_compile, settings.sampler.drafts)
        self.settings = settings
        self.max_new_tokens = settings.max_new_tokens
        self._run = self._compile(self._loop)

    def __call__(
        self,
        source_ids: Any,
        prefix_ids: Any = None,
        rows: Any = None,
        noise: Any = None,
        limits: Any = None,
        seed: int | None = None,
        padding_mask: Any = None,
        start_ids: Any = None,
        minimums: Any = None,
        temperatures: Any = None,
        seeds: Any = None,
    ) -> Generation:
        """Generate for a batch of padded sources.

        Args:
            source_ids: integers (B, S); for a decoder-only model the prompts.
            prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder.
            rows: integers (B,) in [0, 2³¹), the row numbers that seed the sampling noise, by default 0, 1, 2, …
            noise: floats (B, R, L) in [0, 1], sampling noise in place of the seed.
            limits: integers (B,) in [1, M], the maximum number of new tokens of each row, by default M.
            seed: an integer in [0, 2³²), in place of the sampler's seed; if both are None, a new one is drawn.
            padding_mask: booleans (B, S), False for padding; ids equal to the model's `pad_id` are padding too.
            start_ids: integers (B,), the first input of the decoder in each row, by default the model's `start_id`.
            minimums: integers (B,), the minimum number of tokens of each row before an end token, by default 0.
            temperatures: positive numbers (B,), the temperature of each row, in place of the sampler's.
            seeds: integers (B,) in [0, 2³²), the seed of each row, in place of `seed`.

        Returns:
            A `Generation` with L = max(limits) columns; empty for B = 0.

        Raises:
            ValueError: if ids are not a matrix of ids in the vocabulary, a prompt is empty or too long, a prefix has
                padding between tokens, no sequence satisfies the constraints, or the model's logits are NaN.
        """
        source_ids = validation.checked_source(self.model, source_ids)
        if limits is not None:
            limits = validation.checked_integers("limits", limits, len(source_ids), 1, self.max_new_tokens)
        return self.generate(
            source_ids,
            limits,
            prefix_ids=prefix_ids,
            rows=rows,
            noise=noise,
            seed=seed,
            padding_mask=padding_mask,
            start_ids=start_ids,
            minimums=minimums,
            temperatures=temperatures,
            seeds=seeds,
        )

    def generate(self, source_ids: np.ndarray, limits: np.ndarray | None, **options: Any) -> Generation:
        """Do the same as `__call__` for validated `source_ids` and `limits`; `options` are its other arguments."""
        inputs, batch_size = self._inputs(source_ids, limits, **options), len(source_ids)
        if batch_size == 0:
            return self._empty()
        drawn = (
            {*inputs["seed"].view(np.uint32).tolist()} if "seed" in inputs and "noise" not in inputs else ()
        )
        seed = min(drawn) if len(drawn) == 1 else None
        result = {
            name: keras.ops.convert_to_numpy(value)[:batch_size]
            for name, value in self._run(self._padded(inputs)).items()
        }
        validation.check_finite(result.pop("failed_step"))
        validation.check_sequences(result["scores"])
        for name in ("ids", "token_scores"):
            result[name] = result[name][..., : self._max_limit(limits)]
        integers = ("ids", "lengths")
        return Generation(
            **{
                name: value.astype(np.int32 if name in integers else np.float32)
                for name, value in result.items()
            },
            seed=seed,
        )

    def _inputs(
        self,
        source_ids: np.ndarray,
        limits: np.ndarray | None,
        *,
        prefix_ids: Any = None,
        rows: Any = None,
        noise: Any = None,
        seed: int | None = None,
        padding_mask: Any = None,
        start_ids: Any = None,
        minimums: Any = None,
        temperatures: Any = None,
        seeds: Any = None,
    ) -> Arrays:
        """Validate the arguments, and return the inputs of the loop."""
        sampler: Any = self.settings.sampler
        model, batch_size = self.model, len(source_ids)
        real = validation.source_mask(model, source_ids, padding_mask)
        inputs = validation.masked(model, source_ids, real)
        if prefix_ids is not None:
            inputs["prefix_ids"] = validation.checked_prefix(model, prefix_ids, batch_size)
        if start_ids is not None:
            inputs["start_ids"] = validation.checked_start(model, start_ids, batch_size)
        if limits is not None:
            inputs["limits"] = limits
        if minimums is not None:
            inputs["minimums"] = validation.checked_integers(
                "minimums", minimums, batch_size, 0, self.max_new_tokens
            )
        for name, values in (("temperatures", temperatures), ("seeds", seeds)):
            if values is not None and not sampler.draws:
                raise ValueError(
                    f"`{name}` must be None for a sampler that draws nothing. Received: sampler={sampler}"
                )
        if temperatures is not None:
            inputs["temperatures"] = validation.checked_temperatures(temperatures, batch_size)
        prefixes = inputs["prefix_ids"] != model.pad_id if "prefix_ids" in inputs else real[:, :0]
        max_limit = self._max_limit(limits)
        validation.check_lengths(model, real, prefixes, max_limit, sampler.reads_last, sampler.drafts)
        rows = validation.checked_integers(
            "rows", np.arange(batch_size) if rows is None else rows, batch_size
        )
        if seed is not None:
            check_seed(seed=seed)
        if sampler.draws:
            inputs["rows"] = rows
            seed = validation.seed_or_new(sampler.seed if seed is None else seed)
            seeds = (
                [seed]
                if seeds is None
                else validation.checked_integers("seeds", seeds, batch_size, 0, 2**32 - 1)
            )
            inputs["seed"] = np.array(seeds, np.uint32).view(np.int32)
        if noise is not None:
            if not sampler.draws:
                raise ValueError(
                    f"`noise` must be None for a sampler that draws nothing. Received: sampler={sampler}"
                )
            shape = (batch_size, sampler.hypotheses, max_limit)
            noise = validation.checked_noise(noise, shape)
            inputs["noise"] = np.pad(noise, [(0, 0), (0, 0), (0, self.max_new_tokens - max_limit)])
        return inputs

    def _max_limit(self, limits: np.ndarray | None) -> int:
        """Return the largest limit of any row."""
        return self.max_new_tokens if limits is None or not len(limits) else int(limits.max())

    def _loop(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return run_search(Inputs(self.model, self.settings, **arrays))

    def _empty(self) -> Generation:
        shape = (0, self.settings.sampler.num_return)
        scores, tokens = np.zeros(shape, np.float32), (*shape, self.max_new_tokens)
        return Generation(
            np.zeros(tokens, np.int32),
            np.zeros(shape, np.int32),
            scores,
            scores,
            np.zeros(tokens, np.float32),
        )


def generate(
    model: GenerativeModel,
    source_ids: Any,
    sampler: Any = "greedy",
    *,
    max_new_tokens: Any = 64,
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Any = None,
    start_ids: Any = None,
    padding_mask: Any = None,
    rows: Any = None,
    noise: Any = None,
    minimums: Any = None,
    temperatures: Any = None,
    seeds: Any = None,
) -> Generation:
    """Generate target ids for source ids, or continue prompts.

    The sampler's settings except its seed, `min_new_tokens` and `constraints` are compiled in: each new combination is
    compiled once, and the model caches the last 32. Ids, `max_new_tokens`, rows, noise and seed are inputs and may
    change between calls. Batch size, length and number of tokens are padded to powers of two; a function is compiled
    for each.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or a decoder-only model (see `GenerativeModel`).
        source_ids: integers (B, S), padded with the model's `pad_id`, or with any id if a `padding_mask` is given;
            after the tokens, but for a decoder-only model, whose prompts may be padded on either side.
        sampler: a sampler or its name.
        max_new_tokens: M, the maximum number of new tokens, including the end token; or integers (B,) with
            maximum M.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output, such as `NoRepeatNGram(3)`.
        prefix_ids: integers (B, Q), the first target tokens of an encoder–decoder, which are not part of the output.
        start_ids: integers (B,), the first input of an encoder–decoder's decoder in each row, by default the model's
            `start_id`; mBART starts with the token of the target language.
        padding_mask: booleans (B, S), False for padding; ids equal to the model's `pad_id` are padding too. A model
            whose `pad_id` is None, such as GPT-2, needs the mask for padded prompts.
        rows: integers (B,) in [0, 2³¹), the row numbers that seed the sampling noise, by default 0, 1, 2, …
        noise: floats (B, R, M) in [0, 1], sampling noise in place of the seed.
        minimums: integers (B,), the minimum number of tokens of each row before an end token. Unlike `min_new_tokens`
            they are inputs.
        temperatures: positive numbers (B,), the temperature of each row, in place of the sampler's.
        seeds: integers (B,) in [0, 2³²), the seed of each row, in place of the sampler's.

    Raises:
        ValueError: if an argument is out of range, no sequence satisfies the constraints, or logits are NaN.

    Example:
        >>> out = generate(model, source_ids, Beam(4, num_return=2), max_new_tokens=32)
        >>> out.ids.shape, out.best.shape
        ((2, 2, 32), (2, 32))
    """
    generator, source_ids, limits, seed = cached_generator(
        Generator, model, source_ids, sampler, max_new_tokens, min_new_tokens, constraints
    )
    return generator.generate(
        source_ids,
        limits,
        prefix_ids=prefix_ids,
        rows=rows,
        noise=noise,
        seed=seed,
        padding_mask=padding_mask,
        start_ids=start_ids,
        minimums=minimums,
        temperatures=temperatures,
        seeds=seeds,
    )


def cached_generator(
    cls: Any,
    model: GenerativeModel,
    source_ids: Any,
    sampler: Any,
    max_new_tokens: Any,
    min_new_tokens: int,
    constraints: Sequence[Constraint],
) -> tuple[Any, np.ndarray, np.ndarray, int | None]:
    """Return the model's cached generator for all limits of a bucket, and validated source ids, limits and seed."""
    validation.check_generates("model", model)
    source_ids = validation.checked_source(model, source_ids)
    batch_size = len(source_ids)
    if np.ndim(max_new_tokens) == 0:
        smallest = largest = max_new_tokens
    else:
        limits = validation.checked_integers(
            "max_new_tokens", max_new_tokens, batch_size, 1, validation.MAX_NEW_TOKENS
        )
        smallest, largest = (int(limits.min()), int(limits.max())) if batch_size else (1, 1)
    settings = Settings.of(model, sampler, smallest, min_new_tokens, constraints)
    valid_sampler: Any = settings.sampler
    seed = validation.seed_or_new(valid_sampler.seed) if valid_sampler.draws else None
    settings = dataclasses.replace(
        settings,
        # The seed is an input.
        sampler=dataclasses.replace(valid_sampler, seed=0) if valid_sampler.draws else valid_sampler,
        # An empty batch is not run.
        max_new_tokens=bucket(largest, 8) if batch_size else largest,
    )
    settings.sampler.check(model, settings.max_new_tokens)
    generator = cached(model, (cls, settings), lambda proxy: cls.of(proxy, settings))
    return generator, source_ids, np.broadcast_to(max_new_tokens, batch_size), seed
