"""Functions of logits with equal results in TensorFlow, XLA, JAX and ONNX Runtime."""

from keras import ops

from keras_transformer.ops.indexing import pick
from keras_transformer.typing import Tensor


def is_invalid(log_probabilities: Tensor) -> Tensor:
    """Return a boolean mask (…) of the log-softmax (…, V) of logits that contain NaN or +∞, or only −∞."""
    # All of their log-probabilities are NaN, except where XLA's exponential on a CPU maps NaN to a number.
    return ops.isnan(ops.sum(log_probabilities, axis=-1))


def choose(values: Tensor, tokens: Tensor) -> Tensor:
    """Return the values (B, R) of tokens (B, R) from those of the vocabulary (B, R, V)."""
    count, vocabulary = ops.shape(values)[1], values.shape[-1]
    index = tokens if values.shape[1] == 1 else tokens + ops.arange(count, dtype="int32") * vocabulary
    return pick(ops.reshape(values, [-1, count * vocabulary]), index)


def highest(candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the id (B, R) with the highest of logits (B, R, V), the lowest id in a tie, and its logit."""
    index = ops.arange(candidates.shape[-1], dtype="int32")
    best = ops.max(candidates, axis=-1)
    # `argmax` of TensorFlow is lowered to an operation without ONNX equivalent.
    ids = ops.min(ops.where(ops.equal(candidates, best[..., None]), index, candidates.shape[-1] - 1), axis=-1)
    return ops.cast(ids, "int32"), best
