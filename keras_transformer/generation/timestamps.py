"""The rules of Whisper's timestamps, as a constraint."""

import dataclasses

from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN, Constraint, History, as_count
from keras_transformer.typing import Tensor


@dataclasses.dataclass(frozen=True)
class Timestamps(Constraint):
    """Generate the timestamps of Whisper around texts, unless the prompt ends with `no_timestamps_id`.

    Ids above `no_timestamps_id` are timestamps. Outputs are t₀ text t₁ t₁' text t₂ …, where t₀ ≤ `max_initial`, and
    timestamps never decrease. A timestamp is generated where all of them together are more probable than any other
    token.

    Args:
        no_timestamps_id: the token "<|notimestamps|>", after which texts are without timestamps.
        max_initial: the largest first timestamp, the index of its token among timestamps; None for any.

    References:
        Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 4.5.
    """

    no_timestamps_id: int
    max_initial: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "no_timestamps_id", as_count("no_timestamps_id", self.no_timestamps_id, 0))
        if self.max_initial is not None:
            object.__setattr__(self, "max_initial", as_count("max_initial", self.max_initial, 0))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid tokens that break the order of texts and timestamps."""
        if history.last_prompt_ids is None:
            return logits
        first, at = self.no_timestamps_id + 1, history.at
        others, times = logits[..., :first], logits[..., first:]
        index, time = (ops.arange(part.shape[-1], dtype="int32") for part in (others, times))
        before, latest = (ops.greater_equal(ids, first)[..., None] for ids in history.last(2))
        is_after_time = ops.logical_and(at >= 1, latest)
        is_begun = ops.logical_and(is_after_time, ops.logical_or(at < 2, before))
        is_ended = ops.logical_and(is_after_time, ops.logical_not(is_begun))
        # Timestamps do not decrease, so that the largest is the last. Only the end of a text may be repeated.
        last = ops.max(ops.where(history.written, history.ids, 0), axis=-1, keepdims=True)
        least = ops.maximum(last + 1 - ops.cast(is_ended, "int32") - first, 0)
        forbidden = ops.logical_or(is_begun, time < least)
        if self.max_initial is not None:
            forbidden = ops.logical_or(forbidden, ops.logical_and(at < 1, time > self.max_initial))
        times = ops.where(forbidden, FORBIDDEN, times)
        is_text = ops.logical_and(is_ended, index < history.end_ids[0])
        forbidden = ops.logical_or(ops.logical_or(is_text, at < 1), ops.equal(index, self.no_timestamps_id))
        others = ops.where(forbidden, FORBIDDEN, others)
        highest = ops.max(others, axis=-1, keepdims=True)
        # `logsumexp` tests for infinite numbers, which ONNX does not in float16.
        largest = ops.max(times, axis=-1, keepdims=True)
        total = ops.sum(ops.exp(times - largest), axis=-1, keepdims=True)
        is_time = largest + ops.log(total) > highest
        others = ops.where(is_time, FORBIDDEN, others)
        is_timed = ops.not_equal(history.last_prompt_ids, self.no_timestamps_id)[:, None, None]
        return ops.where(is_timed, ops.concatenate([others, times], axis=-1), logits)

    def ids(self) -> tuple[int, ...]:
        """Return the token of texts without timestamps, and that of the largest first timestamp."""
        return (self.no_timestamps_id, self.no_timestamps_id + 1 + (self.max_initial or 0))
