import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import AdditiveScore, GATScore, GraphAttention

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SCORES = ["gat", "gatv2", "scaled_dot_product"]
ON_JAX_TOO = ["gat", pytest.param("gatv2", marks=neutral), "scaled_dot_product"]
BATCH, NODES, SIZE, HEADS, HEAD_DIM = 2, 7, 5, 3, 4


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def random_edges(count=12, num_nodes=NODES - 1, batch=BATCH):
    """Return edges (B, count + 3, 2) with a self-loop, a duplicate and padding in any place; the last node of
    each graph is isolated.
    """
    edges = RANDOM.integers(0, num_nodes, (batch, count + 3, 2))
    edges[:, 1] = edges[:, 0]
    edges[:, 2] = 3
    edges[:, [4, -1]] = -1
    return edges.astype("int32")


def to_adjacency(edges, num_nodes=NODES):
    adjacency = np.zeros((len(edges), num_nodes, num_nodes), bool)
    for row, pairs in enumerate(edges):
        for source, target in pairs:
            if source >= 0:
                adjacency[row, target, source] = True
    return adjacency


def built(score="gat", **options):
    layer = GraphAttention(**{"num_heads": HEADS, "head_dim": HEAD_DIM, "score": score, **options})
    layer.build((BATCH, NODES, SIZE))
    layer.set_weights(
        [
            normal(*weight.shape) * 0.7 if "seed" not in weight.name else weight.numpy()
            for weight in layer.weights
        ]
    )
    return layer


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


def reference(layer, nodes, edges, padding=()):
    """Compute the papers' equations for one graph, edge by edge, without the activation."""
    pairs = {(int(source), int(target)) for source, target in edges if source >= 0}
    pairs |= {(i, i) for i in range(len(nodes))} if layer.self_loops else set()
    projected = []
    for projection in layer.projections:
        kernel, *bias = projection.get_weights()
        projected.append((nodes @ kernel + (bias[0] if bias else 0)).reshape(len(nodes), HEADS, HEAD_DIM))
    if isinstance(layer.score, GATScore):
        own, others = (np.asarray(w) for w in (layer.score.query_vectors, layer.score.key_vectors))
    heads = np.zeros((len(nodes), HEADS, HEAD_DIM))
    for target in range(len(nodes)):
        sources = [s for s, t in sorted(pairs) if t == target and s not in padding]
        for n in range(HEADS):
            logits = []
            for source in sources:
                if isinstance(layer.score, GATScore):
                    h = projected[0]
                    logits.append(leaky(own[n] @ h[target, n] + others[n] @ h[source, n]))
                elif isinstance(layer.score, AdditiveScore):
                    vector = np.asarray(layer.score.vectors)[n]
                    logits.append(vector @ leaky(projected[0][target, n] + projected[1][source, n]))
                else:
                    logits.append(projected[0][target, n] @ projected[1][source, n] / np.sqrt(HEAD_DIM))
            kernel = np.exp(logits)
            for weight, source in zip(kernel / kernel.sum() if sources else [], sources, strict=True):
                heads[target, n] += weight * projected[-1][source, n]
    output = heads.reshape(len(nodes), -1) if layer.concat else heads.mean(1)
    return output + (np.asarray(layer.bias) if layer.use_bias else 0)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    "options", [{}, {"concat": False, "self_loops": False}, {"use_bias": False, "self_loops": False}], ids=str
)
def test_the_output_equals_the_equations_edge_by_edge(score, options):
    nodes, edges, layer = normal(BATCH, NODES, SIZE), random_edges(), built(score, **options)
    padding_mask = np.ones((BATCH, NODES), bool)
    padding_mask[1, 2] = False
    for kernel, kwargs in (("edges", {"edges": edges}), ("dense", {"adjacency": to_adjacency(edges)})):
        layer.kernel = kernel
        found = np.asarray(layer(nodes, **kwargs, padding_mask=padding_mask))
        assert found.shape == layer.compute_output_shape(nodes.shape)
        for row in range(BATCH):
            padding = np.flatnonzero(~padding_mask[row])
            np.testing.assert_allclose(found[row], reference(layer, nodes[row], edges[row], padding), **CLOSE)


@pytest.mark.parametrize("score", ON_JAX_TOO)
def test_edge_lists_and_adjacency_give_equal_outputs_and_gradients(gradients, score):
    nodes, edges, upstream = (
        normal(BATCH, NODES, SIZE),
        random_edges(),
        normal(BATCH, NODES, HEADS * HEAD_DIM),
    )
    adjacency = to_adjacency(edges)
    layer = built(score, dropout=0.4, seed=2)
    names = [weight.path for weight in layer.trainable_weights]
    found = {}
    for kind, graph in (("edges", {"edges": edges}), ("dense", {"adjacency": adjacency})):
        same_seed = built(score, dropout=0.4, seed=2, kernel=kind)
        for old, new in zip(same_seed.trainable_weights, layer.trainable_weights, strict=True):
            old.assign(new)

        def loss(nodes, *weights, layer=same_seed, graph=graph):
            state = [ops.copy(variable) for variable in layer.non_trainable_variables]
            output, _ = layer.stateless_call(list(weights), state, nodes, training=True, **graph)
            return ops.sum(output * upstream)

        arrays = [nodes, *(np.asarray(weight) for weight in layer.trainable_weights)]
        found[kind] = [loss(*map(ops.convert_to_tensor, arrays)), *gradients(loss, *arrays)]
    for name, of_edges, dense in zip(["loss", "nodes", *names], *found.values(), strict=True):
        np.testing.assert_allclose(of_edges, dense, **CLOSE, err_msg=name)
        assert np.any(dense), name


