"""The choice of the kernel, the implementation that computes attention."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_transformer.ops import dense, edges, fused, linear
from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.blockwise import passes, schedule
from keras_transformer.ops.blockwise.schedule import BlockSchedule
from keras_transformer.ops.scores import LinearFeatures
from keras_transformer.relations import Causal, Full
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
    """The kernel that computes attention, and its costs.

    Args:
        kernel: "dense", "chunked", "banded", "edges", "linear" or "fused".
        reason: why this kernel is used.
        flops: operations of the forward pass for the scores and the weighted sum of values.
        bytes: bytes of the attention weights stored at one time.
        unsupported: the reason why a kernel does not support the inputs, by its name, for all such kernels.
    """

    kernel: str
    reason: str
    flops: int
    bytes: int
    unsupported: dict[str, str]


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
    reasons = {kernel: reason_of(inputs) for kernel, reason_of in _UNSUPPORTED.items()}
    unsupported = {kernel: reason for kernel, reason in reasons.items() if reason}
    stored_bytes = matrices * stored * itemsize * inputs.score.pair_size
    return Explanation(name, reason, flops, stored_bytes, unsupported)


def check_kernel(kernel: str) -> str:
    """Return `kernel` if it is valid."""
    if kernel != "auto" and kernel not in _ATTEND:
        raise ValueError(f"`kernel` must be 'auto' or one of {sorted(_ATTEND)}. Received: kernel={kernel!r}")
    return kernel


def choose(inputs: AttentionInputs, kernel: str) -> Choice:
    """Return the named kernel, or for "auto" the fastest one for these inputs."""
    check_kernel(kernel)
    if kernel != "auto":
        unsupported = _UNSUPPORTED[kernel](inputs)
        if unsupported:
            raise ValueError(
                "`kernel` must support these arguments; 'auto' chooses one that does. "
                f"Received: kernel={kernel!r}, but {unsupported}"
            )
        block_schedule = _SCHEDULES[kernel](inputs) if kernel in _SCHEDULES else None
        return Choice(kernel, "requested", block_schedule)
    if not fused.unsupported(inputs):
        return Choice("fused", f"{fused.device_name()} computes attention in one kernel of cuDNN")
    if not _unsupported_by_edges(inputs):
        edges, pairs = _num_edges(inputs), (inputs.num_queries or 0) * (inputs.num_keys or 0)
        if not pairs or edges * EDGE_COST < pairs:
            return Choice("edges", f"{edges} edges per graph cost less than {pairs} pairs")
    unsupported = _unsupported_by_blocks(inputs)
    if unsupported:
        return Choice("dense", unsupported)
    num_queries, num_keys = inputs.num_queries, inputs.num_keys
    if not _unsupported_by_linear(inputs) and max(num_queries, num_keys) > inputs.query.shape[-1]:
        return Choice(
            "linear", "the score is a dot product of features, so keys and values can be summed first"
        )
    pairs = num_queries * num_keys
    if pairs > MAX_DENSE_BAND_LENGTH**2 and not _unsupported_by_band(inputs):
        left, right = inputs.relation.bandwidth()
        band = schedule.banded(inputs)
        if 2 * band.num_pairs < pairs:
            return Choice("banded", f"a query attends to {left} keys before it and {right} after it", band)
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


def _unsupported_by_dense(inputs: AttentionInputs) -> None:
    return None


def _unsupported_by_blocks(inputs: AttentionInputs) -> str | None:
    """Return the reason why the inputs are not supported, or None if they are, as do the functions below."""
    if inputs.num_queries is None or inputs.num_keys is None:
        return "lengths are not static"
    if 0 in (inputs.batch_size, inputs.num_queries, inputs.num_keys):
        return "the batch, the queries or the keys are empty"
    return None if inputs.edges is None else "edges are given as a tensor"


def _unsupported_by_band(inputs: AttentionInputs) -> str | None:
    if None in inputs.relation.bandwidth():
        return "the relation has no finite bandwidth"
    if not inputs.at_indices:
        return "positions are given, so indices do not tell distances"
    return _unsupported_by_blocks(inputs)


def _unsupported_by_edges(inputs: AttentionInputs) -> str | None:
    if inputs.edges is not None:
        return None
    if inputs.relation.edges() is None:
        return "the relation is not given by edges and `edges` is None"
    if not inputs.at_indices:
        return "positions are given, but the relation's edges refer to indices"
    return _unsupported_by_blocks(inputs)


def _unsupported_by_linear(inputs: AttentionInputs) -> str | None:
    if not isinstance(inputs.score, LinearFeatures):
        return "the score is not LinearFeatures"
    if not isinstance(inputs.relation, Full | Causal):
        return "the relation is neither full nor causal"
    for name in ("bias", "mask", "segment_ids", "edges", "query_positions", "key_positions"):
        if getattr(inputs, name) is not None:
            return f"`{name}` is passed"
    if inputs.dropout:
        return "attention weights are dropped"
    if isinstance(inputs.relation, Causal):
        if inputs.num_queries != inputs.num_keys:
            return "a causal relation has unequal numbers of queries and keys"
        return _unsupported_by_blocks(inputs)
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
_UNSUPPORTED: dict[str, Callable[[AttentionInputs], str | None]] = {
    "dense": _unsupported_by_dense,
    "chunked": _unsupported_by_blocks,
    "banded": _unsupported_by_band,
    "edges": _unsupported_by_edges,
    "linear": _unsupported_by_linear,
    "fused": fused.unsupported,
}
