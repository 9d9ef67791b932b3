"""Score targets by forced decoding."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.generation import validation
from keras_transformer.generation.compilation import ModelFunctions, cached
from keras_transformer.generation.generative_model import GenerativeModel, is_encoder_decoder
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search.logits import choose
from keras_transformer.ops import KVCache, StaticCache
from keras_transformer.typing import Tensor


@dataclasses.dataclass(frozen=True)
class Scores:
    """Log-probabilities of B targets of at most T tokens.

    Attributes:
        scores: float32 (B,), summed log-probabilities.
        token_scores: float32 (B, T), the log-probability of each token, 0 for padding.
        lengths: int32 (B,), the number of scored tokens.
    """

    scores: np.ndarray
    token_scores: np.ndarray
    lengths: np.ndarray


def score(
    model: GenerativeModel,
    source_ids: Any,
    target_ids: Any,
    *,
    padding_mask: Any = None,
    target_padding_mask: Any = None,
    prefix_ids: Any = None,
    start_ids: Any = None,
) -> Scores:
    """Return the log-probabilities of targets given their sources.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or a decoder-only model (see `GenerativeModel`).
        source_ids: integers (B, S), for a decoder-only model the prompts, with at least one token in each row.
        target_ids: integers (B, T) without a start token, padded on the right; the end token is scored if present.
        padding_mask: booleans (B, S), False for padding of the sources, as in `generate`.
        target_padding_mask: booleans (B, T), False for padding of the targets. By default ids equal to `pad_id` are
            padding; for a model without `pad_id`, trailing end tokens except the first are.
        prefix_ids: as in `generate`; a prefix is not scored.
        start_ids: as in `generate`.

    Raises:
        ValueError: if ids are not matrices of ids in the vocabulary, a prompt or the source of a target is empty,
            prompt and target together are too long, there are not as many targets as sources, a target has padding
            before a token, or the model's logits are NaN.

    Example:
        >>> out = generate(model, source_ids)
        >>> score(model, source_ids, out.best).scores.shape == out.scores[:, 0].shape
        True
    """
    validation.check_generates("model", model)
    inputs = validation.checked_pair(model, source_ids, target_ids, padding_mask, target_padding_mask)
    starts = {}
    if prefix_ids is not None:
        starts["prefix_ids"] = validation.checked_prefix(model, prefix_ids, len(inputs[0]))
    if start_ids is not None:
        starts["start_ids"] = validation.checked_start(model, start_ids, len(inputs[0]))
    return cached(model, "score", _Scorer).score(*inputs, starts)


class _Scorer(ModelFunctions):
    """The compiled scoring function of a model."""

    def __init__(self, model: GenerativeModel) -> None:
        super().__init__(model)
        self._run = self._compile(lambda arrays: score_ids(self.model, **arrays))

    def score(
        self,
        source_ids: np.ndarray,
        sources: np.ndarray,
        target_ids: np.ndarray,
        real: np.ndarray,
        starts: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> Scores:
        """Return the scores of validated source ids and target ids, each followed by its mask, False for padding.

        The `starts` are the validated "prefix_ids" and "start_ids", if there are any.
        """
        prefix = starts.get("prefix_ids", target_ids[:, :0])
        self._check_max_length(sources, real, (prefix != self.model.pad_id).sum(axis=1))
        lengths = real.sum(axis=1).astype(np.int32)
        if 0 in target_ids.shape:
            token_scores = np.zeros(target_ids.shape, np.float32)
        else:
            masked = validation.masked(self.model, source_ids, sources)
            inputs = {**masked, **starts, "target_ids": target_ids}
            outputs = keras.ops.convert_to_numpy(self._run(self._padded(inputs)))
            token_scores = outputs[: len(target_ids), : target_ids.shape[1]]
            token_scores = np.where(real, token_scores, 0).astype(np.float32)
            invalid = np.isnan(token_scores)
            validation.check_finite(np.where(invalid.any(axis=1), invalid.argmax(axis=1), -1))
        return Scores(token_scores.sum(axis=1), token_scores, lengths)

    def _check_max_length(self, sources: np.ndarray, targets: np.ndarray, prefixes: np.ndarray) -> None:
        """Raise a ValueError if prompt and target, without its last token, exceed the model's maximum length."""
        limit = getattr(self.model, "max_length", None)
        if limit is None or 0 in targets.shape:
            return
        prompt = 1 + prefixes if is_encoder_decoder(self.model) else sources.sum(axis=1)
        lengths = prompt + np.maximum(targets.sum(axis=1), 1) - 1
        if lengths.max() > limit:
            raise ValueError(
                f"`target_ids` must fit the model's `max_length` of {limit} together with the prompt. "
                f"Received: {lengths.max()} tokens in row {lengths.argmax()}"
            )


def score_ids(
    model: GenerativeModel,
    source_ids: Tensor,
    target_ids: Tensor,
    padding_mask: Tensor | None = None,
    kv_cache: KVCache = StaticCache(),
    *,
    prefix_ids: Tensor | None = None,
    start_ids: Tensor | None = None,
) -> Tensor:
    """Return the log-probability (B, T) of each target token, in one pass over prompt and target."""
    decoder = PromptedModel.of(model, kv_cache, source_ids, prefix_ids, padding_mask, start_ids=start_ids)
    prompt = decoder.prompt
    ids = ops.concatenate([ops.cast(prompt.ids, "int32"), ops.cast(target_ids, "int32")], axis=1)[:, :-1]
    following = prompt.positions[:, -1:] + 1 + ops.arange(ops.shape(target_ids)[1], dtype="int32")
    positions = ops.concatenate([prompt.positions, following], axis=1)[:, :-1]
    # Targets are padded on the right, which causal attention hides.
    real = ops.concatenate([prompt.real, ops.ones_like(target_ids, "bool")], axis=1)[:, :-1]
    logits, _ = decoder.step(ids, decoder.empty_cache(ops.shape(ids)[1], 1), 0, positions, real)
    logits = ops.cast(logits[:, decoder.before :], "float32")
    return choose(ops.log_softmax(logits), ops.cast(target_ids, "int32"))