class TestSymmetries:
    @pytest.mark.parametrize("score", SCORES)
    def test_permuting_nodes_and_edges_together_permutes_outputs(self, score):
        nodes, edges, layer = normal(BATCH, NODES, SIZE), random_edges(), built(score)
        order = RANDOM.permutation(NODES)
        place = np.argsort(order)
        moved = np.where(edges >= 0, place[edges], -1)
        expected = np.asarray(layer(nodes, edges))
        np.testing.assert_allclose(layer(nodes[:, order], moved), expected[:, order], **CLOSE)
        assert not np.allclose(layer(nodes[:, order], edges), expected[:, order], **CLOSE)

    def test_edge_order_and_duplicates_do_not_matter(self):
        nodes, edges, layer = normal(BATCH, NODES, SIZE), random_edges(), built(self_loops=False)
        twice = np.concatenate([edges[:, ::-1], edges], axis=1)
        np.testing.assert_allclose(layer(nodes, twice), layer(nodes, edges), **CLOSE)

    @pytest.mark.parametrize("score", ON_JAX_TOO)
    def test_a_batched_graph_equals_a_single_one(self, score):
        layer = built(score)
        sizes = (NODES, 4)
        graphs = [(normal(1, size, SIZE), random_edges(size, size, 1)) for size in sizes]
        nodes = np.full((2, NODES, SIZE), 9.0, "float32")
        edges = np.full((2, NODES + 3, 2), -1, "int32")
        for row, (graph_nodes, its_edges) in enumerate(graphs):
            nodes[row, : sizes[row]], edges[row, : its_edges.shape[1]] = graph_nodes[0], its_edges[0]
        found = np.asarray(layer(nodes, edges))
        for row, (graph_nodes, its_edges) in enumerate(graphs):
            np.testing.assert_allclose(found[row, : sizes[row]], layer(graph_nodes, its_edges)[0], **CLOSE)

    def test_padded_nodes_are_not_attended_to_despite_edges(self):
        nodes, edges, layer = normal(BATCH, NODES, SIZE), random_edges(), built()
        mask = np.arange(NODES) != 2
        without = np.where((edges[..., :1] == 2), -1, edges)
        found = np.asarray(layer(nodes, edges, padding_mask=np.stack([mask, mask])))
        np.testing.assert_allclose(found[:, mask], np.asarray(layer(nodes, without))[:, mask], **CLOSE)


class TestRelation:
    @pytest.mark.parametrize("graph", ["edges", "adjacency"])
    def test_isolated_nodes_without_self_loops_give_the_activation_of_the_bias(self, graph):
        nodes, edges = normal(BATCH, NODES, SIZE), random_edges()
        layer = built("gatv2", self_loops=False, activation="elu")
        kwargs = {"edges": edges} if graph == "edges" else {"adjacency": to_adjacency(edges)}
        isolated = layer(nodes, **kwargs)[:, -1]
        expected = np.broadcast_to(ops.elu(layer.bias), isolated.shape)
        np.testing.assert_allclose(isolated, expected, rtol=1e-6)
        layer = built("gatv2", self_loops=False, use_bias=False)
        assert not np.asarray(layer(nodes, **kwargs))[:, -1].any()

    @pytest.mark.parametrize("kernel", ["edges", "dense"])
    @pytest.mark.parametrize("training", [False, True])
    def test_a_node_changes_only_the_nodes_it_has_an_edge_to(self, kernel, training):
        nodes, edges = normal(BATCH, NODES, SIZE), random_edges()
        layer = built(kernel=kernel, dropout=0.1, seed=3)
        seed = layer.non_trainable_variables[0]
        start = np.asarray(seed)
        changed = nodes.copy()
        changed[:, 3] += 10.0
        before = np.asarray(layer(nodes, edges, training=training))
        seed.assign(start)
        after = np.asarray(layer(changed, edges, training=training))
        reached = to_adjacency(edges)[:, :, 3]
        np.testing.assert_array_equal((before == after).all(-1), ~reached)

    def test_weights_sum_to_one_along_edges_and_reproduce_the_output(self):
        nodes, edges = normal(BATCH, NODES, SIZE), random_edges()
        layer = built(self_loops=False, use_bias=False)
        weights = np.asarray(layer.attention_weights(nodes, edges))
        adjacency = to_adjacency(edges)
        np.testing.assert_array_equal(weights > 0, np.repeat(adjacency[:, None], HEADS, axis=1))
        np.testing.assert_allclose(
            weights.sum(-1), np.repeat(adjacency.any(-1)[:, None], HEADS, axis=1), rtol=1e-5
        )
        np.testing.assert_allclose(
            layer.attention_weights(nodes, adjacency=adjacency), weights, rtol=1e-5, atol=1e-6
        )
        values = (nodes @ layer.projections[0].get_weights()[0]).reshape(BATCH, NODES, HEADS, HEAD_DIM)
        expected = np.einsum("bnts,bsnh->btnh", weights, values).reshape(BATCH, NODES, -1)
        np.testing.assert_allclose(layer(nodes, edges), expected, **CLOSE)


def test_gat_ranks_neighbours_equally_for_all_nodes_and_gatv2_does_not():
    """Static and dynamic attention: Brody et al. (2022), theorem 1."""
    nodes = normal(1, 20, SIZE)
    complete = np.ones((1, 20, 20), bool)
    favourites = {}
    for score in ("gat", "gatv2"):
        weights = np.asarray(built(score).attention_weights(nodes, adjacency=complete))
        favourites[score] = max(len(set(row)) for row in weights[0].argmax(-1))
    assert favourites["gat"] == 1
    assert favourites["gatv2"] > 1
