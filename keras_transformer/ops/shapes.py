"""Whether the arguments of attention fit together."""

from typing import Any

from keras import backend, ops

Tensor = Any


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise a ValueError unless the shapes are (B, T, N, H), (B, S, K, H) and (B, S, K, V), K a divisor of N."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if len(tensor.shape) != 4:
            raise ValueError(
                f"`{name}` must have four axes (batch, length, heads, size). "
                f"Received: {name}.shape={tuple(tensor.shape)}"
            )
    shapes = ", ".join(f"{name}.shape={tuple(tensor.shape)}" for name, tensor in tensors.items())
    if not (_same(query.shape[0], key.shape[0]) and _same(key.shape[0], value.shape[0])):
        raise ValueError(f"`query`, `key` and `value` must have one batch size. Received: {shapes}")
    if not _same(key.shape[1], value.shape[1]):
        raise ValueError(f"`key` and `value` must have one length. Received: {shapes}")
    dtype = backend.standardize_dtype(query.dtype)
    if "float" not in dtype:
        raise ValueError(f"`query` must be of a floating type. Received: query.dtype={dtype}")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"`query` and `key` must have heads of one size. Received: {shapes}")
    if key.shape[2] != value.shape[2] or query.shape[2] % key.shape[2]:
        raise ValueError(
            "`key` and `value` must have the same number of heads, a divisor of the query's. "
            f"Received: {shapes}"
        )


def check_masks(
    query: Tensor, key: Tensor, mask: Tensor | None, padding_mask: Tensor | None, segment_ids: Tensor | None
) -> None:
    """Raise a ValueError unless the masks are boolean or integer and fit queries and keys."""
    batch, queries, heads = query.shape[:3]
    keys = key.shape[1]
    if padding_mask is not None:
        _check_fit("padding_mask", padding_mask, ("B", "S"), (batch, keys))
        _check_not_float("padding_mask", padding_mask, "boolean, False at padding")
    if segment_ids is not None:
        _check_fit("segment_ids", segment_ids, ("B", "T"), (batch, queries))
        _check_fit("segment_ids", segment_ids, ("B", "S"), (batch, keys))
        _check_not_float("segment_ids", segment_ids, "integers")
    if mask is not None:
        mask = ops.convert_to_tensor(mask)
        rank = len(mask.shape)
        _check_not_float(
            "mask",
            mask,
            "boolean, True where a query may attend; `relations.from_additive` turns an additive mask into one",
        )
        if rank > 4:
            raise ValueError(f"`mask` must have at most four axes. Received: mask.shape={tuple(mask.shape)}")
        axes, sizes = ("B", "N", "T", "S")[4 - rank :], (batch, heads, queries, keys)[4 - rank :]
        _check_fit("mask", mask, axes, sizes, may_broadcast=True)


def check_positions(
    query: Tensor, key: Tensor, query_positions: Tensor | None, key_positions: Tensor | None
) -> None:
    """Raise a ValueError unless positions are integers, one for each query and key, of all rows or of each."""
    for name, positions, tensor in (
        ("query_positions", query_positions, query),
        ("key_positions", key_positions, key),
    ):
        if positions is not None:
            positions = ops.convert_to_tensor(positions)
            axes = ("B", "L")[-max(1, len(positions.shape)) :]
            _check_fit(name, positions, axes, tensor.shape[:2][-len(axes) :])
            _check_not_float(name, positions, "integers")


def check_bias(query: Tensor, key: Tensor, bias: Tensor | None) -> None:
    """Raise a ValueError unless a bias tensor broadcasts to (B, N, T, S)."""
    if bias is None:
        return
    rank = len(ops.convert_to_tensor(bias).shape)
    sizes = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    axes = ("B", "N", "T", "S")
    _check_fit("bias", bias, axes[max(0, 4 - rank) :], sizes[max(0, 4 - rank) :], may_broadcast=True)


def check_heads(name: str, heads: int | None, expected: int) -> None:
    """Raise a ValueError unless `heads`, where there are such, are as many as the query's."""
    if heads is not None and heads != expected:
        raise ValueError(
            f"`{name}` must have as many heads as the query, {expected}. Received: {heads} heads"
        )


def check_edges(query: Tensor, edges: Tensor | None) -> None:
    """Raise a ValueError unless the edges are integers (B, E, 2)."""
    if edges is None:
        return
    edges = ops.convert_to_tensor(edges)
    _check_fit("edges", edges, ("B", "E", "2"), (query.shape[0], None, 2))
    if "int" not in backend.standardize_dtype(edges.dtype):
        raise ValueError(f"`edges` must be integers [source, target]. Received: edges.dtype={edges.dtype}")


def _check_not_float(name: str, tensor: Tensor, expected: str) -> None:
    dtype = backend.standardize_dtype(ops.convert_to_tensor(tensor).dtype)
    if "float" in dtype:
        raise ValueError(f"`{name}` must be {expected}. Received: {name}.dtype={dtype}")


def _check_fit(
    name: str,
    tensor: Tensor,
    axes: tuple[str, ...],
    sizes: tuple[int | None, ...],
    may_broadcast: bool = False,
) -> None:
    shape = tuple(ops.convert_to_tensor(tensor).shape)
    fits = len(shape) == len(sizes) and all(
        _same(found, size) or (may_broadcast and found == 1) for found, size in zip(shape, sizes, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must {'broadcast to' if may_broadcast else 'be'} ({', '.join(axes)}) = {sizes}. "
            f"Received: {name}.shape={shape}"
        )


def _same(size: int | None, other: int | None) -> bool:
    """Whether two sizes are equal, as far as they are known."""
    return size is None or other is None or size == other
