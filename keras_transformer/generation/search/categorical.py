"""Categorical sampling: filters of logits, and noise from a counter hash.

Axes: B rows of the batch, R hypotheses of a row, M new tokens, V vocabulary size.
"""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN, is_allowed
from keras_transformer.generation.samplers import Sample
from keras_transformer.generation.search.top_k import top_k
from keras_transformer.ops.random import hash_coordinates, hash_seed
from keras_transformer.typing import Tensor


def draw(logits: Tensor, sampler: Sample, temperature: Any, noise: Tensor) -> Tensor:
    r"""Draw tokens from logits (B, R, V) by inverting the cumulative distribution.

    $$v = \min \Big\{ v : \sum_{w \le v} p_w > u \Big\} \sim p, \quad u \sim \mathrm{Uniform}(0, 1)$$

    Args:
        logits: (B, R, V), `FORBIDDEN` for forbidden tokens.
        sampler: the filters, which with the temperature give p.
        temperature: a number, or (B, 1, 1).
        noise: uniform numbers u (B, R) in [0, 1].

    Returns:
        int32 (B, R); an arbitrary id of the vocabulary where all tokens are forbidden.

    References:
        Devroye, "Non-Uniform Random Variate Generation" (1986), section III.2.
    """
    scaled = ops.maximum(logits / temperature, FORBIDDEN)
    kept = ops.logical_and(scaled >= lowest_kept(scaled, sampler), is_allowed(logits))
    weights = ops.exp(scaled - ops.max(scaled, axis=-1, keepdims=True))
    # Draw a block first, then a token of the block: short sums are fast and round equally in all runtimes.
    size = math.isqrt(logits.shape[-1] - 1) + 1
    count = -(-logits.shape[-1] // size)
    weights = ops.pad(ops.where(kept, weights, 0.0), [(0, 0), (0, 0), (0, count * size - logits.shape[-1])])
    blocks = ops.reshape(weights, [-1, *logits.shape[1:-1], count, size])
    totals = ops.sum(blocks, axis=-1)
    block, remainder = _invert(totals, noise * ops.sum(totals, axis=-1))
    is_block = ops.equal(ops.arange(count), block[..., None])[..., None]
    token, _ = _invert(ops.sum(ops.where(is_block, blocks, 0.0), axis=-2), remainder)
    # Where all tokens are forbidden, the last block is chosen, which may be padded.
    return ops.minimum(block * size + token, logits.shape[-1] - 1)


def _invert(weights: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index (B, R) at which the cumulative sum of weights (B, R, n) exceeds a threshold (B, R).

    Also return the threshold minus the sum before that index. The weight at the index is positive, if any weight is.
    """
    cumulated = ops.cumsum(weights, axis=-1)
    # Keep the threshold below the sum in spite of rounding.
    threshold = ops.minimum(threshold, cumulated[..., -1] * (1 - 2.0**-22))[..., None]
    passed = cumulated <= threshold
    before = ops.max(ops.where(passed, cumulated, 0.0), axis=-1)
    index = ops.sum(ops.cast(passed, "int32"), axis=-1)
    return ops.minimum(index, weights.shape[-1] - 1), threshold[..., 0] - before


def lowest_kept(logits: Tensor, sampler: Sample) -> Tensor:
    """Return the lowest logit (B, R, 1) that the filters keep."""
    vocabulary = logits.shape[-1]
    limit = min(sampler.top_k or vocabulary, vocabulary)
    lowest = ops.max(logits, axis=-1, keepdims=True)
    highest = lowest
    if limit < vocabulary or sampler.top_p < 1:
        ordered = top_k(logits, limit)[0]
        lowest = ordered[..., -1:]
        if sampler.top_p < 1:
            probabilities = ops.softmax(ordered, axis=-1)
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            kept = ops.logical_or(before < sampler.top_p, ops.equal(ordered, highest))
            lowest = ops.min(ops.where(kept, ordered, highest), axis=-1, keepdims=True)
    else:
        lowest = ops.full_like(highest, FORBIDDEN)
    if sampler.min_p > 0:
        lowest = ops.maximum(lowest, highest + float(np.log(sampler.min_p)))
    return lowest


def uniform(seed: Any, rows: Tensor, hypotheses: int, steps: Tensor) -> Tensor:
    """Return uniform numbers in (0, 1) that depend only on (seed, row, hypothesis, step).

    They are integer hashes until the last operation, and thus equal on every backend, compiled or not.

    Args:
        seed: an integer in [0, 2³²), or integers (1,) or (B,).
        rows: integers (B,), the index of each row.
        hypotheses: R.
        steps: the index of a step, or integers (M,).

    Returns:
        float32 (B, R), or (B, R, M) for several steps.
    """
    steps = ops.convert_to_tensor(steps, "int32")
    axes = enumerate([rows, ops.arange(hypotheses), ops.reshape(steps, [-1])])
    coordinates = [ops.reshape(values, [1] * axis + [-1] + [1] * (2 - axis)) for axis, values in axes]
    state = hash_coordinates(hash_seed(ops.reshape(_constant(seed), [-1, 1, 1])), coordinates)
    # 23 bits plus one half are exact in float32, and neither 0 nor 1.
    bits = ops.cast(ops.cast(ops.right_shift(state, _constant(9)), "int32"), "float32")
    numbers = (bits + 0.5) * 2.0**-23
    return numbers if len(steps.shape) else numbers[:, :, 0]


def _constant(value: Any) -> Tensor:
    return ops.convert_to_tensor(value, "uint32")
