"""Ensembles of models."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.validation import check_compatible, check_generates
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import is_number


class Ensemble:
    r"""A model for `generate` that averages the next-token distributions of several models.

    $$p(v) = \sum_m w_m\, p_m(v), \quad \sum_m w_m = 1$$

    Compiled functions are cached for each ensemble object: reuse it to generate more than once.

    Args:
        models: encoder–decoders, or decoder-only models, with the same vocabulary and special ids.
        weights: w, positive numbers, which are normalized to sum to 1; by default equal.

    Example:
        >>> generate(Ensemble([first, second]), source_ids, Beam(4))

    References:
        Sutskever et al., "Sequence to Sequence Learning with Neural Networks" (2014), section 3.6.
    """

    def __init__(self, models: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        if not isinstance(models, list | tuple):
            raise TypeError(f"`models` must be a list of models. Received: a {type(models).__name__}")
        if not models:
            raise ValueError("`models` must not be empty. Received: models=[]")
        for model in models:
            check_generates("models", model)
            check_compatible(models[0], model, "models")
        self.models = list(models)
        self.weights = _normalized([1.0] * len(models) if weights is None else weights, len(models))
        for name in ("vocabulary_size", "pad_id", "end_id"):
            setattr(self, name, getattr(models[0], name))
        limits = {f"models[{i}]": getattr(model, "max_length", None) for i, model in enumerate(models)}
        bounded = {name: limit for name, limit in limits.items() if limit is not None}
        self.bounded_by = min(bounded, key=lambda name: bounded[name], default=None)
        self.max_length = min(bounded.values(), default=None)
        self.is_encoder_decoder = is_encoder_decoder(models[0])
        self.start_id = getattr(models[0], "start_id", None)

    @property
    def variables(self) -> list[Any]:
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def encode(self, source_ids: Tensor) -> list[Any] | None:
        """Return the context of each model, None for decoder-only models."""
        return [model.encode(source_ids) for model in self.models] if self.is_encoder_decoder else None

    def empty_cache(self, batch_size: Any, length: Any, **options: Any) -> list[Any]:
        """Return a cache for each model."""
        return [model.empty_cache(batch_size, length, **options) for model in self.models]

    def select(self, cache: list[Any], index: Tensor) -> list[Any]:
        """Return the caches in which hypothesis r continues hypothesis `index[:, r]`, integers (B, R)."""
        return [
            model.select(model_cache, index) if hasattr(model, "select") else model_cache
            for model, model_cache in zip(self.models, cache, strict=True)
        ]

    def step(
        self, ids: Tensor, cache: list[Any], context: list[Any] | None = None, **options: Any
    ) -> tuple[Tensor, list[Any]]:
        """Return the logarithms of the mean probabilities, (B, T, V), as logits, and the new caches."""
        log_probabilities, new_cache = [], []
        for i, (model, weight) in enumerate(zip(self.models, self.weights, strict=True)):
            model_context = () if context is None else (context[i],)
            logits, model_cache = model.step(ids, cache[i], *model_context, **options)
            log_probabilities.append(ops.log_softmax(ops.cast(logits, "float32"), axis=-1) + math.log(weight))
            new_cache.append(model_cache)
        return ops.logsumexp(ops.stack(log_probabilities, axis=0), axis=0), new_cache


def _normalized(weights: Any, count: int) -> list[float]:
    """Return weights that sum to 1."""
    array = np.array(weights, object)
    if array.shape == (count,) and all(is_number(weight) and 0 < weight < math.inf for weight in array):
        normalized = [
            float(weight) / float(max(array)) for weight in array
        ]  # so that the sum does not overflow
        if min(normalized) > 0:
            return [weight / sum(normalized) for weight in normalized]
    raise ValueError(
        f"`weights` must be a positive number for each of {count} models. Received: weights={weights!r}"
    )
