"""Functions of logits with equal results in TensorFlow, XLA, JAX and ONNX Runtime."""

from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.typing import Tensor


def is_invalid(log_probabilities: Tensor) -> Tensor:
    """Return a boolean mask (…) of the log-softmax (…, V) of logits that contain NaN or +∞, or only −∞."""
    # All of their log-probabilities are NaN, except where XLA's exponential on a CPU maps NaN to a number.
    return ops.isnan(ops.sum(log_probabilities, axis=-1))


def choose(log_probabilities: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities (…) of tokens (…) from those of the vocabulary (…, V)."""
    index = ops.arange(log_probabilities.shape[-1], dtype="int32")
    chosen = ops.equal(index, tokens[..., None])
    return ops.max(ops.where(chosen, log_probabilities, FORBIDDEN), axis=-1)


def highest(candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the id (B, R) with the highest of logits (B, R, V), the lowest id in a tie, and its logit."""
    index = ops.arange(candidates.shape[-1], dtype="int32")
    best = ops.max(candidates, axis=-1)
    # `argmax` of TensorFlow is lowered to an operation without ONNX equivalent.
    ids = ops.min(ops.where(ops.equal(candidates, best[..., None]), index, candidates.shape[-1] - 1), axis=-1)
    return ops.cast(ids, "int32"), best
