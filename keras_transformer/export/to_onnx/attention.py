"""Fusion of the attention of decoding steps to ONNX Runtime's MultiHeadAttention, equal up to rounding."""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer.export.to_onnx.graph_traversal import Shapes

DOMAIN = "com.microsoft"


def fuse_attention(model: Any, shapes: Shapes) -> None:
    """Softmax(c · q kᵀ + mask) v → MultiHeadAttention, for a known number of queries, as in a decoding step.

    The operation also appends keys and values to the past, splits and joins heads, and adds the biases of the
    projections.

    Args:
        model: an `onnx.ModelProto`, which is changed.
        shapes: the known shapes of its values.
    """
    from onnx import numpy_helper

    vectors = {
        constant.name: numpy_helper.to_array(constant)
        for graph in graph_traversal.graphs(model.graph)
        for constant in graph.initializer
        if len(constant.dims) == 1
    }
    fused = [_Fusion(graph, shapes, vectors).apply() for graph in graph_traversal.graphs(model.graph)]
    if any(fused):
        graph_traversal.import_domain(model, DOMAIN)


@dataclasses.dataclass
class _Attention:
    """The attention of one softmax.

    Attributes:
        query, key, value: values (B, N, T, H), (B, N, S, H) and (B, N, S, H).
        scale: c.
        mask: a value that is added to the scores, or "".
        result: the node that multiplies by the values.
        factor: a value that multiplies the result, or "".
        last: the node that joins the heads of the result.
    """

    query: str
    key: str
    value: str
    scale: float
    mask: str
    result: Any
    factor: str
    last: Any


