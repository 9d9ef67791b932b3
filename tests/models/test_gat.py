import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import GAT
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
TINY = {"num_features": 5, "num_classes": 3, "num_heads": (2, 1), "head_dim": 4, "dropout": 0.0}
RANDOM = np.random.default_rng(0)
NODES = RANDOM.normal(size=(1, 6, 5)).astype("float32")
EDGES = np.array([[[0, 1], [1, 2], [3, 1], [4, 3], [-1, -1]]])  # node 5 is isolated


def tiny(**options):
    """Return a small model with random weights, including biases."""
    return randomise(GAT(**{**TINY, **options}), seed=1)


def logits(model, nodes=NODES, edges=EDGES):
    return np.asarray(model({"nodes": nodes, "edges": edges}))


def to_adjacency(edges, num_nodes):
    adjacency = np.zeros((len(edges), num_nodes, num_nodes), bool)
    for row, pairs in enumerate(edges):
        for source, target in pairs[pairs.min(1) >= 0]:
            adjacency[row, target, source] = True
    return adjacency


def test_named_sizes_equal_the_program_of_the_paper():
    def size(features, heads, head_dim, concat=True):  # W, two vectors a for each head, and b
        return (features + 2) * heads * head_dim + (heads * head_dim if concat else head_dim)

    cora = GAT.transductive(1433, 7)
    assert cora.count_params() == size(1433, 8, 8) + size(64, 1, 7, concat=False) == 92_373
    ppi = GAT.inductive(50, 121)
    skips = 50 * 1024 + 1024 * 121
    expected = size(50, 4, 256) + size(1024, 4, 256) + size(1024, 6, 121, concat=False) + skips
    assert ppi.count_params() == expected


@pytest.mark.parametrize("score", ["gat", pytest.param("gatv2", marks=neutral), "scaled_dot_product"])
def test_edge_lists_and_adjacency_give_equal_logits(score):
    model = tiny(score=score, residual=True)
    dense = model({"nodes": NODES, "adjacency": to_adjacency(EDGES, 6)})
    assert keras.backend.standardize_dtype(dense.dtype) == "float32"
    np.testing.assert_allclose(logits(model), dense, **CLOSE)


def test_output_equals_the_equations():
    """With one head per layer and no edges, each node attends only to itself, with weight 1."""
    model = tiny(num_heads=(1, 1))
    hidden = NODES
    for i, layer in enumerate(model.attention_layers):
        hidden = hidden @ layer.projections[0].get_weights()[0] + np.asarray(layer.bias)
        if i == 0:
            hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    np.testing.assert_allclose(logits(model, edges=np.full((1, 1, 2), -1)), hidden, **CLOSE)


def test_permuting_nodes_and_edges_together_permutes_logits():
    model, order = tiny(), np.random.default_rng(3).permutation(6)
    moved = np.where(EDGES >= 0, np.argsort(order)[EDGES], -1)
    np.testing.assert_allclose(logits(model, NODES[:, order], moved), logits(model)[:, order], **CLOSE)


def test_changes_propagate_one_edge_per_layer():
    model = tiny()
    changed = NODES.copy()
    changed[0, 0] += 3  # an edge leads to 1, and from there to 2
    differs = ~np.isclose(logits(model, changed), logits(model)).all(-1)[0]
    np.testing.assert_array_equal(np.flatnonzero(differs), [0, 1, 2])
    changed = NODES.copy()
    changed[0, 4] += 3  # 4 → 3 → 1, and no further in two layers
    differs = ~np.isclose(logits(model, changed), logits(model)).all(-1)[0]
    np.testing.assert_array_equal(np.flatnonzero(differs), [1, 3, 4])


def test_padded_batch_of_graphs_equals_single_graphs():
    model = tiny()
    nodes = np.full((2, 8, 5), 9.0, "float32")
    edges = np.full((2, 7, 2), -1)
    nodes[0, :6], edges[0, :5] = NODES[0], EDGES[0]
    nodes[1, :2], edges[1, 0] = NODES[0, :2], [1, 0]
    found = logits(model, nodes, edges)
    np.testing.assert_allclose(found[:1, :6], logits(model), **CLOSE)
    np.testing.assert_allclose(found[1:, :2], logits(model, NODES[:, :2], np.array([[[1, 0]]])), **CLOSE)


def test_padded_edges_are_ignored_and_duplicates_count_once():
    model = tiny()
    odd = np.concatenate([EDGES, EDGES, [[[-1, -1], [2, 2]]]], axis=1)  # padding, and a self-loop
    np.testing.assert_allclose(logits(model, edges=odd), logits(model), **CLOSE)
    without = tiny(self_loops=False)
    assert not np.allclose(logits(without, edges=odd), logits(without), **CLOSE)
    bias = np.asarray(without.attention_layers[1].bias)
    np.testing.assert_allclose(logits(without)[0, 5], bias, **CLOSE)  # an isolated node


