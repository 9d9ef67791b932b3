"""The weights of ONNX graphs, which are arguments of the traced function and initializers of the graph."""

import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export.to_onnx import graph_traversal
from keras_transformer_serving import external_data, protobuf
from keras_transformer_serving.external_data import MAX_BYTES as MAX_BYTES

MIN_EXTERNAL_BYTES = 1024  # of a weight that is written to the external file, if there is one
# The fields of messages that can contain weights.
_HOLDERS = {
    "ModelProto": ("graph",),
    "GraphProto": ("node", "initializer"),
    "NodeProto": ("attribute",),
    "AttributeProto": ("g",),
}
_PAGE = 4096  # of the operating system: files are mapped from a multiple of it

Reader = Callable[[], np.ndarray]
"""A function that returns the values of a weight."""


class Matrices:
    """The matrices of a model, which a traced function takes as arguments.

    As constants, they would be limited to 2 GiB, copied by each step of a conversion, and folded with other operations:
    an embedding matrix and its transposition for the logits would be stored twice. Vectors, such as those of
    normalisations, remain constants, because rewrites read them.

    Args:
        variables: the model's weights.

    Attributes:
        specs: the specs of the arguments.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = [variable for variable in variables if len(variable.shape) > 1]
        self._vectors = [(variable, variable.numpy()) for variable in variables if len(variable.shape) <= 1]
        # The sizes are unknown, because TensorFlow's optimiser allocates tensors of known sizes.
        self.specs = [
            tf.TensorSpec([None] * len(variable.shape), variable.dtype, name=f"weight_{number}")
            for number, variable in enumerate(self._variables)
        ]

    def arguments_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes the matrices after the arguments of `function`."""
        count = len(self._variables)

        def with_matrices(*arguments: Any) -> Any:
            num_inputs = len(arguments) - count
            matrices = [
                (variable, tf.ensure_shape(value, variable.shape))
                for variable, value in zip(self._variables, arguments[num_inputs:], strict=True)
            ]
            vectors = [(variable, tf.constant(values)) for variable, values in self._vectors]
            with keras.StatelessScope(state_mapping=matrices + vectors):
                return function(*arguments[:num_inputs])

        return with_matrices

    def set_shapes(self, graph: Any) -> None:
        """Set the shapes of a converted graph's inputs for the matrices."""
        shapes = {
            spec.name: variable.shape for spec, variable in zip(self.specs, self._variables, strict=True)
        }
        for value in graph.input:
            sizes = shapes.get(value.name, ())
            for dimension, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
                dimension.dim_value = size

    def insert(self, graph: Any, detached: dict[str, Reader] | None = None) -> None:
        """Replace a converted graph's inputs for the matrices, and those joined by their columns, by initializers.

        Args:
            graph: an `onnx.GraphProto`, which is changed.
            detached: receives a function that reads each matrix, by name, if given. Their initializers then have no
                values.
        """
        from onnx import helper

        variables = {spec.name: variable for spec, variable in zip(self.specs, self._variables, strict=True)}
        inputs = [value for value in graph.input if value.name not in variables]
        del graph.input[:]
        graph.input.extend(inputs)
        dtypes: dict[str, Any] = {}
        # In mixed precision, the weights are stored in the precision of the computation.
        for subgraph in graph_traversal.graphs(graph):
            casts = [node for node in subgraph.node if node.op_type == "Cast" and node.input[0] in variables]
            for node in casts:
                variables[node.output[0]] = variables[node.input[0]]
                dtypes[node.output[0]] = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
                subgraph.node.remove(node)
        parts = {name: [name] for name in variables}
        for node in [node for node in graph.node if node.op_type == "Concat" and node.attribute[0].i == 1]:
            if variables.keys() >= {*node.input}:
                parts[node.output[0]] = [*node.input]
                graph.node.remove(node)
        read = {name for node in graph_traversal.nodes(graph) for name in node.input}
        paths: dict[str, str] = {}
        readers: dict[str, Reader] = {}
        for name, joined in parts.items():
            if name in read:
                path = "+".join(variables[part].path for part in joined)
                paths[name] = path if path not in paths.values() else f"{path}/{name}"
                dtype = np.dtype(dtypes.get(name, variables[joined[0]].dtype))
                readers[paths[name]] = _reader([variables[part] for part in joined], dtype)
                data_type = helper.np_dtype_to_tensor_dtype(dtype)
                shape = [*variables[joined[0]].shape]
                if len(joined) > 1:
                    shape[1] = sum(variables[part].shape[1] for part in joined)
                graph.initializer.append(without_values(paths[name], data_type, shape))
        if detached is None:
            attach(graph, readers)
        else:
            detached |= readers
        for node in graph_traversal.nodes(graph):
            node.input[:] = [paths.get(name, name) for name in node.input]


