"""Functions of logits with equal results in TensorFlow, XLA, JAX and ONNX Runtime."""

from keras import ops

from keras_transformer.typing import Tensor


def is_invalid(logits: Tensor, normalizer: Tensor) -> Tensor:
    """Return a boolean mask (…) of logits (…, V) that contain NaN or +∞, or only −∞.

    Args:
        logits: (…, V).
        normalizer: (…), the output of `log_normalizer`.
    """
    # The sum of the logits is tested too, because XLA's exponential on a CPU can map NaN to a number. `logical_not` is
    # avoided, because TensorFlow rewrites ¬(a < b) as a ≥ b, which is False for NaN.
    is_valid = ops.logical_and(ops.sum(logits, axis=-1) < 1e38, ops.abs(normalizer) < 1e38)
    return ops.equal(ops.cast(is_valid, "int32"), 0)


def log_normalizer(logits: Tensor) -> Tensor:
    """Return log Σ exp of logits (…, V); NaN if one is +∞ or all are −∞."""
    highest = ops.max(logits, axis=-1)
    return ops.log(ops.sum(ops.exp(logits - highest[..., None]), axis=-1)) + highest


def highest(candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the id (B, R) with the highest of logits (B, R, V), the lowest id in a tie, and its logit."""
    index = ops.arange(candidates.shape[-1], dtype="int32")
    best = ops.max(candidates, axis=-1)
    # `argmax` of TensorFlow is lowered to an operation without ONNX equivalent.
    ids = ops.min(ops.where(ops.equal(candidates, best[..., None]), index, candidates.shape[-1] - 1), axis=-1)
    return ops.cast(ids, "int32"), best