def test_residual_connections_project_the_input_only_if_sizes_differ():
    model = tiny(residual=True, num_features=8, num_heads=(2, 2, 1))
    assert set(model.skips) == {"2"}
    skipped = [*model.attention_layers]
    for layer in skipped:
        for weight in layer.trainable_weights:
            weight.assign(np.zeros(weight.shape))
    nodes = np.abs(RANDOM.normal(size=(1, 6, 8))).astype("float32")  # ELU leaves positive inputs
    np.testing.assert_allclose(logits(model, nodes), nodes @ model.skips["2"].get_weights()[0], **CLOSE)


def test_attention_weights_of_every_layer_sum_to_one():
    weights = tiny().attention_weights({"nodes": NODES, "edges": EDGES})
    assert [tuple(w.shape) for w in weights] == [(1, 2, 6, 6), (1, 1, 6, 6)]
    for each in weights:
        np.testing.assert_allclose(np.asarray(each).sum(-1), 1, rtol=1e-5)


def communities(num_nodes=40, seed=0):
    """Return a graph of two groups of nodes that cite their group; features are noisy class indicators."""
    random = np.random.default_rng(seed)
    labels = np.arange(num_nodes) % 2
    same = labels[:, None] == labels
    adjacency = random.random((num_nodes, num_nodes)) < np.where(same, 0.2, 0.01)
    nodes = random.normal(size=(num_nodes, 5)) + 0.7 * labels[:, None]
    return nodes.astype("float32")[None], np.argwhere(adjacency)[None], labels[None]


def compiled(model, rate=0.02, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.Adam(rate), loss, weighted_metrics=["accuracy"], **options)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=neutral)], ids=["graph", "xla"])
def test_node_labels_are_learned_from_labelled_nodes(jit_compile):
    keras.utils.set_random_seed(0)
    nodes, edges, labels = communities()
    known = np.arange(40)[None] < 8
    model = compiled(GAT(5, 2, head_dim=4, dropout=0.2), jit_compile=jit_compile)
    inputs = {"nodes": nodes, "edges": edges}
    history = model.fit(inputs, labels, sample_weight=known.astype("float32"), epochs=60, verbose=0)
    _, accuracy = model.evaluate(inputs, labels, sample_weight=(~known).astype("float32"), verbose=0)
    assert history.history["accuracy"][-1] == 1
    assert accuracy > 0.85


@pytest.mark.slow
def test_nodes_of_zero_weight_give_no_gradient():
    nodes, edges, labels = communities()
    known = np.arange(40)[None] < 8
    other = np.where(known, labels, 1 - labels)
    losses = []
    for target in (labels, other):
        model = compiled(tiny(num_classes=2), jit_compile=False)
        history = model.fit(
            {"nodes": nodes, "edges": edges}, target, sample_weight=known * 1.0, epochs=2, verbose=0
        )
        losses.append(history.history["loss"])
    assert losses[0] == losses[1]


def test_the_regularizer_applies_to_all_weights_except_biases():
    model = tiny(regularizer=keras.regularizers.L2(0.1), residual=True)
    names = [weight.name for weight in model.trainable_weights if weight.name != "bias"]
    assert len(names) == len(model.losses) == 8
    total = sum(float(ops.sum(ops.square(w))) for w in model.trainable_weights if w.name != "bias")
    np.testing.assert_allclose(float(sum(model.losses)), 0.1 * total, rtol=1e-5)
    assert not tiny().losses


@pytest.mark.slow
def test_batches_of_padded_graphs_are_learned():
    """Inductive learning of node classes on graphs of several sizes; padded nodes have weight zero."""
    keras.utils.set_random_seed(0)
    sizes = [40, 30, 24, 36]
    graphs = [communities(size, seed) for seed, size in enumerate(sizes)]
    nodes = np.stack([np.pad(nodes[0], [(0, 40 - nodes.shape[1]), (0, 0)]) for nodes, _, _ in graphs])
    labels = np.stack([np.pad(labels[0], (0, 40 - labels.shape[1])) for _, _, labels in graphs])
    adjacency = np.concatenate([to_adjacency(edges, 40) for _, edges, _ in graphs])
    known = np.arange(40) < np.array(sizes)[:, None]
    model = compiled(GAT(5, 2, head_dim=4, dropout=0.1, residual=True), jit_compile=False)
    inputs = {"nodes": nodes, "adjacency": adjacency}
    model.fit(inputs, labels, sample_weight=known.astype("float32"), batch_size=2, epochs=25, verbose=0)
    fresh, edges, truth = communities(40, 9)
    _, accuracy = model.evaluate({"nodes": fresh, "adjacency": to_adjacency(edges, 40)}, truth, verbose=0)
    assert accuracy > 0.85
