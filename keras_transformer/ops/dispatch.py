"""Which kernel computes an attention, and why."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.ops import dense, edges, linear
from keras_transformer.ops.attention_inputs import Problem
from keras_transformer.ops.blockwise import passes, schedule
from keras_transformer.ops.scores import LinearFeatures
from keras_transformer.relations import Bipartite, Causal, Full

Tensor = Any

# Up to which length the whole matrix is computed as fast as block by block, or as its band; and how few keys or
# queries make it no larger than a few of the tensors it is made of.
SHORT, SHORT_BAND, FEW = 1024, 512, 256
# More bytes of weights than this are not held at once where blocks will do.
MUCH = 2**30
# How many pairs of the whole matrix take as long as one edge, which is gathered and scattered.
EDGE_COST = 16


@dataclasses.dataclass(frozen=True)
class Explanation:
    """How an attention is computed.

    Args:
        kernel: "dense", "chunked", "banded", "edges" or "linear".
        reason: why this one.
        flops: operations of the forward pass in comparing queries with keys and in summing values.
        bytes: what the weights take that are held at a time.
    """

    kernel: str
    reason: str
    flops: int
    bytes: int


def attend(problem: Problem, kernel: str) -> Tensor:
    """(B, T, N, V) by the kernel that was asked for, or for "auto" by the one that suits the problem.

    Raises:
        ValueError: where there is no such kernel, or it cannot compute the problem.
    """
    name, _ = choose(problem, kernel)
    if 0 in (problem.num_rows, problem.num_queries, problem.num_keys):
        *leading, _ = ops.shape(problem.query)
        return ops.zeros([*leading, problem.value.shape[-1]], problem.value.dtype)
    return _ATTEND[name](problem)


def explain(problem: Problem, kernel: str) -> Explanation:
    """What `attend` would do; tensors are asked for their shapes only."""
    name, reason = choose(problem, kernel)
    rows = (problem.num_rows or 1) * problem.num_heads
    num_queries, num_keys = problem.num_queries or 1, problem.num_keys or 1
    size = problem.query.shape[-1]
    if name == "linear":
        pairs = (num_queries + num_keys) * size + num_queries * linear.BLOCK_SIZE
        held = -(-num_queries // linear.BLOCK_SIZE) * size * size
    elif name == "edges":
        pairs = held = _num_edges(problem)
    elif name == "dense":
        pairs = held = num_queries * num_keys
    else:
        plan = _PLANS[name](problem)
        pairs, held = plan.num_pairs, plan.num_pairs // max(1, len(plan.rows))
    exact = 8 if problem.exact_dtype == "float64" else 4
    flops = 2 * rows * pairs * (size + problem.value.shape[-1])
    return Explanation(name, reason, flops, rows * held * exact * problem.score.pair_size)


def check_kernel(kernel: str) -> str:
    """`kernel`, if it is "auto" or the name of one."""
    if kernel != "auto" and kernel not in _ATTEND:
        raise ValueError(f"`kernel` must be 'auto' or one of {sorted(_ATTEND)}. Received: kernel={kernel!r}")
    return kernel


def choose(problem: Problem, kernel: str) -> tuple[str, str]:
    """The kernel's name, and the reason."""
    check_kernel(kernel)
    if kernel != "auto":
        obstacle = _OBSTACLES[kernel](problem)
        if obstacle:
            raise ValueError(f"`kernel` cannot be {kernel!r} where {obstacle}; 'auto' chooses one that can.")
        return kernel, "asked for"
    if not _obstacle_to_edges(problem):
        edges, pairs = _num_edges(problem), (problem.num_queries or 0) * (problem.num_keys or 0)
        if not pairs or edges * EDGE_COST < pairs:
            return "edges", f"{edges} edges a row are few beside all pairs"
    obstacle = _obstacle_to_blocks(problem)
    if obstacle:
        return "dense", obstacle
    num_queries, num_keys = problem.num_queries, problem.num_keys
    if not _obstacle_to_linear(problem) and max(num_queries, num_keys) > problem.query.shape[-1]:
        return "linear", "the score is a product of features, which can be summed before it is taken"
    pairs = num_queries * num_keys
    if pairs > SHORT_BAND**2 and not _obstacle_to_band(problem):
        left, right = problem.relation.bandwidth()
        if 2 * schedule.banded(problem).num_pairs < pairs:
            return "banded", f"a query sees {left} keys back and {right} ahead of {num_keys}"
    weights = 4 * (problem.num_rows or 1) * problem.num_heads * pairs
    if min(num_queries, num_keys) <= FEW or (pairs <= SHORT**2 and weights <= MUCH):
        return "dense", f"{num_queries} × {num_keys} pairs are few enough to compute at once"
    return "chunked", f"{num_queries} × {num_keys} pairs, of which blocks without a related one are left out"


def _num_edges(problem: Problem) -> int:
    if problem.edges is not None:
        return problem.edges.shape[1] or 0
    return len(problem.relation.edges() or ())


def _obstacle_to_nothing(problem: Problem) -> str | None:
    return None


def _obstacle_to_blocks(problem: Problem) -> str | None:
    if problem.num_queries is None or problem.num_keys is None:
        return "lengths are not known before the computation"
    if 0 in (problem.num_rows, problem.num_queries, problem.num_keys):
        return "there are no rows, queries or keys"
    return None if problem.edges is None else "edges are given as a tensor"


def _obstacle_to_band(problem: Problem) -> str | None:
    if None in problem.relation.bandwidth():
        return "the relation reaches without bound"
    if not problem.at_indices:
        return "positions are given, so that near positions may have far indices"
    return _obstacle_to_blocks(problem)


def _obstacle_to_edges(problem: Problem) -> str | None:
    if problem.edges is not None:
        return None
    if problem.relation.edges() is None:
        return "neither the relation is given as edges nor are there `edges`"
    if not problem.at_indices:
        return "positions are given, and the relation's edges join positions"
    return _obstacle_to_blocks(problem)


def _obstacle_to_linear(problem: Problem) -> str | None:
    if not isinstance(problem.score, LinearFeatures):
        return "the score is not LinearFeatures"
    if not isinstance(problem.relation, Full | Bipartite | Causal):
        return "the relation is neither full nor causal"
    for name in ("bias", "mask", "segment_ids", "edges", "query_positions", "key_positions"):
        if getattr(problem, name) is not None:
            return f"there is `{name}`"
    if problem.dropout:
        return "attention weights are dropped"
    if isinstance(problem.relation, Causal):
        if problem.num_queries != problem.num_keys:
            return "a causal relation has unequal numbers of queries and keys"
        return _obstacle_to_blocks(problem)
    return None


_PLANS = {"chunked": schedule.chunked, "banded": schedule.banded}
_ATTEND: dict[str, Callable[[Problem], Tensor]] = {
    "dense": dense.attend,
    "chunked": lambda problem: passes.attend(problem, schedule.chunked(problem)),
    "banded": lambda problem: passes.attend(problem, schedule.banded(problem)),
    "edges": edges.attend,
    "linear": linear.attend,
}
_OBSTACLES: dict[str, Callable[[Problem], str | None]] = {
    "dense": _obstacle_to_nothing,
    "chunked": _obstacle_to_blocks,
    "banded": _obstacle_to_band,
    "edges": _obstacle_to_edges,
    "linear": _obstacle_to_linear,
}
