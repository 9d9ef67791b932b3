"""Attention to pairs, in triangles and over hyperedges: equations and symmetries."""

import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.relations import SlidingWindow
from tests.laws.cases import CLOSE, normal, randomise

X = normal(2, 5, 8)
PERMUTATION = np.array([3, 0, 4, 2, 1])


def built(layer, *inputs):
    layer(*inputs)
    return randomise(layer)


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def simplicial(layer, inputs, allowed):
    """Return the output of simplicial attention by its equation, one query and head at a time."""
    query, key, second_key, value, second_value = (
        ops.convert_to_numpy(getattr(layer, f"{name}_projection")(inputs)).reshape(2, 5, 2, -1)
        for name in ("query", "key", "second_key", "value", "second_value")
    )
    heads = np.zeros((*query.shape[:3], value.shape[-1]), "float32")
    for b, i, n in np.ndindex(*query.shape[:3]):
        pairs = [(j, k) for j in range(5) for k in range(5) if allowed(i, j, k)]
        scores = [np.sum(query[b, i, n] * key[b, j, n] * second_key[b, k, n]) for j, k in pairs]
        weights = softmax(np.array(scores) / np.sqrt(query.shape[-1]))
        heads[b, i, n] = sum(
            w * value[b, j, n] * second_value[b, k, n] for w, (j, k) in zip(weights, pairs, strict=True)
        )
    return layer.output_projection(heads.reshape(2, 5, -1))


def test_simplicial_attention_equals_its_equation():
    options = {"relation": "causal", "second_relation": SlidingWindow(1), "pair_relation": ~SlidingWindow(0)}
    layer = built(layers.SimplicialAttention(2, 3, 5, **options), X)

    def allowed(i, j, k):
        return i == 0 or (j <= i and i - 1 <= k <= i and j != k)

    # The first element has no pair of different elements.
    np.testing.assert_allclose(layer(X)[:, 1:], simplicial(layer, X, allowed)[:, 1:], **CLOSE)


def test_a_constant_third_element_gives_attention_to_single_elements():
    """With constant second keys and values, pairs weigh as much as their first element."""
    layer = built(layers.SimplicialAttention(2), X)
    for projection in (layer.second_key_projection, layer.second_value_projection):
        projection.kernel.assign(ops.zeros(projection.kernel.shape))
        projection.bias.assign(ops.ones(projection.bias.shape))
    pairwise = layers.MultiHeadAttention(2)
    pairwise(X)
    for name in ("query", "key", "value"):
        source, target = (getattr(each, f"{name}_projection") for each in (layer, pairwise))
        target.set_weights(source.get_weights())
    pairwise.output_projection.set_weights(layer.output_projection.get_weights())
    np.testing.assert_allclose(layer(X), pairwise(X), **CLOSE)


def test_simplicial_attention_is_equivariant_to_permutations():
    layer = built(layers.SimplicialAttention(2), X)
    np.testing.assert_allclose(layer(X[:, PERMUTATION]), ops.take(layer(X), PERMUTATION, axis=1), **CLOSE)


def test_causal_simplicial_attention_does_not_read_later_elements():
    layer = built(layers.SimplicialAttention(2, relation="causal"), X)
    changed = X.copy()
    changed[:, 3:] += 1
    np.testing.assert_array_equal(layer(changed)[:, :3], layer(X)[:, :3])
    assert np.abs(layer(changed) - layer(X))[:, 3:].min() > 0


def test_masks_of_triples_and_of_relations_agree():
    causal = layers.SimplicialAttention(2, relation="causal")
    masked = layers.SimplicialAttention(2)
    built(causal, X)
    masked(X)
    masked.set_weights(causal.get_weights())
    i, j, k = np.ogrid[:5, :5, :5]
    mask = np.broadcast_to((j <= i) & (k <= i), (2, 5, 5, 5))
    np.testing.assert_allclose(masked(X, attention_mask=mask), causal(X), **CLOSE)


