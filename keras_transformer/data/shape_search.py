"""The search for shapes of batches: few of them, with little padding."""

from collections.abc import Callable

import numpy as np

COMPILATION = 0.002
"""The cost of a shape, as a fraction of the positions of an epoch.

XLA compiles a training step of 3 + 3 layers in roughly 11 seconds of processor time, 0.2 % of an hour and a half.
"""

_EDGES = 64  # lengths of each side; the search compares all their combinations

Shape = tuple[int, ...]


def choose_lengths(
    lengths: np.ndarray, count: int, limit: int, multiple: int = 8, rows: np.ndarray | None = None
) -> tuple[int, ...]:
    """Choose lengths of batches that minimize the padding, by dynamic programming.

    Args:
        lengths: the lengths of the rows, integers (n,) of at most `limit`, n > 0.
        count: the maximum number of lengths to choose.
        limit: the maximum length.
        multiple: the number of which the chosen lengths are multiples.
        rows: the number of rows with each of `lengths`, (n,); by default 1.

    Returns:
        At most `count` increasing lengths, each a multiple of `multiple` or `limit`; the last one fits the longest row.

    Example:
        >>> choose_lengths(np.array([3, 5, 30]), 2, 128)
        (8, 32)
    """
    candidates, candidate = np.unique(_rounded(lengths, limit, multiple), return_inverse=True)  # (m,), (n,)
    below = np.concatenate([[0], np.cumsum(np.bincount(candidate, rows))])  # number of rows up to candidate i
    # cells[i]: the minimum number of positions, including padding, of the first i candidates with the lengths so far.
    cells = np.where(np.arange(len(candidates) + 1) == 0, 0, np.inf)
    choices = []
    for _ in range(min(count, len(candidates))):
        # cost[j, i]: the cost if candidates j+1 to i are padded to the length candidates[i-1].
        cost = cells[:, None] + (below[None, 1:] - below[:, None]) * candidates[None, :]
        cost[np.arange(len(cells))[:, None] > np.arange(len(candidates))[None, :]] = np.inf
        choices.append(np.argmin(cost, axis=0))
        cells = np.concatenate([[0], np.min(cost, axis=0)])
    lengths, end = [], len(candidates)
    for choice in reversed(choices):
        if end:
            lengths.append(int(candidates[end - 1]))
            end = int(choice[end - 1])
    return tuple(reversed(lengths))


def choose_shapes(
    lengths: np.ndarray,
    batch_size_of: Callable[[Shape], int],
    count: int,
    limit: int | Shape,
    multiple: int = 8,
    rows: np.ndarray | None = None,
) -> tuple[Shape, ...]:
    r"""Choose (source, target) lengths of batches, with little padding and few compilations.

    A pair belongs to the smallest shape, in positions, that it fits. If $n_k$ pairs belong to shape k, of
    lengths $S_k$ and $T_k$ with $B_k$ rows in a batch, the cost of K shapes is the number of positions of an epoch,
    including rows that complete the last batches, and a fraction c of it (`COMPILATION`) for each shape:

    $$(1 + c K) \sum_{k=1}^K \lceil n_k / B_k \rceil \, B_k \, (S_k + T_k)$$

    The search starts with the equal lengths of source and target that `choose_lengths` finds. It then adds a shape, or
    replaces one by another, as long as this lowers the cost, which is the vertex substitution for the p-median problem.
    It compares all combinations of at most 64 lengths of each side.

    Args:
        lengths: the lengths of source and target of each pair, integers (n, 2) of at most `limit`, n > 0.
        batch_size_of: a function from a shape to the number of rows in its batches.
        count: the maximum number of shapes.
        limit: the maximum length of both, or of each.
        multiple: the number of which the chosen lengths are multiples.
        rows: the number of pairs with each of `lengths`, (n,); by default 1.

    Returns:
        At most `count` shapes (S, T) in the order of `ordered`, each length a multiple of `multiple` or `limit`. Each
        pair fits at least one of them.

    Example:
        >>> pairs = np.array([(3, 12), (2, 11), (14, 4), (15, 6)] * 50)
        >>> choose_shapes(pairs, lambda shape: 10, 4, 128)
        ((8, 16), (16, 8))

    References:
        Teitz and Bart, "Heuristic Methods for Estimating the Generalized Vertex Median of a Weighted Graph" (1968).
    """
    limits = np.broadcast_to(limit, 2)
    largest = int(limits.max())
    pairs, pair = np.unique(_rounded(lengths, limits, multiple) @ [largest + 1, 1], return_inverse=True)
    rows = np.bincount(pair, rows).astype(np.int64)  # (m,)
    pairs = np.stack(np.divmod(pairs, largest + 1), axis=1)  # (m, 2)
    needed = pairs.max(axis=1)
    numbers = range(1, min(count, len(np.unique(needed))) + 1)
    equal = min(
        (choose_lengths(needed, number, largest, multiple, rows) for number in numbers),
        key=lambda lengths: _cost_of(np.stack([lengths, lengths], axis=1), pairs, rows, batch_size_of),
    )
    start = np.minimum(np.array(equal)[:, None], pairs.max(axis=0))  # (k, 2)
    edges = [
        np.union1d(choose_lengths(pairs[:, side], _EDGES, int(limits[side]), multiple, rows), start[:, side])
        for side in (0, 1)
    ]
    shapes = _Substitution(pairs, rows, edges, batch_size_of).search(start, count)
    used = np.unique(first_fitting(pairs, shapes))
    return tuple((int(source), int(target)) for source, target in shapes[used])


