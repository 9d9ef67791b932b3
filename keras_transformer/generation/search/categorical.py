"""Categorical sampling: filters of logits, and noise from a counter hash.

Axes: B rows of the batch, R hypotheses of a row, M new tokens, V vocabulary size.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.samplers import Sample
from keras_transformer.generation.search.top_k import top_k
from keras_transformer.typing import Tensor


def draw(logits: Tensor, sampler: Sample, noise: Tensor) -> Tensor:
    r"""Perturb logits (B, R, V) so that their argmax is a draw from the filtered distribution.

    $$\arg\max_v\, (z_v - \log(-\log u_v)) \sim \mathrm{softmax}(z), \quad u_v \sim \mathrm{Uniform}(0, 1)$$

    Args:
        logits: (B, R, V), `FORBIDDEN` for forbidden tokens.
        sampler: the sampler with the temperature and the filters.
        noise: u, uniform numbers (B, R, V) in [0, 1].

    Returns:
        Perturbed logits (B, R, V), `FORBIDDEN` for filtered tokens.

    References:
        Gumbel, "Statistical Theory of Extreme Values and Some Practical Applications" (1954); Maddison et al., "A*
        Sampling" (2014), section 2.
    """
    scaled = ops.maximum(logits / sampler.temperature, FORBIDDEN)
    kept = ops.logical_and(scaled >= lowest_kept(scaled, sampler), logits > FORBIDDEN / 2)
    uniform = ops.clip(noise, 2.0**-24, 1 - 2.0**-24)  # 0 and 1 would give infinite values
    return ops.where(kept, scaled - ops.log(-ops.log(uniform)), FORBIDDEN)


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


def uniform(seed: Any, rows: Tensor, hypotheses: int, steps: Tensor, vocabulary_size: int) -> Tensor:
    """Return uniform numbers in (0, 1), a function of (seed, row, hypothesis, step, id) only.

    They are integer hashes until the last operation, and thus equal on every backend, in eager, graph and compiled
    execution.

    Args:
        seed: an integer in [0, 2³²), or an integer tensor of shape (1,).
        rows: integers (B,), the number of each row.
        hypotheses: R.
        steps: the index of the step, an integer scalar, or integers (M,) for several steps.
        vocabulary_size: V.

    Returns:
        float32 (B, R, V), or (B, R, M, V) for several steps.
    """
    steps = ops.convert_to_tensor(steps, "int32")
    axes = [rows, ops.arange(hypotheses), *([steps] if len(steps.shape) else []), ops.arange(vocabulary_size)]
    state = _mix(_constant(seed) + _constant(0x9E3779B1))
    if not len(steps.shape):
        axes.insert(2, ops.reshape(steps, [1]))
    for number, values in enumerate(axes):
        shape = [1] * number + [-1] + [1] * (3 - number)
        state = _mix(state + ops.reshape(ops.cast(values, "uint32"), shape) * _constant(0x9E3779B1))
    # 23 bits plus one half: exact in float32, and neither 0 nor 1.
    bits = ops.cast(ops.cast(ops.right_shift(state, _constant(9)), "int32"), "float32")
    numbers = (bits + 0.5) * 2.0**-23
    return numbers if len(steps.shape) else numbers[:, :, 0]


def _mix(state: Tensor) -> Tensor:
    """Apply MurmurHash3's 32-bit finaliser, as in `ops.dropout`."""
    state = (state ^ ops.right_shift(state, _constant(16))) * _constant(0x85EBCA6B)
    state = (state ^ ops.right_shift(state, _constant(13))) * _constant(0xC2B2AE35)
    return state ^ ops.right_shift(state, _constant(16))


def _constant(value: int) -> Tensor:
    return ops.convert_to_tensor(value, "uint32")
