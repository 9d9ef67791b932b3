"""The chunked and the banded kernel: exact attention in memory that grows with n and not with n².

Both are one loop over a static list of tiles. Forward it is an online softmax; backward every tile's weights are
computed again. Tiles that the relation leaves empty are in no list, so they cost nothing, and the graph, its compile
time and its temporary memory are those of one tile, however long the sequences. The plans differ:

- `chunked`: one block of queries beside one of keys, wherever the relation's block map is not empty;
- `banded`: several blocks of queries at a time, each beside the few blocks of keys that a window reaches.

Axes: as in `tiles`; Q blocks of queries, P blocks of keys (some may lie before the first key), M tiles.

References:
    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Rabe and Staats, "Self-attention Does
    Not Need O(n²) Memory" (2021); Dao et al., "FlashAttention" (2022), algorithms 1 and 4.
"""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.ops.biases import PositionBias
from keras_transformer.ops.problem import Problem
from keras_transformer.ops.tiles import Arithmetic, Parameters, Tile
from keras_transformer.relations import FULL, PARTIAL

Tensor = Any

BLOCK_SIZE = 512
BAND_BLOCK_SIZE = 128
TILE_SIZE = 2**20  # pairs of a banded tile, over all heads: enough to keep every core at work


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Which tiles to visit.

    Args:
        size: queries, and keys, of a block.
        num_query_blocks: Q.
        num_key_blocks: P.
        keys_before: blocks of keys that lie before the first key.
        count: C, blocks of queries in a tile; each is beside its own keys.
        width: blocks of keys beside one block of queries.
        rows: the first block of queries of each tile, (M,).
        columns: the first block of keys of each tile, (M,); the next block of queries begins one further.
        num_partial: how many tiles, the first ones, need the relation's predicate.
    """

    size: int
    num_query_blocks: int
    num_key_blocks: int
    keys_before: int
    count: int
    width: int
    rows: np.ndarray
    columns: np.ndarray
    num_partial: int

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key that are computed."""
        return len(self.rows) * self.count * self.width * self.size**2