@pytest.mark.parametrize("starting", [True, False])
def test_triangle_attention_equals_its_equation(starting):
    pairs = normal(1, 4, 4, 6)
    layer = built(layers.TriangleAttention(2, 3, starting=starting), pairs)
    inputs = pairs if starting else np.swapaxes(pairs, 1, 2)
    query, key, value, gate, bias = (
        ops.convert_to_numpy(projection(inputs))[0]
        for projection in (
            layer.query_projection,
            layer.key_projection,
            layer.value_projection,
            layer.gate,
            layer.bias_projection,
        )
    )
    query, key, value, gate = (each.reshape(4, 4, 2, 3) for each in (query, key, value, gate))
    heads = np.zeros_like(query)
    for i, j, n in np.ndindex(4, 4, 2):
        scores = key[i, :, n] @ query[i, j, n] / np.sqrt(3) + bias[j, :, n]
        heads[i, j, n] = gate[i, j, n] * (softmax(scores) @ value[i, :, n])
    expected = ops.convert_to_numpy(layer.output_projection(heads.reshape(1, 4, 4, 6)))
    expected = expected if starting else np.swapaxes(expected, 1, 2)
    np.testing.assert_allclose(layer(pairs), expected, **CLOSE)


@pytest.mark.parametrize("starting", [True, False])
def test_triangle_attention_is_equivariant_to_permutations(starting):
    pairs = normal(2, 5, 5, 8)
    layer = built(layers.TriangleAttention(2, starting=starting), pairs)
    permuted = pairs[:, PERMUTATION][:, :, PERMUTATION]
    output = ops.convert_to_numpy(layer(pairs))
    np.testing.assert_allclose(layer(permuted), output[:, PERMUTATION][:, :, PERMUTATION], **CLOSE)


@pytest.mark.parametrize("starting", [True, False])
def test_pairs_do_not_attend_to_pairs_with_padding(starting):
    pairs, present = normal(2, 5, 5, 8), np.arange(5) < [[5], [3]]
    layer = built(layers.TriangleAttention(2, starting=starting), pairs)
    output = layer(pairs, padding_mask=present)
    np.testing.assert_allclose(output[1, :3, :3], layer(pairs[1:, :3, :3])[0], **CLOSE)


HYPEREDGES = [[0, 1, 2], [2, 3], [4]]
INCIDENCES = np.array(
    [[[node, edge] for edge, nodes in enumerate(HYPEREDGES) for node in nodes] + [[-1, -1]]] * 2
)


def test_hyperedges_attend_to_their_nodes_and_nodes_to_their_hyperedges():
    hyperedges = normal(2, 3, 8)
    layer = built(layers.HypergraphAttention(2), X, hyperedges, INCIDENCES)
    nodes, edges = layer(X, hyperedges, INCIDENCES)
    incident = np.zeros((2, 3, 5), bool)
    for edge, members in enumerate(HYPEREDGES):
        incident[:, edge, members] = True
    expected = hyperedges + layer.to_hyperedges(hyperedges, X, attention_mask=incident)
    np.testing.assert_allclose(edges, expected, **CLOSE)
    expected = layer.to_nodes(X, expected, attention_mask=np.swapaxes(incident, 1, 2))
    np.testing.assert_allclose(nodes, expected, **CLOSE)


def test_hypergraph_attention_is_equivariant_to_permutations():
    hyperedges = normal(2, 3, 8)
    layer = built(layers.HypergraphAttention(2), X, hyperedges, INCIDENCES)
    nodes, edges = layer(X, hyperedges, INCIDENCES)
    places, order = np.argsort(PERMUTATION), np.array([2, 0, 1])
    padding = INCIDENCES < 0
    permuted = np.stack([places[INCIDENCES[..., 0]], np.argsort(order)[INCIDENCES[..., 1]]], axis=-1)
    permuted = np.where(padding, -1, permuted)[:, ::-1]
    new_nodes, new_edges = layer(X[:, PERMUTATION], hyperedges[:, order], permuted)
    np.testing.assert_allclose(new_nodes, ops.take(nodes, PERMUTATION, axis=1), **CLOSE)
    np.testing.assert_allclose(new_edges, ops.take(edges, order, axis=1), **CLOSE)


def test_invalid_arguments_are_rejected():
    with pytest.raises(
        ValueError, match="`num_heads` must divide `model_dim`. Received: num_heads=3, model_dim=8"
    ):
        layers.SimplicialAttention(3)(X)
    with pytest.raises(
        ValueError, match=r"`pairs` must have the shape \(B, T, T, D\). Received: pairs=\(2, 5, 8\)"
    ):
        layers.TriangleAttention(2)(X)
    with pytest.raises(ValueError, match="`num_heads` must be a positive integer"):
        layers.TriangleAttention(0)
