"""Invalid arguments of relations and attention."""

import functools

import numpy as np

from keras_transformer.ops import LinearBias, attention, scores
from keras_transformer.relations import (
    Adjacency,
    Causal,
    Dilated,
    GlobalTokens,
    PrefixLM,
    SlidingWindow,
    Strided,
    kept_under,
)

from .table import InvalidCalls, must

invalid = InvalidCalls()

INTEGER = "be an integer from 0 to 1073741824"
invalid(
    SlidingWindow,
    {"left": 1},
    ({"left": -1}, "`left` must be an integer from 0 …, or None. Received: left=-1"),
    *[must("be", left=left) for left in (1.0, True)],
    must(INTEGER, left=2**30 + 1),
    *[must("be", right=right) for right in (-2, "2")],
)
invalid(PrefixLM, {}, must(INTEGER, length=-1), must("be", length=None))
invalid(Strided, {"stride": 2}, must("be an integer from 1", stride=0), must("be True or False", causal=1))
invalid(
    Dilated,
    {"window": 1, "rate": 2},
    must("be", window=-1, rate=0),
    ({"window": 2**20, "rate": 2**20}, "`window * rate` must be … Received: window * rate="),
)
invalid(
    GlobalTokens,
    {},
    ({"indices": [0, -3]}, "`indices` must be … Received: indices=-3"),
    ({"indices": [np.True_]}, "`indices` must be … Received: indices="),
    *[must("be integers", indices=indices) for indices in (3, "3")],
)
EDGE = "`edges` must be … Received: edge="
invalid(
    Adjacency,
    {"num_nodes": 4, "edges": [(0, 1)]},
    must("be an integer from 1", num_nodes=0),
    ({"edges": [(0, 4)]}, "…from 0 to 3. Received: edge=(0, 4), num_nodes=4"),
    *[({"edges": [edge]}, f"{EDGE}{edge}") for edge in ((-1, 0), (0, True), (0, 1.0))],
    ({"edges": [(0, 1, 2)]}, "`edges` must be pairs … Received: edge=(0, 1, 2)"),
    ({"edges": ["01"]}, "`edges` must be pairs … Received: edge='01'"),
    ({"edges": np.arange(2)}, "`edges` must be pairs … Received: edge="),
    must("be pairs", edges=3),
)
invalid(
    Adjacency([(0, 1), (99_999, 99_998)], 100_000).matrix,
    {},
    ({"num_queries": 3}, "`num_nodes` must be at most … Received: num_nodes=100000"),
)
invalid(kept_under, {}, must("be one of", largest="rotations"))


def normal(*shape):
    """Return random numbers."""
    return np.random.default_rng(0).normal(size=shape).astype("float32")


X, POSITIONS, IDS = normal(2, 5, 4, 8), np.arange(5), np.ones((2, 5), int)
attend = functools.partial(attention, X, X, X)
HEADS = "have as many heads"
for kernel in ("dense", "chunked"):
    invalid(
        attend,
        {"kernel": kernel},
        ({"query_positions": POSITIONS[:1]}, "`query_positions`…(5,)… Received: …(1,)"),
        ({"key_positions": POSITIONS[:4]}, "`key_positions`… Received: …(4,)"),
        ({"key_positions": np.zeros((3, 5), int)}, "`key_positions`… Received: …(3, 5)"),
        ({"query_positions": POSITIONS / 2}, "`query_positions` must be integers… Received: …float"),
        ({"bias": LinearBias(8)}, "`bias` must have as many heads as the query, 4. Received: 8 heads"),
        ({"bias": LinearBias(1)}, f"`bias` must {HEADS}… Received: 1 heads"),
        ({"bias": normal(3, 4, 5, 5)}, "`bias` must broadcast… Received: …(3, 4, 5, 5)"),
        ({"bias": normal(1, 1, 1, 5, 5)}, "`bias` must … Received: …(1, 1, 1, 5, 5)"),
        ({"score": scores.GAT(X[0, :1, 0], X[0, :1, 0])}, f"`score` must {HEADS}… Received: 1 heads"),
        ({"score": scores.Additive(X[0, :3, 0])}, f"`score` must {HEADS}… Received: 3 heads"),
        ({"padding_mask": IDS * 0.0}, "`padding_mask` must be boolean… Received: …float"),
        ({"segment_ids": IDS * 0.0}, "`segment_ids` must be integers… Received: …float"),
        ({"edges": np.zeros((2, 5, 3), int)}, "`edges` must be … Received: …(2, 5, 3)"),
        ({"edges": np.zeros((2, 5, 2))}, "`edges` must be integers… Received: …float"),
        name=f"attention {kernel}",
    )
