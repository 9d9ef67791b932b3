"""Reference attention, computed pair by pair from the definitions in NumPy float64, and its test inputs.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, H head size, V value size.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.ops import BucketBias, LinearBias, scores
from keras_transformer.ops.biases import buckets, slopes
from keras_transformer.ops.random import keep_mask
from keras_transformer.relations import (
    Adjacency,
    Causal,
    Full,
    GlobalTokens,
    PrefixLM,
    SlidingWindow,
    Strided,
)

H = 4
GRAPH = np.unique(np.random.default_rng(5).integers(0, 37, (150, 2)), axis=0)
RATE, SEED = 0.3, np.array([7, 11], "uint32")
MAX_DISTANCE = 20

# A relation, and its definition for a query at i and a key at j.
RELATIONS = {
    "full": (Full(), lambda i, j: True),
    "causal": (Causal(), lambda i, j: j <= i),
    "window": (SlidingWindow(5), lambda i, j: i - 5 <= j <= i),
    "ring": (SlidingWindow(9, 4) & ~SlidingWindow(2, 1), lambda i, j: 2 < i - j <= 9 or 1 < j - i <= 4),
    "prefix": (PrefixLM(6), lambda i, j: j < 6 or j <= i),
    "strided": (Strided(4), lambda i, j: j <= i and (i - j) % 4 == 0),
    "global": (
        GlobalTokens([0, 20]) | SlidingWindow(3, 3),
        lambda i, j: i in (0, 20) or j in (0, 20) or abs(i - j) <= 3,
    ),
    "graph": (Adjacency(GRAPH, 37), lambda i, j: (j, i) in {tuple(edge) for edge in GRAPH.tolist()}),
}


def leaky(x, slope=0.2):
    return np.where(x > 0, x, slope * x)


def dot(q, k):
    return (q * k).sum(-1)


def length(x):
    return np.sqrt((x**2).sum(-1))


def positive(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


# A score made from its weights, and log κ of queries and keys (…, H) and weights that broadcast with them.
SCORES = {
    "dot product": (scores.ScaledDotProduct, lambda q, k: dot(q, k) / math.sqrt(H)),
    "scale": (lambda: scores.ScaledDotProduct(0.3), lambda q, k: 0.3 * dot(q, k)),
    "soft cap": (
        lambda: scores.ScaledDotProduct(1.0, soft_cap=1.5),
        lambda q, k: 1.5 * np.tanh(dot(q, k) / 1.5),
    ),
    "cosine": (lambda: scores.Cosine(3.0), lambda q, k: 3 * dot(q, k) / length(q) / length(k)),
    "rbf": (lambda: scores.RBF(1.5), lambda q, k: -(length(q - k) ** 2) / 2 / 1.5**2),
    "polynomial": (
        lambda: scores.Polynomial(2, offset=3.0, scale=0.4),
        lambda q, k: np.log((0.4 * dot(q, k) + 3) ** 2),
    ),
    "linear features": (scores.LinearFeatures, lambda q, k: np.log(dot(positive(q), positive(k)))),
    "additive": (scores.Additive, lambda q, k, a: dot(a, np.tanh(q + k))),
    "gatv2": (lambda a: scores.Additive(a, "leaky_relu"), lambda q, k, a: dot(a, leaky(q + k))),
    "bilinear": (scores.Bilinear, lambda q, k, w: dot((q[..., None] * w).sum(-2), k)),
    "gat": (scores.GAT, lambda q, k, a, b: leaky(dot(a, q) + dot(b, k))),
}


def weights_of_a_score(name, heads, kv_heads):
    """Return the shapes of the weights of a score."""
    return {
        "additive": [(heads, H)],
        "gatv2": [(heads, H)],
        "bilinear": [(heads, H, H)],
        "gat": [(heads, H), (kv_heads, H)],
    }.get(name, [])


def rounded(array, dtype):
    """Round to the nearest numbers of `dtype`."""
    if dtype == "float64":
        return np.asarray(array, dtype)
    return np.asarray(ops.cast(ops.cast(array, dtype), "float32"), "float64")


@dataclasses.dataclass
class ReferenceInputs:
    """The inputs of one case, differentiable and auxiliary, and the masks and biases that they define.

    Args:
        inputs: query, key, value, and if there are any, bias or table, and the score's weights; as numbers that
            the dtype of the case can represent, in float64.
        arguments: masks, segments, edges, positions and the seed of dropout.
        allowed: the pairs that may attend, (B, N, T, S).
        bias_of_pairs: the bias that `inputs` define, (B, N, T, S).
        bucket_of_pairs: T5's bucket, (B, T, S), or None.
        keep: the factors of dropout, (B, N, T, S).
    """

    case: dict[str, str]
    dtype: str
    inputs: dict[str, np.ndarray]
    arguments: dict[str, np.ndarray]
    allowed: np.ndarray
    bias_of_pairs: np.ndarray
    bucket_of_pairs: np.ndarray | None
    keep: Any

    def tensors(self):
        """Return the inputs in the dtype of the case, except a table, which is float32."""
        return {
            name: ops.cast(array, "float32" if name == "table" else self.dtype)
            for name, array in self.inputs.items()
        }

    def options(self, inputs):
        """Return the arguments of `attention` without a gradient, or with a gradient through an object."""
        weights = [inputs[name] for name in inputs if name.startswith("weight")]
        bias = inputs.get("bias")
        if "table" in inputs:
            bias = BucketBias(inputs["table"], MAX_DISTANCE, bidirectional=self.case["bias"] == "t5")
        if self.case["bias"] == "alibi":
            bias = LinearBias(inputs["query"].shape[2])
        return {
            "relation": RELATIONS[self.case["relation"]][0],
            "score": SCORES[self.case["score"]][0](*weights),
            "bias": bias,
            "dropout": RATE if self.case["dropout"] else 0.0,
        }


def build(case, dtype=None, seed=0):
    """Return the inputs of a case in `covering`."""
    dtype = dtype or case["dtype"]
    random = np.random.default_rng([seed, *map(ord, "".join(case.values()))])
    T, S = map(int, case["lengths"].split("x"))  # noqa: N806
    N, K = 4, int(case["heads"][0])  # noqa: N806
    B = 3 if case["padding"] else 2  # noqa: N806
    V = 6 if case["value_size"] else H  # noqa: N806
    shapes = {"query": (B, T, N, H), "key": (B, S, K, H), "value": (B, S, K, V)}
    if case["bias"].startswith("bias"):
        shapes["bias"] = {"TS": (T, S), "N1S": (N, 1, S), "B1T1": (B, 1, T, 1), "BNTS": (B, N, T, S)}[
            case["bias"][5:]
        ]
    if case["bias"].startswith("t5"):
        shapes["table"] = (8, N)
    for number, shape in enumerate(weights_of_a_score(case["score"], N, K)):
        shapes[f"weight {number}"] = shape
    inputs = {
        name: rounded(random.normal(size=shape), "float32" if name == "table" else dtype)
        for name, shape in shapes.items()
    }

    arguments, q, k = _positions(case["positions"], random, B, T, S)
    related = RELATIONS[case["relation"]][1]
    allowed = np.array([[[related(i, j) for j in ks] for i in qs] for qs, ks in zip(q, k, strict=True)])
    allowed = np.broadcast_to(allowed[:, None], (B, N, T, S)).copy()
    if case["mask"]:
        shape = {"TS": (T, S), "1NT1": (1, N, T, 1), "B11S": (B, 1, 1, S), "BNTS": (B, N, T, S)}[
            case["mask"][5:]
        ]
        mask = random.random(shape) < 0.7
        if case["mask"] == "mask BNTS":
            mask[0, :, T // 2] = False
        arguments["mask"] = mask
        allowed &= mask
    if case["padding"]:
        arguments["padding_mask"] = random.random((B, S)) < 0.7
        arguments["padding_mask"][-1] = False
        allowed &= arguments["padding_mask"][:, None, None]
    if case["segments"]:
        segments = np.sort(random.integers(0, 3, (B, T)), axis=1).astype("int32")
        arguments["segment_ids"] = segments
        allowed &= (segments[:, :, None] == segments[:, None, :])[:, None]
    if case["edges"]:
        arguments["edges"], listed = _edges(random, B, T, S)
        allowed &= listed[:, None]

    bias, bucket = np.zeros((B, N, T, S)), None
    offsets = k[:, None, :] - q[:, :, None]  # (B, T, S)
    if "bias" in inputs:
        bias = np.broadcast_to(inputs["bias"], bias.shape)
    elif "table" in inputs:
        bucket = buckets(offsets, 8, MAX_DISTANCE, bidirectional=case["bias"] == "t5")
        bias = np.moveaxis(inputs["table"][bucket], -1, 1)
    elif case["bias"] == "alibi":
        bias = -np.array(slopes(N))[:, None, None] * abs(offsets)[:, None]
    keep = 1.0
    if case["dropout"]:
        grid = np.meshgrid(
            *(np.arange(size, dtype="int32") for size in (B, N, T, S)), indexing="ij", sparse=True
        )
        keep = np.asarray(keep_mask(RATE, SEED, grid)) / (1 - RATE)
        arguments["seed"] = SEED
    return ReferenceInputs(case, dtype, inputs, arguments, allowed, bias, bucket, keep)


def _positions(kind, random, B, T, S):  # noqa: N803
    """Return the position arguments, and the positions that they define, (B, T) and (B, S)."""
    q, k, given = np.arange(T), np.arange(S), {}
    if kind == "shared positions":
        q, k = 2 * q + 1, 2 * k
        given = {"query_positions": q, "key_positions": k}
    elif kind == "positions":
        q, k = random.integers(-1, 40, (B, T)), random.integers(-1, 40, (B, S))
        given = {"query_positions": q, "key_positions": k}
    elif kind == "query positions":
        q = random.integers(0, 40, (B, T))
        given = {"query_positions": q}
    arguments = {name: positions.astype("int32") for name, positions in given.items()}
    return arguments, np.broadcast_to(q, (B, T)), np.broadcast_to(k, (B, S))


def _edges(random, B, T, S):  # noqa: N803
    """Return edges, with duplicates and −1 as padding, and the related pairs (B, T, S)."""
    edges = np.stack([random.integers(0, S, (B, 4 * T)), random.integers(0, T, (B, 4 * T))], axis=-1)
    edges[:, 1] = edges[:, 0]
    edges[random.random((B, 4 * T)) < 0.2] = -1
    listed = np.zeros((B, T, S), bool)
    for row in range(B):
        for source, target in edges[row][edges[row, :, 0] >= 0]:
            listed[row, target, source] = True
    return edges.astype("int32"), listed


def solve(reference_inputs, upstream):
    """Return by name the output (B, T, N, V) and the gradients of ⟨output, upstream⟩ with respect to each input.

    They are returned twice: the values, and sums of absolute values, to which rounding errors are relative.
    """
    inputs, allowed = reference_inputs.inputs, reference_inputs.allowed
    query, key, value, upstream = (
        np.moveaxis(tensor, 2, 1) for tensor in (inputs["query"], inputs["key"], inputs["value"], upstream)
    )
    groups = query.shape[1] // key.shape[1]
    key, value = (np.repeat(tensor, groups, axis=1) for tensor in (key, value))
    log_kernel = _LogKernel(reference_inputs, query, key)
    logits = np.where(allowed, log_kernel() + reference_inputs.bias_of_pairs, -np.inf)
    kernel = np.exp(logits - np.max(logits, axis=-1, keepdims=True, initial=-1e300))
    total = kernel.sum(-1, keepdims=True)
    alpha = kernel / np.where(total > 0, total, 1)
    by_alpha = reference_inputs.keep * (upstream @ np.swapaxes(value, -1, -2))
    by_logit = alpha * (by_alpha - (alpha * by_alpha).sum(-1, keepdims=True))
    slopes_of = {name: list(log_kernel.slopes(name)) for name in log_kernel.inputs}
    found = _sums(reference_inputs, alpha * reference_inputs.keep, by_logit, value, upstream, slopes_of)

    value, upstream = abs(value), abs(upstream)
    by_alpha = reference_inputs.keep * (upstream @ np.swapaxes(value, -1, -2))
    by_logit = alpha * (by_alpha + (alpha * by_alpha).sum(-1, keepdims=True))
    slopes_of = {name: [abs(slope) for slope in slopes] for name, slopes in slopes_of.items()}
    return found, _sums(reference_inputs, alpha * reference_inputs.keep, by_logit, value, upstream, slopes_of)


def _sums(reference_inputs, kept, by_logit, value, upstream, slopes_of):
    """Return the results of `solve` from weights and gradients of pairs (B, N, T, S)."""
    inputs = reference_inputs.inputs

    def by_kv_head(tensor, axis=1):
        groups = inputs["query"].shape[2] // inputs["key"].shape[2]
        return np.add.reduceat(tensor, range(0, tensor.shape[axis], groups), axis=axis)

    found = {
        "output": kept @ value,
        "query": np.stack([(by_logit * slope).sum(3) for slope in slopes_of["query"]], axis=-1),
        "key": by_kv_head(np.stack([(by_logit * slope).sum(2) for slope in slopes_of["key"]], axis=-1)),
        "value": by_kv_head(np.swapaxes(kept, -1, -2) @ upstream),
    }
    found = {name: np.moveaxis(tensor, 1, 2) for name, tensor in found.items()}
    if "bias" in inputs:
        shape = (1,) * (4 - inputs["bias"].ndim) + inputs["bias"].shape
        axes = tuple(axis for axis in range(4) if shape[axis] == 1)
        found["bias"] = by_logit.sum(axes, keepdims=True).reshape(inputs["bias"].shape)
    if "table" in inputs:
        buckets_of_heads = np.broadcast_to(reference_inputs.bucket_of_pairs[:, None], by_logit.shape)
        found["table"] = np.stack(
            [by_logit.sum((0, 2, 3), where=buckets_of_heads == bucket) for bucket in range(8)]
        )
    for name in slopes_of.keys() & inputs.keys() - found.keys():
        by_head = np.stack([(by_logit * slope).sum((0, 2, 3)) for slope in slopes_of[name]], axis=-1)
        shared = len(inputs[name]) < len(by_head)
        found[name] = (by_kv_head(by_head, 0) if shared else by_head).reshape(inputs[name].shape)
    return found


class _LogKernel:
    """log κ of every pair (B, N, T, S), and its derivatives by central differences."""

    def __init__(self, reference_inputs, query, key):
        self.definition = SCORES[reference_inputs.case["score"]][1]
        heads = query.shape[1]
        self.inputs = {"query": query[:, :, :, None], "key": key[:, :, None]}
        for name, weight in reference_inputs.inputs.items():
            if name.startswith("weight"):  # (N, 1, 1, …)
                self.inputs[name] = np.repeat(weight, heads // len(weight), axis=0)[:, None, None]

    def __call__(self, **changed):
        return self.definition(*(self.inputs | changed).values())

    def slopes(self, name):
        """Return the derivatives with respect to each component of a pair's query, key or weight."""
        inner = self.inputs[name].shape[4 if name in ("query", "key") else 3 :]
        for index in np.ndindex(inner):
            step = np.zeros(inner)
            step[index] = 1e-6
            above, below = (self(**{name: self.inputs[name] + sign * step}) for sign in (1, -1))
            yield (above - below) / 2e-6
