"""Rewrites of converted ONNX graphs that make them faster in ONNX Runtime, with equal outputs."""

from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.export.to_onnx import (
    attention,
    fusions,
    graph_traversal,
    grouped_heads,
    loops,
    merged_multiplications,
    reshapes,
    rotary,
    sizes,
)
from keras_transformer.export.to_onnx.graph_traversal import Shapes, graphs

_REWRITES = (
    reshapes.multiply_without_reshaping,
    reshapes.reshape_to_known_sizes,
    reshapes.copy_sizes,
    reshapes.remove_same_reshapes,
    reshapes.remove_full_slices,
    reshapes.remove_lowest_maximum,
    reshapes.remove_factors_of_one,
    reshapes.gather_negative_indices,
    reshapes.gather_in_rows,
    reshapes.cast_once,
    reshapes.squeeze_any_of_one,
    fusions.fuse_layer_normalization,
    fusions.divide_by_root_mean_square,
    fusions.mask_by_addition,
    fusions.gelu_of_erf,
    fusions.choose_by_top_k,
    fusions.sort_indices,
    fusions.gather_selected,
    reshapes.scale_last,
)


def simplify(model: Any, weights: Sequence[str] = ()) -> Any:
    """Simplify a model to fewer and larger operations.

    - Loop-invariant values, above all weights, are read from the enclosing graph: ONNX Runtime then packs weights once
      and does not copy them at each step. Nodes that depend on them only are hoisted out of the loop. Equal loop
      variables, such as the positions in every layer's cache, and equal outputs of branches are merged.
    - The matrix multiplication of a Dense layer is not reshaped to two axes; consecutive reshapes are merged. The scale
      of queries follows them, where ONNX Runtime fuses it with the product.
    - The rotation of heads by positions, and the attention of a decoding step, become one operation of ONNX Runtime.
      Attention of grouped heads is masked without reshapes.
    - Layer normalisation becomes one operation, an attention mask one addition, and the choice of the most probable
      token one TopK; indices are sorted as integers; a vector of constants that a condition selects is gathered.
      Normalisation by the root mean square gets the form that ONNX Runtime fuses, and GELU the one that it fuses with
      the preceding bias.
    - The products of a loop that give queries, keys and values become one product.
    - Known and copied sizes of reshapes become constants, and Gather handles negative indices, so that no shapes are
      computed for either. Other sizes are computed in int64, without casts.
    - Common subexpressions, including equal constants, are computed once.

    Args:
        model: an `onnx.ModelProto`, which is changed.
        weights: the names of the inputs that become constants.
    """
    for graph in [*graphs(model.graph)][::-1]:  # inner loops first
        loops.set_scalar_shapes(graph)
        loops.hoist_invariants(graph)
        loops.share_constants(graph)
    _rewrite(model, *_REWRITES)
    _rewrite(
        model, reshapes.reshape_once
    )  # last: other rewrites match multiplications by the reshapes around them
    graph_traversal.remove_unused(model.graph)  # so that the nodes that read a value are known
    _rewrite(model, grouped_heads.mask_groups, grouped_heads.zero_groups)
    rotary.fuse_rotations(model, _shapes(model))
    _rewrite(model, reshapes.reshape_once)
    shapes = _shapes(model)
    for graph in [*graphs(model.graph)]:
        loops.select_before_loops(graph, shapes)
        fusions.zero_by_multiplication(graph, shapes)
    attention.fuse_attention(model, shapes)
    for graph in [*graphs(model.graph)]:
        sizes.compute_in_int64(graph)
        sizes.slice_shapes(graph)
        loops.share_constants(graph)
        loops.compute_once(graph, graph is model.graph)
        loops.merge_equal_outputs(graph)
    for graph in [*graphs(model.graph)][::-1]:
        loops.compute_before_loops(graph, weights)
    merged_multiplications.merge_multiplications(model, shapes, weights)
    graph_traversal.remove_unused(model.graph)
    return model


def _rewrite(model: Any, *rewrites: Callable[[Any, Shapes], bool]) -> None:
    """Apply rewrites to all graphs of a model until nothing changes."""
    while True:
        shapes = _shapes(model)
        changed = [rewrite(graph, shapes) for graph in graphs(model.graph) for rewrite in rewrites]
        if not any(changed):
            break


def _shapes(model: Any) -> Shapes:
    """Return the known shapes of values and constants."""
    from onnx import shape_inference

    known: Shapes = {}
    for subgraph in graphs(shape_inference.infer_shapes(model).graph):
        for value in [*subgraph.input, *subgraph.value_info, *subgraph.output]:
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                known[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
        known |= {constant.name: list(constant.dims) for constant in subgraph.initializer}
    return known
