"""The choice of the kernel, the implementation that computes an attention."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_transformer.ops import dense, edges, fused, linear
from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.blockwise import passes, schedule
from keras_transformer.ops.blockwise.schedule import BlockSchedule
from keras_transformer.ops.scores import LinearFeatures
from keras_transformer.relations import Bipartite, Causal, Full
from keras_transformer.typing import Tensor

# Largest lengths at which the dense kernel is as fast as the chunked and as the banded kernel, and the number of
# queries or keys up to which the T×S matrix is not much larger than the inputs.
MAX_DENSE_LENGTH, MAX_DENSE_BAND_LENGTH, FEW_TOKENS = 1024, 512, 256
# Bytes of weights above which the chunked kernel replaces the dense one.
MAX_DENSE_BYTES = 2**30
# Number of pairs that the dense kernel computes in the time of one edge's gather and scatter.
EDGE_COST = 16


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The kernel of an attention and its costs.

    Args:
        kernel: "dense", "chunked", "banded", "edges", "linear" or "fused".
        reason: why this kernel is used.
        flops: operations of the forward pass for the scores and the weighted sum of values.
        bytes: bytes of the attention weights stored at one time.
        obstacles: why each of the kernels that cannot be used cannot.
    """

    kernel: str
    reason: str
    flops: int
    bytes: int
    obstacles: dict[str, str]


class Choice(NamedTuple):
    """A kernel, the reason for it, and its block schedule if it is blockwise."""

    kernel: str
    reason: str
    schedule: BlockSchedule | None = None


def attend(inputs: AttentionInputs, kernel: str) -> Tensor:
    """Compute attention (B, T, N, V) with the named kernel, or for "auto" with the fastest one.

    Raises:
        ValueError: if the kernel is unknown or does not support these inputs.
    """
    choice = choose(inputs, kernel)
    if 0 in (inputs.batch_size, inputs.num_queries, inputs.num_keys):
        *leading, _ = ops.shape(inputs.query)
        return ops.zeros([*leading, inputs.value.shape[-1]], inputs.value.dtype)
    if choice.kernel != "fused":
        inputs = inputs.with_padding_mask()
    arguments = (inputs,) if choice.schedule is None else (inputs, choice.schedule)
    return _ATTEND[choice.kernel](*arguments)


