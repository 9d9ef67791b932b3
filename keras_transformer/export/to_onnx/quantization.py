"""Conversion of ONNX graphs to int8."""

import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal, weights
from keras_transformer.export.to_onnx.weight_quantization import Readers, WeightQuantization, quantised

_MOST_PAIR = 128  # the largest sum of two weights whose products with 8 bits fit 16 bits: 255 · 128 < 2¹⁵
_MOST = 127
_WIDE = 4096  # columns, such as those of an output matrix
_SMOOTHING = 0.4  # the power of a channel's size by which it is divided
# The share of channels that are not divided: of values between layers, and of hidden values of feed-forward networks,
# of which each text has others that are large.
_USUAL, _USUAL_HIDDEN = 0.5, 0.98

Examples = Sequence[Mapping[str, np.ndarray]]
"""Inputs of a graph, by name."""


def to_int8(model: Any, readers: Readers | None = None, examples: Examples = ()) -> Any:
    """Quantise the matrices of a graph to int8; products with matrices quantise their other factor while they run.

    A matrix W has a scale for each column, as has the table of a gather. The other factor x of a product has one scale.
    In loops, whose steps have few rows, wide matrices have their scales after the product. In published encoders a few
    channels of x are many times larger than the others, which one scale would round away. So x·W is computed as (x /
    s)·(diag(s)·W), where s grows with the size of each channel in the examples (SmoothQuant,
    https://arxiv.org/abs/2211.10438). If W has more rows than columns, only the few largest channels are divided: x is
    then hidden values of a feed-forward network, and each text has others that are large. A product in a loop body has
    the factors of the product with the same matrix before the loop. Without one, and without examples, x is quantised
    as it is. The first products of inputs that are floats, such as audio and images, stay in float: they take little
    time, and all others build on their outputs. So do matrices that are not among the weights of `readers`, such as the
    filters of a spectrogram.

    Processors without VNNI instructions add pairs of products in 16 bits. So the scale of a column is the smallest with
    which no pair of rows can overflow them, whatever x is: sums are the same on all processors, and the largest weight
    of a column has 7 to 8 bits.

    Args:
        model: an `onnx.ModelProto` of float32, which is not changed.
        readers: the functions that read the values of weights that have none in the model, by name; those of
            quantised weights take their place.
        examples: typical inputs of the graph.

    Returns:
        A new `onnx.ModelProto`.
    """
    return quantised(model, readers, functools.partial(_Int8, examples=examples))


