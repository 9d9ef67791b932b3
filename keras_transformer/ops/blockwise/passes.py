"""The chunked and the banded kernel: exact attention in memory that grows with n and not with n².

Both visit a static list of tiles in turns. Forward the tiles of a turn share their queries, and an online softmax
meets them one after the other; backward they share their keys, and every tile's weights are computed again. Tiles that
the relation leaves empty are in no list, so they cost nothing, and the graph, its compile time and its temporary memory
are those of one tile, however long the sequences. The `plans` differ:

- `chunked`: one block of queries beside one of keys, wherever the relation's block map is not empty;
- `banded`: several blocks of queries at a time, each beside the few blocks of keys that a window reaches.

Axes: as in `tiles`; Q blocks of queries, P blocks of keys (some may lie before the first key), M tiles.

References:
    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Rabe and Staats, "Self-attention Does
    Not Need O(n²) Memory" (2021); Dao et al., "FlashAttention" (2022), algorithms 1 and 4.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import backend, ops, tree

from keras_transformer.ops.attention_inputs import Problem
from keras_transformer.ops.blockwise.blocks import Arithmetic, Parameters, Tile
from keras_transformer.ops.blockwise.schedule import Plan

Tensor = Any


class Turns:
    """The tiles in the order of a loop: those of a turn have one place, and where the predicate is needed come first.

    Args:
        places: where each tile lies, (M,).
        num_partial: how many tiles, the first ones, need the predicate.
    """

    def __init__(self, places: np.ndarray, num_partial: int) -> None:
        full = np.arange(len(places)) >= num_partial
        self.tiles = np.lexsort((full, places)).astype("int32")
        self.places, starts, counts = np.unique(places[self.tiles], return_index=True, return_counts=True)
        self.starts, self.ends = starts.astype("int32"), (starts + counts).astype("int32")
        self.middles = self.ends - np.add.reduceat(full[self.tiles], starts, dtype="int32")

    def each(self, turn: Callable[[Tensor, Callable[..., Any], Any], Any], state: Any) -> Any:
        """`state` after all turns.

        Args:
            turn: of a place, a function `visit` and the state, returns the next state; `visit(step, inner)` returns
                `inner` after `inner = step(tile, inner, predicate)` for each tile of the turn.
            state: before the first.
        """
        if not len(self.places):
            return state
        return _one_by_one(
            len(self.places),
            lambda number, state: turn(
                _at(self.places, number), functools.partial(self._visit, number), state
            ),
            state,
        )

    def _visit(self, number: Tensor, step: Callable[[Tensor, Any, bool], Any], state: Any) -> Any:
        for starts, ends, predicate in (
            (self.starts, self.middles, True),
            (self.middles, self.ends, False),
        ):
            if (starts + 1 == ends).all():
                state = step(_at(self.tiles, _at(starts, number)), state, predicate)
            elif (starts < ends).any():
                state = ops.fori_loop(
                    _at(starts, number),
                    _at(ends, number),
                    lambda place, state, predicate=predicate: step(_at(self.tiles, place), state, predicate),
                    state,
                )
        return state


def attend(problem: Problem, plan: Plan) -> Tensor:
    """(B, T, N, V)."""
    cut = _Cut(problem, plan)
    query, key = problem.features()
    bias = problem.bias_of_four_axes()
    blocks = [cut.query_blocks(query), cut.key_blocks(key), cut.key_blocks(problem.value)]
    blocks += [] if bias is None else [cut.tiles(bias)]
    # A copy is a tensor even of a Keras variable, which a custom gradient may not read.
    of_bias = [ops.copy(tensor) for tensor in problem.bias_parameters()]
    of_score = [ops.copy(tensor) for tensor in problem.score.parameters]
    told = cut.told()
    ends = np.cumsum([len(blocks), len(of_bias), len(of_score), len(told)])

    def parts(tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Parameters, dict[str, Tensor]]:
        blocks, of_bias, of_score, encoded = (
            tensors[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)
        )
        decoded = dict(zip(told, map(_decode, told.values(), encoded), strict=True))
        return blocks, (of_bias, of_score), decoded

    # Backends differentiate only what is an argument; JAX also traces nothing else where it compiles.
    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def blockwise(*tensors: Tensor) -> Any:
        output, saved = cut.forward(*parts(tensors))

        def gradient(*upstreams: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            upstream = upstreams[0] if upstream is None else upstream
            found = cut.backward(*parts(tensors), output, saved, upstream)
            return (*found, *(ops.zeros_like(tensor) for tensor in tensors[ends[2] :]))

        return output, gradient

    encoded = [_encode(tensor) for tensor in told.values()]
    output = ops.transpose(
        blockwise(*blocks, *of_bias, *of_score, *encoded), (1, 0, 3, 2, 4)
    )  # (B, Q, b, N, V)
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
        queries = np.arange(plan.num_query_blocks * size, dtype="int32")
        keys = np.arange(plan.num_key_blocks * size, dtype="int32") - plan.keys_before * size
        self.query_indices, self.key_indices = queries.reshape(-1, size), keys.reshape(-1, size)

    def told(self) -> dict[str, Tensor]:
        """What no gradient flows to, in blocks: the fields of a tile, by their names."""
        problem = self.problem
        told: dict[str, Tensor] = {}
        if not problem.at_indices:
            queries, keys = (given if len(given.shape) == 2 else given[None] for given in problem.positions())
            told |= {"query_positions": self._by_query(queries), "key_positions": self._by_key(keys)}
        if problem.padding_mask is not None:
            told["padding_mask"] = self._by_key(ops.cast(problem.padding_mask, "bool"))
        if problem.segment_ids is not None:
            segments = ops.cast(problem.segment_ids, "int32")
            told |= {"query_segments": self._by_query(segments), "key_segments": self._by_key(segments)}
        mask = problem.mask_of_four_axes()
        if mask is not None:
            told["mask"] = self.tiles(mask)
        if problem.dropout:
            told["seed"] = ops.cast(problem.seed, "uint32")
        return told

    def forward(
        self, blocks: tuple[Tensor, ...], parameters: Parameters, told: dict[str, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The output (Q, B, N, b, V), and largest logits and sums (Q, B, N, b, 1)."""
        plan, arithmetic = self.plan, self.arithmetic
        query, _, value, *_ = blocks

        def turn(row: Tensor, visit: Any, whole: Any) -> Any:
            def step(number: Tensor, state: Any, predicate: bool) -> Any:
                return arithmetic.meet(state, self._tile(blocks, told, number), parameters, predicate)

            state = visit(step, arithmetic.start(_read(query, row, plan.count), value))
            return tuple(_write(old, row, new) for old, new in zip(whole, state, strict=True))

        turns = Turns(plan.rows, plan.num_partial)
        return arithmetic.finish(turns.each(turn, arithmetic.start(query, value)))

    def backward(
        self,
        blocks: tuple[Tensor, ...],
        parameters: Parameters,
        told: dict[str, Tensor],
        output: Tensor,
        saved: tuple[Tensor, Tensor],
        upstream: Tensor,
    ) -> tuple[Tensor, ...]:
        """The gradients by the blocks and the parameters."""
        plan, exact = self.plan, self.problem.exact_dtype
        largest, total = saved
        upstream = upstream / total
        expectation = ops.sum(upstream * output, axis=-1, keepdims=True)
        upstream = self.arithmetic.by_group(ops.cast(upstream, self.problem.value.dtype), blocks[0])

        def turn(column: Tensor, visit: Any, sums: Any) -> Any:
            def step(number: Tensor, sums: Any, predicate: bool) -> Any:
                by_query, by_key, by_value, by_bias, by_parameters = sums
                row = _at(plan.rows, number)
                added = self.arithmetic.gradients(
                    self._tile(blocks, told, number),
                    parameters,
                    predicate,
                    *(_read(whole, row, plan.count) for whole in (upstream, largest, expectation)),
                )
                of_parameters = (*added[4][0], *added[4][1])
                return (
                    _add(by_query, row, added[0]),
                    by_key + ops.cast(added[1], exact),
                    by_value + ops.cast(added[2], exact),
                    tuple(_write(whole, number * plan.count, added[3]) for whole in by_bias),
                    tuple(
                        old + ops.cast(new, exact)
                        for old, new in zip(by_parameters, of_parameters, strict=True)
                    ),
                )

            by_query, by_key, by_value, *others = sums
            nothing = (ops.zeros_like(self._read_keys(block, column, -2), exact) for block in blocks[1:3])
            by_query, *of_keys, by_bias, by_parameters = visit(step, (by_query, *nothing, *others))
            by_key, by_value = (
                self._add_keys(whole, column, new)
                for whole, new in zip((by_key, by_value), of_keys, strict=True)
            )
            return by_query, by_key, by_value, by_bias, by_parameters

        flat = (*parameters[0], *parameters[1])
        by_query, by_key, by_value, *by_bias = (ops.zeros_like(block, exact) for block in blocks)
        by_parameters = tuple(ops.zeros_like(parameter, exact) for parameter in flat)
        by_query, by_key, by_value, by_bias, by_parameters = Turns(plan.columns, plan.num_partial).each(
            turn, (by_query, by_key, by_value, tuple(by_bias), by_parameters)
        )
        gradients = zip((by_query, by_key, by_value, *by_bias, *by_parameters), (*blocks, *flat), strict=True)
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

    def _tile(self, blocks: tuple[Tensor, ...], told: dict[str, Tensor], number: Tensor) -> Tile:
        plan = self.plan
        row, column = _at(plan.rows, number), _at(plan.columns, number)
        readers = {
            "query_positions": lambda whole: _read(whole, row, plan.count),
            "query_segments": lambda whole: _read(whole, row, plan.count),
            "key_positions": lambda whole: self._read_keys(whole, column),
            "key_segments": lambda whole: self._read_keys(whole, column),
            "padding_mask": lambda whole: self._read_keys(whole, column),
            "mask": lambda whole: _read(whole, number * plan.count, plan.count),
            "seed": lambda whole: whole,
        }
        query, key, value, *bias = blocks
        return Tile(
            _read(query, row, plan.count),
            self._read_keys(key, column, axis=-2),
            self._read_keys(value, column, axis=-2),
            query_indices=_read(self.query_indices, row, plan.count),
            key_indices=self._read_keys(self.key_indices, column),
            bias=_read(bias[0], number * plan.count, plan.count) if bias else None,
            **{name: readers[name](whole) for name, whole in told.items()},
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


def _one_by_one(count: int, body: Callable[[Tensor, Any], Any], state: Any) -> Any:
    """As `ops.fori_loop`, but an iteration waits for the one before: TensorFlow would run, and hold, ten at once."""

    def unfinished(number: Tensor, state: Any) -> Tensor:
        some = tree.flatten(state)[0]
        never = ops.cast(some[(0,) * len(some.shape)], "float32") < float("-inf")
        return ops.logical_and(number < count, ops.logical_not(never))

    return ops.while_loop(unfinished, lambda number, state: (number + 1, body(number, state)), (0, state))[1]


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
    """Not `ops.slice_update`, which exists under XLA alone on TensorFlow and so not where an export is served."""
    places = first + ops.arange(new.shape[0], dtype="int32")
    return ops.scatter_update(blocks, places[:, None], ops.cast(new, blocks.dtype))


def _add(blocks: Tensor, first: Tensor, new: Tensor) -> Tensor:
    count = new.shape[0]
    return _write(blocks, first, _read(blocks, first, count) + ops.cast(new, blocks.dtype))


def _at(numbers: np.ndarray, place: Tensor) -> Tensor:
    return ops.convert_to_tensor(numbers)[place]


def _encode(tensor: Tensor) -> Tensor:
    """Booleans and integers as floats, which every backend gives a gradient, if only of zeros."""
    dtype = backend.standardize_dtype(tensor.dtype)
    if dtype == "bool":
        return ops.cast(tensor, "float16")
    tensor = ops.cast(tensor, "uint32")
    halves = [tensor & ops.cast(0xFFFF, "uint32"), ops.right_shift(tensor, ops.cast(16, "uint32"))]
    return ops.cast(ops.stack(halves), "float32")  # exact: a float has 24 bits


def _decode(original: Tensor, encoded: Tensor) -> Tensor:
    """What `_encode` was given."""
    dtype = backend.standardize_dtype(original.dtype)
    if dtype == "bool":
        return encoded > 0
    low, high = (ops.cast(encoded[half], "uint32") for half in (0, 1))
    return ops.cast(low | ops.left_shift(high, ops.cast(16, "uint32")), dtype)