def ordered(shapes: np.ndarray) -> np.ndarray:
    """Sort shapes, integers (k, sides), by their number of positions, then by their first length."""
    return shapes[_order(shapes)]


def _order(shapes: np.ndarray) -> np.ndarray:
    return np.lexsort((shapes[:, 0], shapes.sum(axis=1)))


def first_fitting(lengths: np.ndarray, shapes: np.ndarray) -> np.ndarray:
    """Return the index of the first shape (k, sides) that each row, of lengths (n, sides), fits; −1 if none."""
    first = np.full(len(lengths), -1)
    for index in reversed(range(len(shapes))):
        first[(lengths <= shapes[index]).all(axis=1)] = index
    return first


class _Substitution:
    """Search for shapes by adding one, or replacing one by another.

    Args:
        pairs: different lengths of source and target, integers (m, 2).
        rows: the number of pairs with these lengths, integers (m,).
        edges: source lengths (p,) and target lengths (q,), whose c = p · q combinations are the candidates.
        batch_size_of: a function from a shape to the number of rows in its batches.
    """

    def __init__(
        self,
        pairs: np.ndarray,
        rows: np.ndarray,
        edges: list[np.ndarray],
        batch_size_of: Callable[[Shape], int],
    ) -> None:
        self._grid = np.stack(np.meshgrid(*edges, indexing="ij"), axis=-1)  # (p, q, 2)
        places = [np.searchsorted(edge, pairs[:, side]) for side, edge in enumerate(edges)]
        self._rows = np.zeros(self._grid.shape[:2], np.int64)
        np.add.at(self._rows, tuple(places), rows)
        cells = self._grid.reshape(-1, 2)
        self._order = _order(cells)
        self.candidates = cells[self._order]  # (c, 2)
        self._batch_rows = _batch_rows(self.candidates, batch_size_of)
        self._positions = self.candidates.sum(axis=1)

    def search(self, start: np.ndarray, count: int) -> np.ndarray:
        """Return at most `count` candidates (k, 2) with a cost no higher than that of `start` (k, 2)."""
        largest = len(self.candidates) - 1  # fits all pairs, and is in `start`
        selected = {int(np.flatnonzero((self.candidates == shape).all(axis=1))[0]) for shape in start}
        cost, improved = np.inf, True
        while improved:
            improved = False
            for replaced in (None, *sorted(selected - {largest})):
                kept = selected - {replaced}
                if len(kept) == count or (replaced is not None and replaced not in selected):
                    continue
                candidate, lowest = self._best_addition(np.array(sorted(kept)))
                if lowest < cost:
                    selected, cost, improved = {*kept, candidate}, lowest, True
        return self.candidates[sorted(selected)]

    def _best_addition(self, selected: np.ndarray) -> tuple[int, float]:
        """Return the candidate whose addition to `selected` (k,) gives the lowest cost, and this cost."""
        count = len(self.candidates)
        shape_of_cell = selected[first_fitting(self._grid.reshape(count, 2), self.candidates[selected])]
        rows = self._rows * (shape_of_cell.reshape(self._rows.shape) == selected[:, None, None])  # (k, p, q)
        # The pairs of each selected shape that fit a candidate, and move to it if it has fewer positions.
        fitting = rows.cumsum(axis=1).cumsum(axis=2).reshape(len(selected), count)[:, self._order]
        moved = np.where(np.arange(count) < selected[:, None], fitting, 0)  # (k, c)
        rows = np.concatenate([rows.sum(axis=(1, 2))[:, None] - moved, moved.sum(axis=0, keepdims=True)])
        shapes = np.concatenate([np.tile(selected[:, None], count), np.arange(count)[None]])  # (k + 1, c)
        costs = _cost(rows, self._batch_rows[shapes], self._positions[shapes])
        best = int(np.argmin(costs))
        return best, float(costs[best])


def _cost_of(
    shapes: np.ndarray, pairs: np.ndarray, rows: np.ndarray, batch_size_of: Callable[[Shape], int]
) -> float:
    """Return the cost of ordered shapes (k, 2) for `rows` (m,) of the lengths `pairs` (m, 2)."""
    rows_by_shape = np.bincount(first_fitting(pairs, shapes), rows, len(shapes)).astype(np.int64)
    return float(_cost(rows_by_shape, _batch_rows(shapes, batch_size_of), shapes.sum(axis=1)))


def _cost(rows: np.ndarray, batch_rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the cost of k shapes from their numbers of pairs, rows per batch and positions per row, (k, …) each."""
    epoch = (-(-rows // batch_rows) * batch_rows * positions).sum(axis=0)
    return epoch * (1 + COMPILATION * (rows > 0).sum(axis=0))


def _batch_rows(shapes: np.ndarray, batch_size_of: Callable[[Shape], int]) -> np.ndarray:
    return np.array([batch_size_of(tuple(shape)) for shape in shapes.tolist()])


def _rounded(lengths: np.ndarray, limit: int | np.ndarray, multiple: int) -> np.ndarray:
    return np.minimum(-(-lengths // multiple) * multiple, limit)