class _Fusion:
    """The fusion of attention in one graph.

    Args:
        graph: an `onnx.GraphProto`.
        shapes: the known shapes of its values.
        vectors: the constants of the model with one axis.
    """

    def __init__(self, graph: Any, shapes: Shapes, vectors: dict[str, np.ndarray]) -> None:
        self._graph, self._shapes, self._vectors = graph, shapes, vectors
        self._producers = graph_traversal.Producers(graph)
        self._readers = graph_traversal.readers(graph)
        self._written: set[str] = set()  # keys and values that a fused operation returns

    def apply(self) -> bool:
        """Replace all attention that ONNX Runtime's operation supports; return whether there is any."""
        matches = [
            match
            for node in self._graph.node
            if node.op_type == "Softmax" and (match := self._match(node)) is not None
        ]
        for match in matches:
            self._replace(match)
        if matches:
            graph_traversal.sort(self._graph)
        return bool(matches)

    def _match(self, softmax: Any) -> _Attention | None:
        """Return the attention that a softmax belongs to; None if it is not attention, or is not supported."""
        producers = self._producers
        product, mask = producers.get(softmax.input[0], "MatMul"), ""
        added = producers.get(softmax.input[0], "Add")
        for scores, other in () if added is None else (added.input, added.input[::-1]):
            if producers.get(scores, "MatMul") is not None:
                product, mask = producers.get(scores, "MatMul"), other
                break
        result = self._only_reader(softmax, "MatMul")
        if product is None or result is None or result.input[0] != softmax.output[0]:
            return None
        query, scale = self._scaled(product.input[0])
        key, value = self._transposed(product.input[1], [0, 1, 3, 2]), result.input[1]
        _, heads, length, size = sizes = self._sizes(query)
        if key is None or None in sizes[1:]:
            return None
        if any(self._sizes(name)[1::2] != [heads, size] for name in (key, value)):
            return None
        if mask:
            _, mask_heads, mask_length, mask_size = self._sizes(mask)
            if mask_heads not in (1, heads) or mask_length not in (1, length) or mask_size == 1:
                return None
        last, factor = self._only_reader(result), ""
        if last is not None and last.op_type == "Mul":
            (factor,) = [name for name in last.input if name != result.output[0]] or [result.output[0]]
            if self._sizes(factor)[1:] not in ([1, 1, 1], [1, length, 1]):
                return None
            last = self._only_reader(last)
        if last is not None and self._transposed(last.output[0], [0, 2, 1, 3]) is not None:
            last = self._only_reader(last)
        elif length != 1:
            return None
        if last is None or last.op_type != "Reshape":
            return None
        if self._shapes.get(last.output[0], [])[1:] != [length, heads * size]:
            return None
        return _Attention(query, key, value, scale, mask, result, factor, last)

    def _replace(self, match: _Attention) -> None:
        """Insert ONNX Runtime's operation, whose last output is that of the attention."""
        from onnx import helper, numpy_helper

        heads = self._sizes(match.query)[1]
        name = match.last.output[0]
        query, vectors = self._joined(match.query), [match.key, match.value]
        past: list[str] = []
        outputs = [f"{name}_attended" if match.factor else name]
        appended = [self._appended(name) for name in vectors]
        if None not in appended and match.key != match.value and self._written.isdisjoint(vectors):
            self._written.update(vectors)
            vectors = [self._joined(node.input[1]) for node in appended]
            past = [node.input[0] for node in appended]
            outputs += [match.key, match.value]
            for node in appended:
                self._graph.node.remove(node)
        (query, *vectors), bias = self._without_biases([query, *vectors], f"{name}_bias")
        inputs = [query, *vectors, bias, "", self._for_queries(match), *past]
        attention = helper.make_node(
            "MultiHeadAttention",
            inputs,
            outputs,
            f"{name}_attention",
            domain=DOMAIN,
            num_heads=heads,
            scale=match.scale,
        )
        self._graph.node.append(attention)
        self._graph.node.remove(match.last)
        if match.factor:
            axes, factor = f"{name}_axes", f"{name}_factor"
            self._graph.initializer.append(numpy_helper.from_array(np.array([1], "int64"), axes))
            self._graph.node.append(helper.make_node("Squeeze", [match.factor, axes], [factor], factor))
            self._graph.node.append(helper.make_node("Mul", [*outputs[:1], factor], [name], name))

    def _only_reader(self, node: Any, operation: str | None = None) -> Any:
        """Return the node that reads the output of another, if it is the only one."""
        readers = self._readers[node.output[0]]
        if len(readers) != 1 or getattr(readers[0], "op_type", None) is None:
            return None
        return readers[0] if operation in (None, readers[0].op_type) else None

    def _scaled(self, name: str) -> tuple[str, float]:
        """Return x and c for a value c · x, itself and 1 for others."""
        product = self._producers.get(name, "Mul")
        for x, factor in () if product is None else (product.input, product.input[::-1]):
            number = graph_traversal.constant(self._graph, factor)
            if number is not None:
                return x, number
        return name, 1.0

    def _transposed(self, name: str, axes: list[int]) -> str | None:
        """Return x for a value that is x with these axes, None for others."""
        node = self._producers.get(name, "Transpose")
        return node.input[0] if node is not None and list(node.attribute[0].ints) == axes else None

    def _sizes(self, name: str) -> list[int | None]:
        """Return the sizes of a value with four axes, None for unknown ones and for values with other axes."""
        sizes = self._shapes.get(name, [])
        return sizes if len(sizes) == 4 else [None] * 4

    def _appended(self, name: str) -> Any:
        """Return the node that appends (B, N, T, H) to (B, N, S, H); None if a value is computed by another."""
        node = self._producers.get(name, "Concat")
        if node is None or len(node.input) != 2 or node.attribute[0].i != 2:
            return None
        _, heads, length, size = self._sizes(node.input[1])
        return None if None in (heads, length, size) else node

    def _joined(self, name: str) -> str:
        """Return a value (B, T, N · H) that has the heads of a value (B, N, T, H)."""
        from onnx import helper, numpy_helper

        _, heads, length, size = self._sizes(name)
        transposed = self._transposed(name, [0, 2, 1, 3])
        split = self._producers.get(name if transposed is None else transposed, "Reshape")
        if split is None or (transposed is None and length != 1):
            pass
        elif self._shapes.get(split.input[0], [])[1:] == [length, heads * size]:
            return str(split.input[0])
        joined, shape = f"{name}_joined", f"{name}_joined_shape"
        self._graph.initializer.append(
            numpy_helper.from_array(np.array([-1, length, heads * size], "int64"), shape)
        )
        swapped = name
        if length != 1:
            swapped = f"{name}_swapped"
            self._graph.node.append(
                helper.make_node("Transpose", [name], [swapped], swapped, perm=[0, 2, 1, 3])
            )
        self._graph.node.append(helper.make_node("Reshape", [swapped, shape], [joined], joined))
        return joined

    def _for_queries(self, match: _Attention) -> str:
        """Return the mask with a row for each query."""
        from onnx import helper, numpy_helper

        _, _, length, _ = self._sizes(match.query)
        if not match.mask or self._sizes(match.mask)[2] == length:
            return match.mask
        name = f"{match.mask}_{length}"
        if name not in self._shapes:
            shape = numpy_helper.from_array(np.array([1, 1, length, 1], "int64"), f"{name}_shape")
            self._graph.initializer.append(shape)
            self._graph.node.append(helper.make_node("Expand", [match.mask, shape.name], [name], name))
            self._shapes[name] = [*self._sizes(match.mask)[:2], length, None]
        return name

    def _without_biases(self, names: list[str], bias: str) -> tuple[list[str], str]:
        """Return query, key and value before their constant biases are added, and the name of these in one vector.

        The biases of keys and values that were computed before are not separate: ONNX Runtime reads only that of the
        query.
        """
        from onnx import numpy_helper

        added = [self._bias_added(name) for name in names]
        if any(len(self._shapes.get(name, [])) == 4 for name in names[1:]):
            added[1:] = [(name, np.zeros_like(added[0][1])) for name in names[1:]] if added[0] else []
        if None in added:
            return names, ""
        vectors = np.concatenate([vector for _, vector in added])
        self._graph.initializer.append(numpy_helper.from_array(vectors, bias))
        return [x for x, _ in added], bias

    def _bias_added(self, name: str) -> tuple[str, np.ndarray] | None:
        """Return x and b for a value x + b with a constant b that has an element for each feature."""
        node = self._producers.get(name, "Add")
        for x, vector in () if node is None else (node.input, node.input[::-1]):
            if vector in self._vectors and self._shapes.get(name, [])[-1:] == [len(self._vectors[vector])]:
                return x, self._vectors[vector]
        return None
