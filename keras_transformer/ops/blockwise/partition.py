"""Split tensors into query blocks and key blocks, and read and write single blocks.

Axes: as in `blocks`; Q query blocks, P key blocks (some of padding), M blocks of the schedule.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.blockwise.blocks import Block
from keras_transformer.ops.blockwise.schedule import BlockSchedule
from keras_transformer.typing import Tensor


class SplitTensors(NamedTuple):
    """The differentiable tensors, split into blocks."""

    query: Tensor  # (Q, B, K, G·b, F)
    key: Tensor  # (P, B, K, s, F)
    value: Tensor  # (P, B, K, s, V)
    bias: tuple[Tensor, ...]  # (M·C, B|1, N|1, b|1, window·s|1), if the bias is a tensor


def split_tensors(inputs: AttentionInputs, schedule: BlockSchedule) -> SplitTensors:
    """Split query features, key features, values and a bias tensor into blocks."""
    query, key = inputs.features()
    bias = inputs.bias_of_four_axes()
    groups = inputs.num_heads // inputs.kv_heads
    queries = ops.transpose(_split_queries(schedule, query), (0, 1, 3, 2, 4))  # (Q, B, N, b, F)
    shape = [
        schedule.num_query_blocks,
        -1,
        inputs.kv_heads,
        groups * schedule.block_size,
        query.shape[-1],
    ]
    return SplitTensors(
        ops.reshape(queries, shape),
        ops.transpose(_split_keys(schedule, key), (0, 1, 3, 2, 4)),
        ops.transpose(_split_keys(schedule, inputs.value), (0, 1, 3, 2, 4)),
        () if bias is None else (_split_pairs(schedule, bias),),
    )


def split_auxiliary(inputs: AttentionInputs, schedule: BlockSchedule) -> dict[str, Tensor]:
    """Split the auxiliary (non-differentiable) inputs into blocks, as a dictionary by their names in `Block`."""
    auxiliary: dict[str, Tensor] = {}
    if not inputs.at_indices:
        queries, keys = (
            positions if len(positions.shape) == 2 else positions[None] for positions in inputs.positions()
        )
        auxiliary |= {
            "query_positions": _split_queries(schedule, queries),
            "key_positions": _split_keys(schedule, keys),
        }
    if inputs.padding_mask is not None:
        auxiliary["padding_mask"] = _split_keys(schedule, ops.cast(inputs.padding_mask, "bool"))
    if inputs.segment_ids is not None:
        segments = ops.cast(inputs.segment_ids, "int32")
        auxiliary |= {
            "query_segments": _split_queries(schedule, segments),
            "key_segments": _split_keys(schedule, segments),
        }
    mask = inputs.mask_of_four_axes()
    if mask is not None:
        auxiliary["mask"] = _split_pairs(schedule, mask)
    if inputs.dropout:
        auxiliary["seed"] = ops.cast(inputs.seed, "uint32")
    return auxiliary


def read_block(
    inputs: AttentionInputs,
    schedule: BlockSchedule,
    tensors: SplitTensors,
    auxiliary: dict[str, Tensor],
    block: Tensor,
) -> Block:
    """Return the tensors of the block with index `block` in the schedule."""
    size, num_keys = schedule.block_size, inputs.num_keys
    query_start, key_start = at(schedule.query_starts, block), at(schedule.key_starts, block)

    def queries(tensor: Tensor) -> Tensor:
        return read(tensor, query_start, schedule.num_parallel)

    def keys(tensor: Tensor) -> Tensor:
        return read_keys(schedule, tensor, key_start)

    def pairs(tensor: Tensor) -> Tensor:
        return read(tensor, block * schedule.num_parallel, schedule.num_parallel)

    readers: dict[str, Callable[[Tensor], Tensor]] = {
        "query_positions": queries,
        "query_segments": queries,
        "key_positions": keys,
        "key_segments": keys,
        "padding_mask": keys,
        "mask": pairs,
    }
    query_indices = np.arange(schedule.num_query_blocks * size, dtype="int32").reshape(-1, size)
    key_indices = np.arange(schedule.num_key_blocks * size, dtype="int32").reshape(-1, size)
    key_indices = keys(key_indices - np.int32(schedule.num_leading_key_blocks * size))
    has_padding = schedule.num_leading_key_blocks or schedule.num_key_blocks * size != num_keys
    return Block(
        queries(tensors.query),
        read_keys(schedule, tensors.key, key_start, axis=-2),
        read_keys(schedule, tensors.value, key_start, axis=-2),
        queries(query_indices),
        key_indices,
        is_key=(key_indices >= 0) & (key_indices < num_keys) if has_padding else None,
        bias=pairs(tensors.bias[0]) if tensors.bias else None,
        seed=auxiliary.get("seed"),
        **{name: reader(auxiliary[name]) for name, reader in readers.items() if name in auxiliary},
    )


def read_keys(schedule: BlockSchedule, tensor: Tensor, start: Tensor, axis: int = -1) -> Tensor:
    """Return the keys of each of a block's query blocks, (C, …, window·s, …), where `axis` is the keys' axis."""
    count, window = schedule.num_parallel, schedule.window
    key_blocks = read(tensor, start, count + window - 1)
    if window == 1:
        return key_blocks
    return ops.concatenate([key_blocks[offset : offset + count] for offset in range(window)], axis=axis)


def add_keys(schedule: BlockSchedule, tensor: Tensor, start: Tensor, gradient: Tensor) -> Tensor:
    """Add a gradient (C, …, window·s, ·) to the key blocks that `read_keys` returned."""
    size, window = schedule.block_size, schedule.window
    if window == 1:
        return add(tensor, start, gradient)
    total = None
    for offset in range(window):
        block = gradient[..., offset * size : (offset + 1) * size, :]
        block = ops.pad(block, [[offset, window - 1 - offset]] + [[0, 0]] * (len(block.shape) - 1))
        total = block if total is None else total + block
    return add(tensor, start, total)


def read(tensor: Tensor, start: Tensor, count: int) -> Tensor:
    """Return `tensor[start : start + count]`."""
    shape = ops.shape(tensor)
    if tensor.shape[0] == count:
        return tensor
    return ops.slice(tensor, [start] + [0] * (len(shape) - 1), [count, *shape[1:]])


def write(tensor: Tensor, start: Tensor, new: Tensor) -> Tensor:
    """Return the tensor with `tensor[start : start + len(new)]` replaced by `new`."""
    # TensorFlow runs `ops.slice_update` only under XLA, which an exported model may lack.
    indices = start + ops.arange(new.shape[0], dtype="int32")
    return ops.scatter_update(tensor, indices[:, None], ops.cast(new, tensor.dtype))


def add(tensor: Tensor, start: Tensor, new: Tensor) -> Tensor:
    """Return the tensor with `new` added to `tensor[start : start + len(new)]`."""
    return write(tensor, start, read(tensor, start, new.shape[0]) + ops.cast(new, tensor.dtype))


def at(array: np.ndarray, index: Tensor) -> Tensor:
    """Return the element of a NumPy array at a traced index."""
    return ops.convert_to_tensor(array)[index]


def _split_queries(schedule: BlockSchedule, tensor: Tensor, axis: int = 1) -> Tensor:
    return _split(tensor, axis, schedule.block_size, 0, schedule.num_query_blocks)


def _split_keys(schedule: BlockSchedule, tensor: Tensor, axis: int = 1) -> Tensor:
    return _split(tensor, axis, schedule.block_size, schedule.num_leading_key_blocks, schedule.num_key_blocks)


def _split_pairs(schedule: BlockSchedule, pairs: Tensor) -> Tensor:
    """Split a mask or bias (B|1, N|1, T|1, S|1) into (M·C, B|1, N|1, b|1, window·s|1)."""
    grid, num_rows = pairs[None], 1
    if pairs.shape[2] != 1:
        grid, num_rows = _split_queries(schedule, pairs, axis=2), schedule.num_query_blocks
    grid, num_columns, window = (
        (grid[None], 1, 1)
        if pairs.shape[3] == 1
        else (_split_keys(schedule, grid, axis=4), schedule.num_key_blocks, schedule.window)
    )
    # (P|1, Q|1, B|1, N|1, b|1, s|1) → (P·Q, B|1, N|1, b|1, s|1): one `take` per offset in the window.
    grid = ops.reshape(grid, [num_columns * num_rows, *ops.shape(grid)[2:]])
    parallel = np.arange(schedule.num_parallel)
    row = (schedule.query_starts[:, None] + parallel).reshape(-1) * (num_rows > 1)  # (M·C,)
    column = (schedule.key_starts[:, None] + parallel).reshape(-1)
    blocks = [
        ops.take(grid, (column + offset) * (num_columns > 1) * num_rows + row, axis=0)
        for offset in range(window)
    ]
    return blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=-1)


def _split(tensor: Tensor, axis: int, size: int, leading: int, count: int) -> Tensor:
    """Split (…, L, …) into (count, …, size, …), zero-padded by `leading` blocks before and as needed after."""
    length = tensor.shape[axis]
    padding = [[0, 0]] * len(tensor.shape)
    padding[axis] = [leading * size, (count - leading) * size - length]
    if any(padding[axis]):
        tensor = ops.pad(tensor, padding)
    shape = ops.shape(tensor)
    split = ops.reshape(tensor, [*shape[:axis], count, size, *shape[axis + 1 :]])
    return ops.moveaxis(split, axis, 0)