def _reader(variables: Sequence[Any], dtype: np.dtype[Any]) -> Reader:
    """Return a function that reads a variable, or several joined by their columns."""

    def read() -> np.ndarray:
        values = [variable.numpy().astype(dtype, copy=False) for variable in variables]
        return values[0] if len(values) == 1 else np.concatenate(values, axis=1)

    return read


def without_values(name: str, data_type: int, shape: Sequence[int]) -> Any:
    """Return an initializer whose values are read later."""
    from onnx import TensorProto

    return TensorProto(name=name, data_type=data_type, dims=shape)


def are_external(graph: Any) -> bool:
    """Return whether the initializers of a graph exceed the size of one file."""
    return sum(map(_num_bytes, graph.initializer)) > MAX_BYTES


def _num_bytes(tensor: Any) -> int:
    from onnx import helper

    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def attach(graph: Any, readers: Mapping[str, Reader]) -> None:
    """Store the values of initializers in a graph."""
    for tensor in graph.initializer:
        if tensor.name in readers:
            tensor.raw_data = np.ascontiguousarray(readers[tensor.name]()).tobytes()


def save(model: Any, readers: Mapping[str, Reader], path: pathlib.Path) -> None:
    """Write a model to a file, and to a second one the weights that exceed the size of one file.

    Only one weight at a time is in memory.

    Args:
        model: an `onnx.ModelProto`.
        readers: the functions that read the values of initializers that have none in the model, by name.
        path: the file.
    """
    if are_external(model.graph):
        _write(model.graph, readers, path.with_name(external_data.file_name(path.stem)))
        readers = {}
    with path.open("wb") as file:
        for part in _serialized(model, readers):
            file.write(part if isinstance(part, bytes) else part.values())


class _Values(NamedTuple):
    """The values of a weight in a serialised message."""

    read: Reader
    size: int

    def __len__(self) -> int:
        return self.size

    def values(self) -> np.ndarray:
        return np.ascontiguousarray(self.read()).reshape(-1).view(np.uint8)


def _serialized(message: Any, readers: Mapping[str, Reader]) -> list[bytes | _Values]:
    """Return the parts of a serialised message."""
    name, kind = getattr(message, "name", ""), message.DESCRIPTOR.name
    if kind == "TensorProto" and name in readers:
        size = _num_bytes(message)
        header = protobuf.header(message.RAW_DATA_FIELD_NUMBER, size)
        return [message.SerializeToString() + header, _Values(readers[name], size)]
    holders = _HOLDERS.get(kind, ())
    if not holders or (kind == "NodeProto" and not graph_traversal.inner(message)):
        return [message.SerializeToString()]
    others = type(message)()
    others.CopyFrom(message)
    for holder in holders:
        others.ClearField(holder)
    parts = [others.SerializeToString()]
    for field, value in message.ListFields():
        for item in () if field.name not in holders else [value] if field.name in ("graph", "g") else value:
            inner = _serialized(item, readers)
            parts += [protobuf.header(field.number, sum(map(len, inner))), *inner]
    return parts


def _write(graph: Any, readers: Mapping[str, Reader], file: pathlib.Path) -> None:
    """Write initializers to a file beside the graph's, one at a time.

    Args:
        graph: an `onnx.GraphProto`, whose initializers are changed to refer to the file.
        readers: the functions that read the values of initializers that have none, by name. Others of at least
            `MIN_EXTERNAL_BYTES` are written, too.
        file: the file.
    """
    from onnx import TensorProto

    large = [
        tensor
        for tensor in graph.initializer
        if tensor.name in readers or len(tensor.raw_data) >= MIN_EXTERNAL_BYTES
    ]
    with file.open("wb") as data:
        for tensor in large:
            content = (
                np.ascontiguousarray(readers[tensor.name]()).reshape(-1).view(np.uint8)
                if tensor.name in readers
                else tensor.raw_data
            )
            data.seek(-data.tell() % _PAGE, 1)
            entries = {"location": file.name, "offset": data.tell(), "length": len(content)}
            data.write(content)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