class _Int8(WeightQuantization):
    """The quantisation of a graph to int8.

    Args:
        model: see `WeightQuantization`.
        readers: see `WeightQuantization`.
        examples: typical inputs of the graph.
    """

    def __init__(self, model: Any, readers: Readers, examples: Examples) -> None:
        super().__init__(model, readers)
        self._first = {*self._first_multiplications()}
        loops = [node for node in graph_traversal.nodes(model.graph) if node.op_type == "Loop"]
        bodies = [body for node in loops for body in graph_traversal.inner(node)]
        self._in_loops = {
            name for body in bodies for node in graph_traversal.nodes(body) for name in node.output
        }
        multiplications = [node for node in model.graph.node if self._is_quantised(node)]
        # By matrix, its first input.
        self._measured = {node.input[1]: node.input[0] for node in reversed(multiplications)}
        inputs = dict.fromkeys(node.input[0] for node in multiplications)
        sizes = _channel_sizes(model, readers, inputs, examples) if examples and inputs else {}
        hidden = {node.input[0] for node in multiplications if self._narrows(node.input[1])}
        self._factors = {
            name: _factors(channels, _USUAL_HIDDEN if name in hidden else _USUAL)
            for name, channels in sizes.items()
        }
        self._stored: dict[tuple[str, str], tuple[str, str]] = {}  # integers and scales, by weight and use

    def _quantised_nodes(self, nodes: Iterable[Any]) -> Iterator[Any]:
        inputs: dict[tuple[str, str], tuple[str, ...]] = {}
        for node in nodes:
            if self._is_quantised(node):
                yield from self._product(node, inputs)
            elif self._is_gather(node):
                yield from self._gather(node)
            else:
                yield node

    def _first_multiplications(self) -> Iterator[str]:
        """Yield the outputs of products that no other product with a matrix comes before, from inputs of floats."""
        from onnx import TensorProto

        values = self._graph.input
        read = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
        for node in self._graph.node:
            if self._is_product(node):
                if node.input[0] in read:
                    yield node.output[0]
            elif node.op_type not in ("Shape", "Size") and not read.isdisjoint(node.input):
                read.update(node.output)

    def _is_quantised(self, node: Any) -> bool:
        return self._is_product(node) and node.output[0] not in self._first

    def _narrows(self, matrix: str) -> bool:
        rows, columns = self._constants[matrix].dims[-2:]
        return bool(rows > columns)

    def _product(self, node: Any, inputs: dict[tuple[str, str], tuple[str, ...]]) -> Iterator[Any]:
        """Yield the nodes of a product with a matrix.

        Args:
            node: the product.
            inputs: the integers, the scale and the zero point of quantised factors in the graph, which are added to, by
                name and use.
        """
        from onnx import TensorProto, helper

        factor, weight, output = node.input[0], node.input[1], node.output[0]
        measured = factor if factor in self._factors else self._measured.get(weight, "")
        factors = self._factors.get(measured)
        use = "product" if factors is None else measured
        if (factor, use) not in inputs:
            source = prefix = factor if factors is None else f"{factor}_by_{measured}"
            if factors is not None:
                self._add(f"{measured}_smoothing", 1 / factors)
                yield helper.make_node("Mul", [factor, f"{measured}_smoothing"], [source], source)
            inputs[factor, use] = (f"{prefix}_int8", f"{prefix}_scale", f"{prefix}_zero")
            yield helper.make_node("DynamicQuantizeLinear", [source], inputs[factor, use], f"{prefix}_int8")
        values, scale, zero = inputs[factor, use]
        matrix, scales = self._quantised(weight, use, _pair_sizes, _MOST_PAIR, factors)
        # ONNX Runtime fuses these nodes with DynamicQuantizeLinear.
        sums, result, both = (f"{output}_{name}" for name in ("int32", "float32", "scales"))
        yield helper.make_node("MatMulInteger", [values, matrix, zero], [sums], node.name)
        yield helper.make_node("Cast", [sums], [result], result, to=TensorProto.FLOAT)
        is_wide = output in self._in_loops and self._constants[weight].dims[-1] >= _WIDE
        scaled = f"{output}_scaled" if is_wide else output
        if is_wide:
            scales, quotients = self._mean_and_quotients(scales)
        yield helper.make_node("Mul", [scale, scales], [both], both)
        yield helper.make_node("Mul", [result, both], [scaled], f"{output}_scaled")
        if is_wide:
            yield helper.make_node("Mul", [scaled, quotients], [output], f"{output}_by_column")

    def _mean_and_quotients(self, scales: str) -> tuple[str, str]:
        """Return the names of the mean of scales, and of each divided by it.

        The operation to which ONNX Runtime fuses a product takes longer with scales of columns, once for each column:
        where there are few rows, as in a step of generation, longer than another multiplication by them.
        """
        from onnx import numpy_helper

        values, names = (
            numpy_helper.to_array(self._constants[scales]),
            (f"{scales}_mean", f"{scales}_quotients"),
        )
        mean = values.mean()
        for name, part in zip(names, (mean, values / mean), strict=True):
            self._add(name, part)
        return names

    def _gather(self, node: Any) -> Iterator[Any]:
        """Yield the nodes of a gather from a table."""
        from onnx import helper

        output = node.output[0]
        table, scales = self._quantised(node.input[0], "table", _sizes, _MOST)
        integers = f"{output}_int8"
        yield helper.make_node("Gather", [table, node.input[1]], [integers], node.name, axis=0)
        name = f"{output}_float32"
        yield helper.make_node("DequantizeLinear", [integers, scales], [output], name, axis=-1)

    def _quantised(
        self,
        weight: str,
        use: str,
        sizes: Callable[[np.ndarray], np.ndarray],
        most: int,
        factors: np.ndarray | None = None,
    ) -> tuple[str, str]:
        """Return the names of the integers and of the scales of a weight.

        Args:
            weight: its name.
            use: what it is quantised for.
            sizes: returns the size of each column.
            most: the integer that stands for this size.
            factors: the factors of its rows.
        """
        if (weight, use) in self._stored:
            return self._stored[weight, use]
        number = sum(name == weight for name, _ in self._stored)
        integers, scales = (f"{weight}_{number}_{name}" for name in ("int8", "scales"))
        read = functools.partial(_scaled, self._reader(weight), factors)
        values = read()
        steps = (sizes(values) / most).astype("float32")
        steps[steps == 0] = 1
        self._add_integers(integers, weight, "int8", values.shape, lambda: _rounded(read(), steps))
        self._add(scales, steps)
        self._stored[weight, use] = (integers, scales)
        return integers, scales


def _channel_sizes(
    model: Any, readers: Readers, names: Iterable[str], examples: Examples
) -> dict[str, np.ndarray]:
    """Return the largest absolute value in each channel of values of a graph, by name."""
    import onnx
    import onnxruntime

    copy, readers, names = type(model)(), dict(readers), [*names]
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names
    )
    graph_traversal.remove_unused(copy.graph)
    given = {value.name for value in copy.graph.input}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        if weights.are_external(copy.graph):
            options.add_session_config_entry("session.disable_prepacking", "1")
        weights.save(copy, readers, path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        sizes: dict[str, np.ndarray] = {}
        for example in examples:
            feed = {name: values for name, values in example.items() if name in given}
            for name, values in zip(names, session.run(names, feed), strict=True):
                if values.ndim > 1 and values.size:
                    largest = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
                    sizes[name] = np.maximum(sizes.get(name, 0), largest)
    return sizes


def _factors(sizes: np.ndarray, usual: float) -> np.ndarray:
    """Return the number by which each channel is divided.

    Args:
        sizes: the size of each channel in the examples.
        usual: the share of channels that are not divided, as other inputs may have larger values in them.
    """
    size = float(np.quantile(sizes, usual)) or 1.0
    return (np.maximum(sizes / size, 1) ** _SMOOTHING).astype("float32")


def _scaled(read: weights.Reader, factors: np.ndarray | None) -> np.ndarray:
    values = read()
    return values if factors is None else values * factors[:, None]


def _sizes(values: np.ndarray) -> np.ndarray:
    """Return the largest absolute value in each column (…, N) of a matrix (…, K, N)."""
    return np.abs(values).max(axis=-2)


def _pair_sizes(values: np.ndarray) -> np.ndarray:
    """Return the largest absolute sum that two adjacent rows can have in each column, if x selects one sign."""
    pairs = np.pad(values, [*[(0, 0)] * (values.ndim - 2), (0, values.shape[-2] % 2), (0, 0)])
    even, odd = pairs[..., ::2, :], pairs[..., 1::2, :]
    sums = [np.maximum(sign * even, 0) + np.maximum(sign * odd, 0) for sign in (1, -1)]
    return np.maximum(np.maximum(*sums).max(axis=-2), _sizes(values) * (_MOST_PAIR / _MOST))


def _rounded(values: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.rint(values / steps[..., None, :]).astype("int8")