invalid(
    attend,
    {},
    must("be", kernel="flash", relation="causl"),
    ({"dropout": 0.1}, "`seed` must be passed… Received: dropout=0.1, seed=None"),
    ({"mask": np.where(Causal().matrix(5), 0.0, -1e9)}, "`mask`… Received"),  # additive
    ({"mask": np.ones((2, 3, 3), bool)}, "`mask`… Received: …(2, 3, 3)"),
    ({"padding_mask": np.ones((2, 4), bool)}, "`padding_mask`… Received: …(2, 4)"),
    ({"padding_mask": np.ones((2, 1, 5), bool)}, "`padding_mask`… Received: …(2, 1, 5)"),
    ({"segment_ids": IDS[:, :4]}, "`segment_ids`… Received: …(2, 4)"),
    *[
        ({"dropout": rate, "seed": np.array([1, 2])}, "…must be in [0, 1). Received: ")
        for rate in (-0.1, 1.0, 1.5)
    ],
    name="attention",
)
for kernel, reason in (("edges", "the relation"), ("linear", "the score is not LinearFeatures")):
    invalid(
        functools.partial(attend, kernel=kernel),
        {},
        ({}, f"`kernel`… Received: kernel='{kernel}', but {reason}"),
        name=f"attention {kernel}",
    )
invalid(
    attention,
    {"query": X, "key": X, "value": X},
    ({"query": X.astype("int32")}, "`query` must have a floating-point dtype. Received: query.dtype=int32"),
    ({"query": X[0]}, "`query` must have four axes… Received: …query.shape=(5, 4, 8)"),
    ({"key": X[0]}, "`key` must have four axes… Received: …key.shape=(5, 4, 8)"),
    ({"value": X[..., 0]}, "`value` must have four axes… Received: …value.shape=(2, 5, 4)"),
    ({"key": X[..., :4]}, "…heads of the same size…query.shape=…key.shape=(2, 5, 4, 4)"),
    (
        {"key": X[:, :, :3], "value": X[:, :, :3]},
        "…divisor of the number of query heads…key.shape=(2, 5, 3, 8)",
    ),
    ({"key": X[:, :, :2]}, "…same number of heads…key.shape=(2, 5, 2, 8)"),
    ({"value": X[:, :2]}, "`key` and `value`… Received: …value.shape=(2, 2, 4, 8)"),
    ({"key": X[:1]}, "…batch…key.shape=(1, 5, 4, 8)"),
    ({"query": X[:, :2], "segment_ids": IDS[:, :2]}, "`segment_ids`… Received: "),
)
invalid(
    scores.get,
    {},
    *[
        ({"identifier": score}, "`score` must be …'rbf'…Additive, Bilinear and GAT… Received: score=")
        for score in ("dot", "additive", 3, scores.RBF, Causal())
    ],
)
invalid(scores.ScaledDotProduct, {}, *[must("be", soft_cap=cap) for cap in (0.0, -1.0, float("nan"))])
invalid(scores.RBF, {}, *[must("be", width=width) for width in (0.0, -2.0)])
invalid(scores.Polynomial, {}, *[must("be", degree=degree) for degree in (0, 3, -2)])
invalid(scores.LinearFeatures, {}, must("be", feature_map="relu"))
invalid(scores.Additive, {"vectors": X[0, 0]}, must("be", activation="relu"))