def chunked(problem: Problem) -> Plan:
    """Every pair of blocks that the relation does not leave empty."""
    num_queries, num_keys = problem.num_queries, problem.num_keys
    longest, largest = max(num_queries, num_keys), BLOCK_SIZE // problem.score.pair_size
    size = -(-longest // -(-longest // largest))
    shape = -(-num_queries // size), -(-num_keys // size)
    blocks = np.full(shape, PARTIAL)
    if problem.at_indices:
        blocks = problem.relation.blocks(size, num_queries, num_keys)
    partial, full = np.argwhere(blocks == PARTIAL), np.argwhere(blocks == FULL)
    rows, columns = np.concatenate([partial, full]).astype("int32").T
    return Plan(size, *shape, 0, 1, 1, rows, columns, len(partial))


def banded(problem: Problem) -> Plan:
    """Every block of queries beside the blocks of keys within the relation's reach."""
    left, right = (reach or 0 for reach in problem.relation.reach())
    size = min(BAND_BLOCK_SIZE, max(problem.num_queries, problem.num_keys))
    before, after = -(-left // size), -(-right // size)
    width = before + 1 + after
    num_blocks = -(-problem.num_queries // size)
    pairs_of_a_block = (problem.query.shape[0] or 1) * problem.num_heads * width * size**2
    count = min(num_blocks, max(1, TILE_SIZE // (pairs_of_a_block * problem.score.pair_size)))
    rows = np.arange(0, num_blocks, count, dtype="int32")
    num_query_blocks = len(rows) * count
    num_key_blocks = before + max(num_query_blocks + after, -(-problem.num_keys // size))
    return Plan(size, num_query_blocks, num_key_blocks, before, count, width, rows, rows, len(rows))


def attend(problem: Problem, plan: Plan) -> Tensor:
    """(B, T, N, V)."""
    cut = _Cut(problem, plan)
    query, key = problem.features()
    bias = problem.bias_of_four_axes()
    has_bias = bias is not None
    position_bias = problem.bias if isinstance(problem.bias, PositionBias) else None
    of_bias = () if position_bias is None else position_bias.parameters
    num_bias_parameters = len(of_bias)

    def blocks_and_parameters(tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Parameters]:
        num_blocks = 3 + has_bias
        parameters = tensors[num_blocks:]
        return tensors[:num_blocks], (parameters[:num_bias_parameters], parameters[num_bias_parameters:])

    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def blockwise(*tensors: Tensor) -> Any:
        blocks, parameters = blocks_and_parameters(tensors)
        output, log_total = cut.forward(blocks, parameters)

        def gradient(*upstreams: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            upstream = upstreams[0] if upstream is None else upstream
            return cut.backward(blocks, parameters, output, log_total, upstream)

        return output, gradient

    tensors = [cut.query_blocks(query), cut.key_blocks(key), cut.key_blocks(problem.value)]
    tensors += [cut.tiles(bias)] if has_bias else []
    # A copy is a tensor even of a Keras variable, which a custom gradient may not read.
    tensors += [ops.copy(tensor) for tensor in (*of_bias, *problem.score.parameters)]
    output = ops.transpose(blockwise(*tensors), (1, 0, 3, 2, 4))  # (B, Q, b, N, V)
    shape = [-1, plan.num_query_blocks * plan.size, problem.num_heads, problem.value.shape[-1]]
    return ops.cast(ops.reshape(output, shape)[:, : problem.num_queries], problem.value.dtype)


class _Cut:
    """A problem's tensors cut into blocks, and the two loops over its tiles."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem = problem
        self.plan = plan
        size, num_keys = plan.size, problem.num_keys
        whole = plan.keys_before == 0 and plan.num_key_blocks * size == num_keys
        self.arithmetic = Arithmetic(problem, None if whole else num_keys)
        self.rows, self.columns = ops.convert_to_tensor(plan.rows), ops.convert_to_tensor(plan.columns)
        queries = np.arange(plan.num_query_blocks * size, dtype="int32")
        keys = np.arange(plan.num_key_blocks * size, dtype="int32") - plan.keys_before * size
        self.by_query: dict[str, Tensor] = {"query_indices": queries.reshape(-1, size)}
        self.by_key: dict[str, Tensor] = {"key_indices": keys.reshape(-1, size)}
        if not problem.at_indices:
            positions = [given if len(given.shape) == 2 else given[None] for given in problem.positions()]
            self.by_query["query_positions"] = self._by_query(positions[0])
            self.by_key["key_positions"] = self._by_key(positions[1])
        if problem.padding_mask is not None:
            self.by_key["padding_mask"] = self._by_key(ops.cast(problem.padding_mask, "bool"))
        if problem.segment_ids is not None:
            segments = ops.convert_to_tensor(problem.segment_ids)
            self.by_query["query_segments"] = self._by_query(segments)
            self.by_key["key_segments"] = self._by_key(segments)
        mask = problem.mask_of_four_axes()
        self.mask = None if mask is None else self.tiles(mask)

    def forward(self, blocks: tuple[Tensor, ...], parameters: Parameters) -> tuple[Tensor, Tensor]:
        """The output (Q, B, N, b, V) and the logarithms of the sums (Q, B, N, b, 1)."""
        plan = self.plan

        def visit(number: Tensor, state: Any, predicate: bool) -> Any:
            row = self.rows[number]
            tile = self._tile(blocks, number)
            found = tuple(_read(whole, row, plan.count) for whole in state)
            found = self.arithmetic.meet(found, tile, parameters, predicate)
            return tuple(_write(whole, row, part) for whole, part in zip(state, found, strict=True))

        state = self.arithmetic.start(blocks[0], blocks[2])
        return self.arithmetic.finish(self._loop(visit, state))

    def backward(
        self,
        blocks: tuple[Tensor, ...],
        parameters: Parameters,
        output: Tensor,
        log_total: Tensor,
        upstream: Tensor,
    ) -> tuple[Tensor, ...]:
        """The gradients by the blocks and the parameters."""
        plan, exact = self.plan, self.problem.exact_dtype
        expectation = ops.sum(upstream * output, axis=-1, keepdims=True)
        upstream = self.arithmetic.by_group(ops.cast(upstream, self.problem.value.dtype), blocks[0])

        def visit(number: Tensor, sums: Any, predicate: bool) -> Any:
            row, column = self.rows[number], self.columns[number]
            by_query, by_key, by_value, by_bias, by_parameters = self.arithmetic.gradients(
                self._tile(blocks, number),
                parameters,
                predicate,
                *(_read(whole, row, plan.count) for whole in (upstream, log_total, expectation)),
            )
            of_blocks, of_parameters = sums
            total = [
                _add(of_blocks[0], row, by_query),
                self._add_keys(of_blocks[1], column, by_key),
                self._add_keys(of_blocks[2], column, by_value),
            ]
            if by_bias is not None:
                total.append(_write(of_blocks[3], number * plan.count, by_bias))
            added = (*by_parameters[0], *by_parameters[1])
            return tuple(total), tuple(
                old + ops.cast(new, old.dtype) for old, new in zip(of_parameters, added, strict=True)
            )

        flat = (*parameters[0], *parameters[1])
        zeros = (
            tuple(ops.zeros_like(block, dtype=exact) for block in blocks),
            tuple(ops.zeros_like(parameter, dtype=exact) for parameter in flat),
        )
        of_blocks, of_parameters = self._loop(visit, zeros)
        gradients = zip((*of_blocks, *of_parameters), (*blocks, *flat), strict=True)
        return tuple(ops.cast(gradient, tensor.dtype) for gradient, tensor in gradients)

    def query_blocks(self, query: Tensor) -> Tensor:
        """(Q, B, K, G·b, F) from (B, T, N, F)."""
        size, kv_heads = self.plan.size, self.problem.kv_heads
        groups = self.problem.num_heads // kv_heads
        blocks = self._by_query(query)  # (Q, B, b, N, F)
        blocks = ops.transpose(blocks, (0, 1, 3, 2, 4))  # (Q, B, N, b, F)
        return ops.reshape(blocks, [self.plan.num_query_blocks, -1, kv_heads, groups * size, query.shape[-1]])

    def key_blocks(self, key: Tensor) -> Tensor:
        """(P, B, K, s, ·) from keys or values (B, S, K, ·)."""
        return ops.transpose(self._by_key(key), (0, 1, 3, 2, 4))

    def tiles(self, pairs: Tensor) -> Tensor:
        """(M·C, B|1, N|1, b|1, width·s|1) from (B|1, N|1, T|1, S|1): what is said of pairs, by tile."""
        plan = self.plan
        many_queries, many_keys = pairs.shape[2] != 1, pairs.shape[3] != 1
        grid, rows = (
            (self._by_query(pairs, axis=2), plan.num_query_blocks) if many_queries else (pairs[None], 1)
        )
        grid, columns = (self._by_key(grid, axis=4), plan.num_key_blocks) if many_keys else (grid[None], 1)
        shape = ops.shape(grid)  # (P|1, Q|1, B|1, N|1, b|1, s|1)
        grid = ops.reshape(grid, [columns * rows, *shape[2:]])
        offset = np.arange(plan.count)
        row = (plan.rows[:, None] + offset).reshape(-1) * many_queries  # (M·C,)
        column = (plan.columns[:, None] + offset).reshape(-1)
        parts = [
            ops.take(grid, (column + step) * many_keys * rows + row, axis=0)
            for step in range(plan.width if many_keys else 1)
        ]
        return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)

    def _loop(self, visit: Any, state: Any) -> Any:
        """`state` after a visit to each tile."""
        last = len(self.plan.rows)
        for first, end, predicate in (
            (0, self.plan.num_partial, True),
            (self.plan.num_partial, last, False),
        ):
            if first < end:
                state = ops.fori_loop(
                    first,
                    end,
                    lambda number, state, predicate=predicate: visit(number, state, predicate),
                    state,
                )
        return state

    def _tile(self, blocks: tuple[Tensor, ...], number: Tensor) -> Tile:
        plan = self.plan
        row, column = self.rows[number], self.columns[number]
        by_query = {name: _read(whole, row, plan.count) for name, whole in self.by_query.items()}
        by_key = {name: self._read_keys(whole, column) for name, whole in self.by_key.items()}
        query, key, value, *bias = blocks
        return Tile(
            _read(query, row, plan.count),
            self._read_keys(key, column, axis=-2),
            self._read_keys(value, column, axis=-2),
            mask=None if self.mask is None else _read(self.mask, number * plan.count, plan.count),
            bias=_read(bias[0], number * plan.count, plan.count) if bias else None,
            **by_query,
            **by_key,
        )

    def _read_keys(self, blocks: Tensor, column: Tensor, axis: int = -1) -> Tensor:
        """(C, …, width·s, …): for each block of queries the blocks of keys beside it."""
        plan = self.plan
        found = _read(blocks, column, plan.count + plan.width - 1)
        if plan.width == 1:
            return found
        return ops.concatenate([found[step : step + plan.count] for step in range(plan.width)], axis=axis)

    def _add_keys(self, blocks: Tensor, column: Tensor, gradient: Tensor) -> Tensor:
        """The blocks, `gradient` (C, …, width·s, ·) added to where `_read_keys` read."""
        plan = self.plan
        if plan.width == 1:
            return _add(blocks, column, gradient)
        total = None
        for step in range(plan.width):
            part = gradient[..., step * plan.size : (step + 1) * plan.size, :]
            ends = [[step, plan.width - 1 - step]] + [[0, 0]] * (len(part.shape) - 1)
            part = ops.pad(part, ends)
            total = part if total is None else total + part
        return _add(blocks, column, total)

    def _by_query(self, tensor: Tensor, axis: int = 1) -> Tensor:
        return _cut(tensor, axis, self.plan.size, 0, self.plan.num_query_blocks)

    def _by_key(self, tensor: Tensor, axis: int = 1) -> Tensor:
        return _cut(tensor, axis, self.plan.size, self.plan.keys_before, self.plan.num_key_blocks)


def _cut(tensor: Tensor, axis: int, size: int, before: int, count: int) -> Tensor:
    """(count, …, size, …) from (…, L, …): blocks along an axis, with zeros around."""
    length = tensor.shape[axis]
    ends = [[0, 0]] * len(tensor.shape)
    ends[axis] = [before * size, (count - before) * size - length]
    if any(ends[axis]):
        tensor = ops.pad(tensor, ends)
    shape = ops.shape(tensor)
    split = ops.reshape(tensor, [*shape[:axis], count, size, *shape[axis + 1 :]])
    return ops.moveaxis(split, axis, 0)


def _read(blocks: Tensor, first: Tensor, count: int) -> Tensor:
    shape = ops.shape(blocks)
    if blocks.shape[0] == count:
        return blocks
    return ops.slice(blocks, [first] + [0] * (len(shape) - 1), [count, *shape[1:]])


def _write(blocks: Tensor, first: Tensor, new: Tensor) -> Tensor:
    return ops.slice_update(blocks, [first] + [0] * (len(blocks.shape) - 1), ops.cast(new, blocks.dtype))


def _add(blocks: Tensor, first: Tensor, new: Tensor) -> Tensor:
    count = new.shape[0]
    return _write(blocks, first, _read(blocks, first, count) + ops.cast(new, blocks.dtype))