def explain(inputs: AttentionInputs, kernel: str) -> Explanation:
    """Return the kernel that `attend` uses and its costs, from the shapes of the tensors."""
    name, reason, block_schedule = choose(inputs, kernel)
    matrices = (inputs.batch_size or 1) * inputs.num_heads
    num_queries, num_keys = inputs.num_queries or 1, inputs.num_keys or 1
    size = inputs.query.shape[-1]
    if block_schedule is not None:
        pairs = block_schedule.num_pairs
        stored = pairs // max(1, block_schedule.num_blocks)
    elif name == "linear":
        pairs = (num_queries + num_keys) * size + num_queries * linear.BLOCK_SIZE
        stored = -(-num_queries // linear.BLOCK_SIZE) * size * size
    elif name == "fused":
        pairs, stored = num_queries * num_keys, num_queries  # one sum of exponentials for each query
    else:
        pairs = stored = _num_edges(inputs) if name == "edges" else num_queries * num_keys
    itemsize = 8 if inputs.accumulator_dtype == "float64" else 4
    flops = 2 * matrices * pairs * (size + inputs.value.shape[-1])
    found = {kernel: obstacle_to(inputs) for kernel, obstacle_to in _OBSTACLES.items()}
    obstacles = {kernel: obstacle for kernel, obstacle in found.items() if obstacle}
    stored_bytes = matrices * stored * itemsize * inputs.score.pair_size
    return Explanation(name, reason, flops, stored_bytes, obstacles)


def check_kernel(kernel: str) -> str:
    """Return `kernel` if it is valid.

    Raises:
        ValueError: if it is neither "auto" nor the name of a kernel.
    """
    if kernel != "auto" and kernel not in _ATTEND:
        raise ValueError(f"`kernel` must be 'auto' or one of {sorted(_ATTEND)}. Received: kernel={kernel!r}")
    return kernel


def choose(inputs: AttentionInputs, kernel: str) -> Choice:
    """Return the named kernel, or for "auto" the fastest one for these inputs."""
    check_kernel(kernel)
    if kernel != "auto":
        obstacle = _OBSTACLES[kernel](inputs)
        if obstacle:
            raise ValueError(f"`kernel` cannot be {kernel!r} where {obstacle}; 'auto' chooses one that can.")
        block_schedule = _SCHEDULES[kernel](inputs) if kernel in _SCHEDULES else None
        return Choice(kernel, "requested", block_schedule)
    if not fused.obstacle(inputs):
        return Choice("fused", f"{fused.device_name()} computes attention in one kernel of cuDNN")
    if not _obstacle_to_edges(inputs):
        edges, pairs = _num_edges(inputs), (inputs.num_queries or 0) * (inputs.num_keys or 0)
        if not pairs or edges * EDGE_COST < pairs:
            return Choice("edges", f"{edges} edges per graph cost less than {pairs} pairs")
    obstacle = _obstacle_to_blocks(inputs)
    if obstacle:
        return Choice("dense", obstacle)
    num_queries, num_keys = inputs.num_queries, inputs.num_keys
    if not _obstacle_to_linear(inputs) and max(num_queries, num_keys) > inputs.query.shape[-1]:
        return Choice(
            "linear", "the score is a dot product of features, so keys and values can be summed first"
        )
    pairs = num_queries * num_keys
    if pairs > MAX_DENSE_BAND_LENGTH**2 and not _obstacle_to_band(inputs):
        left, right = inputs.relation.bandwidth()
        band = schedule.banded(inputs)
        if 2 * band.num_pairs < pairs:
            return Choice("banded", f"a query sees {left} keys to the left and {right} to the right", band)
    weights = 4 * (inputs.batch_size or 1) * inputs.num_heads * pairs
    if min(num_queries, num_keys) <= FEW_TOKENS or (
        pairs <= MAX_DENSE_LENGTH**2 and weights <= MAX_DENSE_BYTES
    ):
        return Choice("dense", f"{num_queries} × {num_keys} pairs are few enough to compute at once")
    reason = f"{num_queries} × {num_keys} pairs, computed block by block without empty blocks"
    return Choice("chunked", reason, schedule.chunked(inputs))


def _num_edges(inputs: AttentionInputs) -> int:
    if inputs.edges is not None:
        return inputs.edges.shape[1] or 0
    return len(inputs.relation.edges() or ())


def _obstacle_to_nothing(inputs: AttentionInputs) -> str | None:
    return None


def _obstacle_to_blocks(inputs: AttentionInputs) -> str | None:
    if inputs.num_queries is None or inputs.num_keys is None:
        return "lengths are not static"
    if 0 in (inputs.batch_size, inputs.num_queries, inputs.num_keys):
        return "the batch, the queries or the keys are empty"
    return None if inputs.edges is None else "edges are given as a tensor"


def _obstacle_to_band(inputs: AttentionInputs) -> str | None:
    if None in inputs.relation.bandwidth():
        return "the relation has no finite bandwidth"
    if not inputs.at_indices:
        return "positions are given, and indices are then no distances"
    return _obstacle_to_blocks(inputs)


def _obstacle_to_edges(inputs: AttentionInputs) -> str | None:
    if inputs.edges is not None:
        return None
    if inputs.relation.edges() is None:
        return "the relation is not given by edges and `edges` is None"
    if not inputs.at_indices:
        return "positions are given, but the relation's edges refer to indices"
    return _obstacle_to_blocks(inputs)


def _obstacle_to_linear(inputs: AttentionInputs) -> str | None:
    if not isinstance(inputs.score, LinearFeatures):
        return "the score is not LinearFeatures"
    if not isinstance(inputs.relation, Full | Bipartite | Causal):
        return "the relation is neither full nor causal"
    for name in ("bias", "mask", "segment_ids", "edges", "query_positions", "key_positions"):
        if getattr(inputs, name) is not None:
            return f"`{name}` is given"
    if inputs.dropout:
        return "attention weights are dropped"
    if isinstance(inputs.relation, Causal):
        if inputs.num_queries != inputs.num_keys:
            return "a causal relation has unequal numbers of queries and keys"
        return _obstacle_to_blocks(inputs)
    return None


_SCHEDULES = {"chunked": schedule.chunked, "banded": schedule.banded}
_ATTEND: dict[str, Callable[..., Tensor]] = {
    "dense": dense.attend,
    "chunked": passes.attend,
    "banded": passes.attend,
    "edges": edges.attend,
    "linear": linear.attend,
    "fused": fused.attend,
}
_OBSTACLES: dict[str, Callable[[AttentionInputs], str | None]] = {
    "dense": _obstacle_to_nothing,
    "chunked": _obstacle_to_blocks,
    "banded": _obstacle_to_band,
    "edges": _obstacle_to_edges,
    "linear": _obstacle_to_linear,
    "fused": fused.obstacle,
}
