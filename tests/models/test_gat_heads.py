"""Whole graphs and links: symmetries, padding, and what is learned."""

import keras
import numpy as np
import pytest

from keras_transformer.models import GAT, GraphClassifier, LinkPredictor
from tests.laws.cases import CLOSE, normal, randomise

NODES = normal(2, 6, 5)
EDGES = np.array([[[0, 1], [1, 2], [3, 1], [4, 3]], [[5, 0], [2, 2], [-1, -1], [-1, -1]]])
PAIRS = np.array([[[0, 1], [2, 5], [4, 4]], [[1, 3], [0, 5], [2, 1]]])
ORDER = np.array([3, 0, 5, 4, 2, 1])


def encoder():
    return GAT(num_features=5, num_classes=4, num_heads=(2, 1), head_dim=4, dropout=0.0)


def relabelled(nodes_of_edges):
    """Return edges or pairs with the numbers that the nodes have after `ORDER`."""
    return np.where(nodes_of_edges >= 0, np.argsort(ORDER)[nodes_of_edges], -1)


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_class_logits_are_invariant_to_permutations_of_nodes(pooling):
    model = randomise(GraphClassifier(encoder(), 3, pooling))
    present = np.arange(6) < [[6], [5]]
    expected = model({"nodes": NODES, "edges": EDGES, "padding_mask": present})
    permuted = {"nodes": NODES[:, ORDER], "edges": relabelled(EDGES), "padding_mask": present[:, ORDER]}
    np.testing.assert_allclose(model(permuted), expected, **CLOSE)


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_padding_nodes_do_not_change_class_logits(pooling):
    model = randomise(GraphClassifier(encoder(), 3, pooling))
    padded = np.concatenate([NODES, 9 * normal(2, 3, 5)], axis=1)
    present = np.broadcast_to(np.arange(9) < 6, (2, 9))
    np.testing.assert_allclose(
        model({"nodes": padded, "edges": EDGES, "padding_mask": present}),
        model({"nodes": NODES, "edges": EDGES}),
        **CLOSE,
    )


def test_graphs_without_nodes_have_finite_logits():
    for pooling in ("mean", "sum", "max"):
        model = randomise(GraphClassifier(encoder(), 3, pooling))
        empty = {"nodes": NODES, "edges": EDGES, "padding_mask": np.zeros((2, 6), bool)}
        np.testing.assert_allclose(model(empty), np.broadcast_to(model.head.bias, (2, 3)), **CLOSE)


def test_only_sum_pooling_distinguishes_a_graph_from_two_copies_of_it():
    twice = {
        "nodes": np.concatenate([NODES, NODES], axis=1),
        "edges": np.concatenate([EDGES, np.where(EDGES >= 0, EDGES + 6, -1)], axis=1),
    }
    for pooling in ("mean", "sum", "max"):
        model = randomise(GraphClassifier(encoder(), 3, pooling))
        equal = np.allclose(model(twice), model({"nodes": NODES, "edges": EDGES}), **CLOSE)
        assert equal == (pooling != "sum")


def test_links_have_the_dot_product_of_their_embeddings():
    model = randomise(LinkPredictor(encoder()))
    graph = {"nodes": NODES, "edges": EDGES}
    embeddings = keras.ops.convert_to_numpy(model.encoder(graph))
    expected = [
        [embeddings[b, i] @ embeddings[b, j] for i, j in pairs] for b, pairs in enumerate(PAIRS.tolist())
    ]
    np.testing.assert_allclose(
        model({**graph, "pairs": PAIRS}), np.array(expected) + float(model.bias), **CLOSE
    )


def test_links_are_symmetric_and_invariant_to_permutations_of_nodes():
    model = randomise(LinkPredictor(encoder()))
    graph = {"nodes": NODES, "edges": EDGES}
    expected = model({**graph, "pairs": PAIRS})
    np.testing.assert_allclose(model({**graph, "pairs": PAIRS[..., ::-1]}), expected, **CLOSE)
    permuted = {"nodes": NODES[:, ORDER], "edges": relabelled(EDGES), "pairs": relabelled(PAIRS)}
    np.testing.assert_allclose(model(permuted), expected, **CLOSE)


@pytest.mark.slow
def test_rings_and_paths_are_classified():
    keras.utils.set_random_seed(0)
    random, count = np.random.default_rng(0), 128
    labels = np.arange(count) % 2
    path = np.stack([np.arange(5), np.arange(1, 6)], axis=1)
    both = np.concatenate([path, path[:, ::-1]])
    closing = np.where(labels[:, None, None] == 1, [[0, 5], [5, 0]], -1)
    edges = np.concatenate([np.broadcast_to(both, (count, 10, 2)), closing], axis=1)
    order = random.permuted(np.broadcast_to(np.arange(6), (count, 6)), axis=1)
    edges = np.where(edges >= 0, order[np.arange(count)[:, None, None], edges], -1)
    degrees = np.zeros((count, 6, 3), "float32")
    for graph, pairs in enumerate(edges):
        degree = np.bincount(pairs[pairs >= 0], minlength=6) // 2
        degrees[graph, np.arange(6), degree] = 1
    model = GraphClassifier(GAT(3, 8, (2, 1), 4, dropout=0.0), 2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    history = model.fit({"nodes": degrees, "edges": edges}, labels, epochs=10, verbose=0).history
    assert history["accuracy"][-1] == 1
