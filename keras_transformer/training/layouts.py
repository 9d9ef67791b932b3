"""Tensor parallelism: which axis of each weight is split over devices."""

from collections.abc import Iterator
from typing import Any

import keras

from keras_transformer import layers
from keras_transformer.models.model import flatten_layers

MODEL_AXIS = "model"
Axes = tuple[str | None, ...]


def layout_map(model: keras.Model, mesh: Any) -> Any:
    """Return the layout of a model's weights for tensor parallelism with `keras.distribution.ModelParallel`.

    The axis "model" of the mesh splits attention by heads (query, key and value projections by columns, the output
    projection by rows), feed-forward networks by hidden units, token embeddings and output matrices by the vocabulary,
    so that each sublayer needs one sum over devices. Weights are replicated if the size of the axis does not divide
    their heads, hidden units or vocabulary, and so are all other weights (norms, positions, small heads). Optimizer
    variables have the layout of their weights.

    Keras distributes a variable when it is created: create the model again in the distribution's scope.

    Args:
        model: a model of `keras_transformer.models`, or any Keras model with its layers; its weights are not changed.
        mesh: a `keras.distribution.DeviceMesh` with an axis "model"; another axis can split batches.

    Returns:
        A `keras.distribution.LayoutMap` from the paths of weights to their layouts.

    Raises:
        ValueError: if the mesh has no axis "model", or no layer can be split by its size.

    Example:
        >>> from keras_transformer.models import GPT
        >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16)
        >>> layout_map(model, mesh)["block_0/self_attention/query/kernel"].axes
        (None, 'model')

    References:
        Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (2019),
        section 3.
    """
    names = tuple(getattr(mesh, "axis_names", ()))
    if MODEL_AXIS not in names:
        raise ValueError(f'`mesh` must be a DeviceMesh with an axis "{MODEL_AXIS}". Received: axes={names}')
    devices = mesh.shape[names.index(MODEL_AXIS)]
    axes = {
        variable.path: axes
        for layer in flatten_layers(model)
        for size, variable, axes in _splits(layer)
        if variable is not None and size % devices == 0
    }
    if not axes:
        raise ValueError(
            f'`mesh` must have an axis "{MODEL_AXIS}" whose size divides the heads, hidden units or vocabulary of the '
            f"model. Received: size={devices}"
        )
    layouts = keras.distribution.LayoutMap(mesh)
    for path, layout in axes.items():
        layouts[path] = layout
    return layouts


def _splits(layer: Any) -> Iterator[tuple[int, Any, Axes]]:
    """Yield (number of parts, weight, layout) for each weight of a layer that can be split."""
    if isinstance(layer, layers.MultiHeadAttention):
        yield from _columns(layer.query_projection, layer.num_heads)
        # Each device has the full key/value heads of its queries.
        for projection in (layer.key_projection, layer.value_projection):
            yield from _columns(projection, layer.num_kv_heads)
        yield from _rows(layer.output_projection, layer.num_heads)
    elif isinstance(layer, layers.FeedForward):
        yield from _columns(layer.hidden, layer.hidden_dim)
        if layer.gate is not None:
            yield from _columns(layer.gate, layer.hidden_dim)
        yield from _rows(layer.output_projection, layer.hidden_dim)
    elif isinstance(layer, layers.GraphAttention):
        for projection in layer.projections:
            yield from _columns(projection, layer.num_heads)
    elif isinstance(layer, layers.TokenEmbedding):
        yield layer.vocabulary_size, layer.embedding.embeddings, (MODEL_AXIS, None)
        if not layer.tied:
            yield layer.vocabulary_size, layer.embedding.reverse_embeddings, (None, MODEL_AXIS)
    elif isinstance(layer, layers.RelativeBias):
        yield layer.num_heads, layer.table, (None, MODEL_AXIS)


def _columns(dense: keras.layers.Dense, parts: int) -> Iterator[tuple[int, Any, Axes]]:
    yield parts, dense.kernel, (None, MODEL_AXIS)
    yield parts, dense.bias, (MODEL_AXIS,)


def _rows(dense: keras.layers.Dense, parts: int) -> Iterator[tuple[int, Any, Axes]]:
    yield parts, dense.kernel, (MODEL_AXIS, None)
