"""The engine of a Keras model that generates, on its backend."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer import generation
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import EndTokens
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.settings import Settings
from keras_transformer.generation.validation import padding_value, seed_or_new
from keras_transformer.pipelines.keras_forward_engine import device_of_keras
from keras_transformer_serving.generation import (
    GENERATE,
    SCORE,
    Generated,
    Scored,
    Source,
    Token,
    option_of,
    padded,
)
from keras_transformer_serving.jobs import Method


class KerasEngine:
    """A `GenerationEngine` of a Keras model: `generation.generate` and `generation.score`.

    Args:
        model: the model.
        settings: the sampler, the constraints and the maximum number of new tokens.
    """

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model = model
        self.keras_sampler: Any = settings.sampler
        self.keras_constraints = settings.logits_processors.constraints
        self.max_new_tokens = settings.max_new_tokens
        self.num_return: int = settings.sampler.num_return
        self.vocabulary_size: int = model.vocabulary_size
        self.pad_id: int | None = model.pad_id
        self.start_id: int | None = model.start_id if is_encoder_decoder(model) else None
        self.end_id: int = model.end_id
        ends = (each.ids() for each in self.keras_constraints if isinstance(each, EndTokens))
        self.end_ids = frozenset((self.end_id, *(id_ for ids in ends for id_ in ids)))
        self.methods: Mapping[str, Method] = {GENERATE: self._generate, SCORE: self._score}
        self.options = ("max_new_tokens", "min_new_tokens", "temperature", "seed", "rows")
        self.needed_for_options: Mapping[str, str] = {}
        self.needed_to_attribute = self.needed_to_score = ""
        self.device = device_of_keras()

    @functools.cached_property
    def sampler(self) -> Mapping[str, Any]:
        """The settings of the sampler; its name alone for one with a draft model, which has no settings to store."""
        if isinstance(self.keras_sampler, samplers.Speculative):
            return {"sampler": "speculative"}
        return samplers.serialize(self.keras_sampler)

    @functools.cached_property
    def constraints(self) -> Sequence[Mapping[str, Any]]:
        """The settings of the constraints."""
        return [serialize_constraint(each) for each in self.keras_constraints]

    @property
    def needed_to_give_logits(self) -> str:
        """The requirement of logits of generated tokens, which are not given: an export."""
        return "an export whose engine gives logits, such as 'onnx'. Received: a pipeline"

    @property
    def needed_to_stream(self) -> str:
        """The requirement of generation token by token that is not met: a single hypothesis."""
        if self.keras_sampler.streams:
            return ""
        return f"a `sampler` with a single hypothesis. Received: sampler={self.keras_sampler}"

    def map(self, method: Method, batches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the results of a method for several batches, one after another."""
        return [method(batch) for batch in batches]

    def max_target_tokens(self, source: Source) -> int:
        """Return the number of the model's positions after the prompt, or the start token and the prefix."""
        limit = getattr(self.model, "max_length", None) or 2**30
        before = len(source.ids) - 1 if self.start_id is None else len(source.prefix_ids)
        return max(int(limit) - before, 0)

    def new_seed(self) -> int:
        """Return a new seed of sampling, from Python's `random`, as Keras draws its default seeds."""
        return seed_or_new(None)

    def ranking_score(self, score: float, length: int) -> float:
        """Return the score of a target after the beam's length penalty."""
        if not isinstance(self.keras_sampler, samplers.Beam):
            return score
        return float(score / self.keras_sampler.penalties(length)[length])

    def tokens(self, source: Source) -> Iterator[Token]:
        """Generate token by token; the arguments are checked now."""
        stream = generation.stream(
            self.model,
            sampler=self.keras_sampler,
            constraints=self.keras_constraints,
            **self._arguments([source]),
        )
        return (Token(int(ids[0])) for ids in stream)

    def attention(
        self, source: Source, target_ids: Sequence[int], layer: int, head: int | Sequence[int] | None
    ) -> np.ndarray:
        """Return the cross-attention weights (T, S) of a layer for a target; see `generation.align`."""
        ids = np.array([[*source.prefix_ids, *target_ids]], np.int32)
        starts = None if source.start_id is None else np.array([source.start_id])
        source_ids = np.array([source.ids], np.int32)
        weights = generation.align(self.model, source_ids, ids, layer=layer, head=head, start_ids=starts)
        of_target: np.ndarray = weights[0, len(source.prefix_ids) :]
        return of_target

    def _generate(self, batch: Sequence[Source]) -> list[Generated]:
        out = generation.generate(
            self.model,
            sampler=self.keras_sampler,
            constraints=self.keras_constraints,
            **self._arguments(batch),
        )
        return [
            Generated(ids, lengths, scores, ranking_scores, token_scores)
            for ids, lengths, scores, ranking_scores, token_scores in zip(
                out.ids, out.lengths, out.scores, out.ranking_scores, out.token_scores, strict=True
            )
        ]

    def _score(self, batch: Sequence[Scored]) -> list[np.ndarray]:
        target_ids, target_mask = padded([each.target_ids for each in batch], self._padding_value)
        inputs = self._sources([each.source for each in batch])
        for row, each in zip(inputs["padding_mask"], batch, strict=True):
            if each.mask is not None:
                row[: len(each.mask)] &= each.mask != 0
        scores = generation.score(
            self.model, target_ids=target_ids, target_padding_mask=target_mask != 0, **inputs
        )
        return [row[: len(each.target_ids)] for row, each in zip(scores.token_scores, batch, strict=True)]

    @property
    def _padding_value(self) -> int:
        return padding_value(self.model)

    def _arguments(self, batch: Sequence[Source]) -> dict[str, Any]:
        """Return the arguments of `generation.generate` for a batch of sources, besides the settings."""
        limits = [source.options.get("max_new_tokens", self.max_new_tokens) for source in batch]
        arguments: dict[str, Any] = {**self._sources(batch), "max_new_tokens": np.array(limits)}
        if any(minimums := option_of(batch, "min_new_tokens", 0) or ()):
            arguments["minimums"] = np.array(minimums)
        if self.keras_sampler.draws:
            arguments["rows"] = np.array([source.options["rows"] for source in batch])
            arguments["seeds"] = np.array([source.options["seed"] for source in batch])
            if temperatures := option_of(batch, "temperature", self.keras_sampler.temperature):
                arguments["temperatures"] = np.array(temperatures, np.float32)
        return arguments

    def _sources(self, batch: Sequence[Source]) -> dict[str, Any]:
        """Return the source ids, their mask, and the beginnings of targets of a batch."""
        source_ids, mask = padded([source.ids for source in batch], self._padding_value)
        inputs = {"source_ids": source_ids, "padding_mask": mask != 0}
        if any(len(source.prefix_ids) for source in batch):
            inputs["prefix_ids"], _ = padded([source.prefix_ids for source in batch], self._padding_value)
        if any(source.start_id is not None for source in batch):
            starts = [self.start_id if source.start_id is None else source.start_id for source in batch]
            inputs["start_ids"] = np.array(starts)
        return inputs
