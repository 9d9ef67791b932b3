"""Conversion of ONNX graphs to int4: weights in blocks of 4 bits, and tables and output matrices of 8."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal, loops, weights
from keras_transformer.export.to_onnx.weight_quantization import Readers, WeightQuantization, quantised

_BITS, _TABLE_BITS = 4, 8
_BLOCK = 64  # weights of a row that share a scale; ONNX Runtime multiplies blocks of 32 a fifth more slowly
_SHARES = (1.0, 0.95, 0.9, 0.85)  # of the range of a block, over which its 16 numbers may be spread
_BY_INT8 = 4  # the accuracy level of `MatMulNBits` with which the other factor is rounded to 8 bits, too
_MIDDLE = 128  # the integer of zero in 8 bits
_DOMAIN = "com.microsoft"
_CONSTANTS = {
    "int4_one": np.float32(1),
    "int4_middle": np.uint8(_MIDDLE),
    "int4_first": np.array([0]),
    "int4_last": np.array([-1]),
}


def to_int4(model: Any, readers: Readers | None = None) -> Any:
    """Quantise the matrices of a graph in blocks, which ONNX Runtime's `MatMulNBits` multiplies.

    A block is 64 weights of a column of W, which have one scale. The weights of matrices have 4 bits, those of the
    tables of gathers and of the last products, such as the embeddings and the output matrix of a language model, 8. A
    table whose transposition is an output matrix is stored once.

    Args:
        model: an `onnx.ModelProto` of float32, which is not changed.
        readers: the functions that read the values of weights that have none in the model, by name; those of
            quantised weights take their place.

    Returns:
        A new `onnx.ModelProto`.
    """
    copy = quantised(model, readers, _Blocks, folded=("Gather",))
    # ONNX Runtime does not compute unpacked blocks of 8 bits, and those of 4 slowly.
    loops.merge_branches(copy.graph)
    graph_traversal.import_domain(copy, _DOMAIN)
    return copy


class _Blocks(WeightQuantization):
    """The quantisation of a graph to blocks of 4 and 8 bits."""

    def __init__(self, model: Any, readers: Readers) -> None:
        super().__init__(model, readers)
        self._transposed = {
            node.output[0]: node.input[0]
            for node in graph_traversal.nodes(model.graph)
            if node.op_type == "Transpose" and len(self._dims(node.input[0])) == 2
        }
        tables = {node.input[0] for node in graph_traversal.nodes(model.graph) if self._is_gather(node)}
        self._stored: set[str] = set()
        self._in_8_bits = tables | self._last_matrices()

    def _dims(self, name: str) -> tuple[int, ...]:
        return tuple(self._constants[name].dims) if name in self._constants else ()

    def _last_matrices(self) -> set[str]:
        """Return the matrices of products that no other product with a matrix follows in any graph."""
        matrices: set[str] = set()
        followed: set[str] = set()
        for graph in graph_traversal.graphs(self._graph):
            read: set[str] = set()  # values that later products are computed from
            for node in reversed(graph.node):
                is_read = not read.isdisjoint(node.output)
                if self._is_product(node):
                    matrix = self._matrix(node)
                    matrices.add(matrix)
                    followed |= {matrix} if is_read else set()
                    read.add(node.input[0])
                elif is_read:
                    read.update(node.input)
        return matrices - followed

    def _matrix(self, product: Any) -> str:
        return self._transposed.get(product.input[1], product.input[1])

    def _is_product(self, node: Any) -> bool:
        if node.op_type != "MatMul":
            return False
        matrix = self._matrix(node)
        return self._is_matrix(matrix) and len(self._dims(matrix)) == 2

    def _quantised_nodes(self, nodes: Iterable[Any]) -> Iterator[Any]:
        for node in nodes:
            if self._is_product(node):
                yield self._product(node)
            elif self._is_gather(node):
                yield from self._gather(node)
            else:
                yield node

    def _product(self, node: Any) -> Any:
        from onnx import helper

        matrix = self._matrix(node)
        bits, by_rows = _TABLE_BITS if matrix in self._in_8_bits else _BITS, matrix != node.input[1]
        rows, columns = self._dims(matrix)[:: -1 if by_rows else 1]
        return helper.make_node(
            "MatMulNBits",
            [node.input[0], *self._blocks(matrix, bits, by_rows)],
            [node.output[0]],
            node.name,
            domain=_DOMAIN,
            K=rows,
            N=columns,
            bits=bits,
            block_size=_BLOCK,
            accuracy_level=_BY_INT8,
        )

    def _gather(self, node: Any) -> Iterator[Any]:
        """Yield the nodes that read rows of a table, multiply each block by its scale, and join the blocks."""
        from onnx import helper

        table, ids, output = node.input[0], node.input[1], node.output[0]
        size = self._dims(table)[1]
        padded = -(-size // _BLOCK) * _BLOCK
        blocks, scales = self._blocks(table, _TABLE_BITS, by_rows=True)
        for name, values in _CONSTANTS.items():
            self._add(name, values)
        self._add(f"int4_{padded}", np.array([padded]))
        integers, floats, rows, columns, scaled, sizes, joined = (
            f"{output}_{name}"
            for name in ("int8", "float32", "scales", "columns", "scaled", "sizes", "joined")
        )
        # ids (…) → blocks (…, D / 64, 64)
        yield helper.make_node("Gather", [blocks, ids], [integers], node.name)
        yield helper.make_node("DequantizeLinear", [integers, "int4_one", "int4_middle"], [floats], floats)
        yield helper.make_node("Gather", [scales, ids], [rows], rows)
        yield helper.make_node("Unsqueeze", [rows, "int4_last"], [columns], columns)
        yield helper.make_node("Mul", [floats, columns], [scaled], scaled)
        yield helper.make_node("Shape", [ids], [f"{sizes}_of_ids"], f"{sizes}_of_ids")
        yield helper.make_node("Concat", [f"{sizes}_of_ids", f"int4_{padded}"], [sizes], sizes, axis=0)
        if padded == size:
            yield helper.make_node("Reshape", [scaled, sizes], [output], joined)
        else:
            self._add(f"int4_{size}", np.array([size]))
            yield helper.make_node("Reshape", [scaled, sizes], [joined], joined)
            yield helper.make_node(
                "Slice", [joined, "int4_first", f"int4_{size}", "int4_last"], [output], output
            )

    def _blocks(self, weight: str, bits: int, by_rows: bool) -> list[str]:
        """Return the names of a quantised weight, which are the inputs of `MatMulNBits`.

        Args:
            weight: its name.
            bits: 8, or 4 with a zero point.
            by_rows: whether the weight is (N, K), not (K, N).

        Returns:
            The integers (N, K / 64, 8 · bits), uint8, the scales (N, K / 64), and in 4 bits the zero points, two in a
            byte.
        """
        prefix = f"{weight}_{'rows' if by_rows else 'columns'}"
        integers, scales, zeros = (f"{prefix}_{name}" for name in (f"int{bits}", "scales", "zeros"))
        if integers not in self._stored:
            self._stored.add(integers)
            read = functools.partial(_in_blocks, self._reader(weight), by_rows)
            steps, middles = _scales(read(), bits)
            shape = (*steps.shape[:2], _BLOCK * bits // 8)
            packed = functools.partial(_packed, read, steps, middles, bits)
            self._add_integers(integers, weight, "uint8", shape, packed)
            self._add(scales, steps[..., 0])
            if bits == _BITS:
                padded = np.pad(middles[..., 0], [(0, 0), (0, steps.shape[1] % 2)])
                self._add(zeros, _in_pairs(padded.astype("uint8")))
        return [integers, scales, *([zeros] if bits == _BITS else [])]


def _in_blocks(read: weights.Reader, by_rows: bool) -> np.ndarray:
    """Return a weight as blocks (N, K / 64, 64), padded with zeros."""
    values = read() if by_rows else read().T
    padded = np.pad(values, [(0, 0), (0, -values.shape[1] % _BLOCK)])
    return padded.reshape(len(values), -1, _BLOCK)


def _scales(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale of each block and the integer of zero, (N, K / 64, 1).

    In 4 bits, 16 numbers are spread from the least to the largest weight of a block, with zero among them, or over the
    share of this range that has the least squared error. In 8 bits, 255 are spread around zero, whose integer is the
    one that `MatMulNBits` assumes.
    """
    least, largest = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    if bits == _TABLE_BITS:
        return _steps(2 * np.maximum(-least, largest) / (2**bits - 2)), np.float32(_MIDDLE)
    least, largest = np.minimum(least, 0), np.maximum(largest, 0)
    shape = (len(_SHARES), *least.shape)
    steps, zeros, errors = (np.empty(shape, "float32") for _ in range(3))
    for number, share in enumerate(_SHARES):
        steps[number] = _steps(share * (largest - least) / (2**bits - 1))
        zeros[number] = np.rint(-share * least / steps[number])
        rounded = (_integers(blocks, steps[number], zeros[number], bits) - zeros[number]) * steps[number]
        errors[number] = np.square(rounded - blocks).sum(axis=-1, keepdims=True)
    best = errors.argmin(axis=0)[None]
    return np.take_along_axis(steps, best, 0)[0], np.take_along_axis(zeros, best, 0)[0]


def _steps(steps: np.ndarray) -> np.ndarray:
    """Return scales, 1 for blocks of zeros."""
    return np.where(steps == 0, 1, steps).astype("float32")


def _integers(blocks: np.ndarray, steps: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    return np.clip(np.rint(blocks / steps) + zeros, 0, 2**bits - 1)


def _packed(read: weights.Reader, steps: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    """Return the integers of blocks, uint8 (N, K / 64, 8 · bits)."""
    integers = _integers(read(), steps, zeros, bits).astype("uint8")
    return integers if bits == _TABLE_BITS else _in_pairs(integers)


def _in_pairs(integers: np.ndarray) -> np.ndarray:
    """Return integers of 4 bits (…, 2 n), two in a byte, uint8 (…, n)."""
    pairs: np.ndarray = integers[..., ::2] | integers[..., 1::2] << 4
    return pairs
