"""Compare graph attention in PyTorch Geometric and in this package, with the same weights: logits, loss and gradients.

`GATConv` and `GATv2Conv` in the networks of the paper: for Cora (in `KERAS_TRANSFORMER_DATA`), 8 heads of size 8 and 1
averaged head; for several graphs, 4, 4 and 6 heads, on random graphs with isolated nodes, in one padded batch here and
joined into one graph in PyTorch Geometric. Both edges and adjacency matrices (the dense kernel) are compared.

    .venv-bench/bin/python benchmarks/parity/gat.py            # --help lists the options
"""

import itertools
import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import torch
import torch_geometric

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import models
from keras_transformer.datasets import planetoid

CONVOLUTIONS = {"gat": torch_geometric.nn.GATConv, "gatv2": torch_geometric.nn.GATv2Conv}
NETWORKS = {
    "Cora": {"num_heads": (8, 1), "head_dim": 8, "dropout": 0.0},
    "random graphs": {"num_heads": (4, 4, 6), "head_dim": 16, "dropout": 0.0},
}
Graph = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # nodes (T, D), edges (E, 2) of [source, target], labels (T,)


def random_graphs(random: np.random.Generator) -> list[Graph]:
    """Return graphs of several sizes, whose last nodes have no edges."""
    graphs = []
    for num_nodes in (12, 30, 7):
        edges = np.argwhere(random.random((num_nodes, num_nodes)) < 0.2)
        edges = edges[(edges < num_nodes - 1).all(1)]  # including self-loops
        nodes = random.normal(size=(num_nodes, 20)).astype("float32")
        graphs.append((nodes, edges, random.integers(0, 5, num_nodes)))
    return graphs


def read(name: str, random: np.random.Generator) -> list[Graph]:
    """Return the graphs of a network."""
    if name != "Cora":
        return random_graphs(random)
    graph = planetoid.load_data()
    return [(graph.nodes / graph.nodes.sum(1, keepdims=True), graph.edges, graph.labels)]


def padded(graphs: list[Graph]) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (B, T, D), padded with zeros, and edges (B, E, 2), padded with −1."""
    num_nodes, num_edges = (max(len(graph[i]) for graph in graphs) for i in (0, 1))
    nodes = [np.pad(nodes, [(0, num_nodes - len(nodes)), (0, 0)]) for nodes, _, _ in graphs]
    edges = [
        np.pad(edges, [(0, num_edges - len(edges)), (0, 0)], constant_values=-1) for _, edges, _ in graphs
    ]
    return np.stack(nodes), np.stack(edges).astype("int32")


def joined(graphs: list[Graph]) -> Graph:
    """Join graphs into one graph without edges between them."""
    starts = np.cumsum([0] + [len(nodes) for nodes, _, _ in graphs])
    return (
        np.concatenate([nodes for nodes, _, _ in graphs]),
        np.concatenate([edges + start for (_, edges, _), start in zip(graphs, starts, strict=False)]),
        np.concatenate([labels for _, _, labels in graphs]),
    )


class Theirs(torch.nn.Module):
    """The network of PyTorch Geometric's layers, with ELU between them."""

    def __init__(self, score: str, num_features: int, num_classes: int, network: dict[str, Any]) -> None:
        super().__init__()
        layers, size, heads_of = [], num_features, network["num_heads"]
        for i, heads in enumerate(heads_of):
            last = i + 1 == len(heads_of)
            width = num_classes if last else network["head_dim"]
            layers.append(CONVOLUTIONS[score](size, width, heads, concat=not last))
            size = heads * width
        self.layers = torch.nn.ModuleList(layers)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.endswith("bias"):  # new ones are zero
                    weight.normal_(0, 0.2)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the logits (T, C)."""
        for i, layer in enumerate(self.layers):
            nodes = layer(torch.nn.functional.elu(nodes) if i else nodes, edges)
        return nodes


def pairs(model: Any, reference: Theirs, score: str) -> list[tuple[Any, torch.nn.Parameter]]:
    """Return pairs of corresponding weights, which differ only in shape."""
    matching = []
    for mine, other in zip(model.attention_layers, reference.layers, strict=True):
        if score == "gat":
            matching += [(mine.projections[0].kernel, other.lin.weight)]
            matching += [(mine.score.query_vectors, other.att_dst), (mine.score.key_vectors, other.att_src)]
        else:
            for projection, linear in zip(mine.projections, (other.lin_r, other.lin_l), strict=True):
                matching += [(projection.kernel, linear.weight), (projection.bias, linear.bias)]
            matching.append((mine.score.vectors, other.att))
        matching.append((mine.bias, other.bias))
    return matching


def as_ours(array: torch.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Transpose a matrix of PyTorch Geometric, and reshape an array to a shape of this package."""
    return (array.T if array.dim() == 2 else array).detach().numpy().reshape(shape)


def compare(graphs: str, score: str, given: str, seed: int) -> references.Figures:
    """Compare one network, with graphs as edges or as adjacency matrices."""
    torch.manual_seed(seed)
    network, graphs = NETWORKS[graphs], read(graphs, np.random.default_rng(seed))
    num_features, num_classes = graphs[0][0].shape[1], int(max(each[2].max() for each in graphs)) + 1
    reference = Theirs(score, num_features, num_classes, network)
    model = models.GAT(num_features, num_classes, score=score, **network)
    weights = pairs(model, reference, score)
    if len(weights) != len(model.trainable_weights) or len(weights) != len(list(reference.parameters())):
        raise RuntimeError("not every weight has a counterpart")
    for mine, other in weights:
        mine.assign(as_ours(other, tuple(mine.shape)))
    nodes, edges, labels = joined(graphs)
    expected = reference(torch.tensor(nodes), torch.tensor(edges.T.copy()))
    their_loss = torch.nn.functional.cross_entropy(expected, torch.tensor(labels).long())
    their_loss.backward()
    padded_nodes, padded_edges = padded(graphs)
    length = padded_nodes.shape[1]
    graph = {"edges": padded_edges}
    if given == "adjacency":
        graph = {"adjacency": np.zeros((len(graphs), length, length), bool)}
        for matrix, (_, of_one, _) in zip(graph["adjacency"], graphs, strict=True):
            matrix[of_one[:, 1], of_one[:, 0]] = True
    positions = np.concatenate([np.arange(len(each[0])) + i * length for i, each in enumerate(graphs)])
    with tf.GradientTape() as tape:
        logits = tf.gather(tf.reshape(model({"nodes": padded_nodes, **graph}), [-1, num_classes]), positions)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels.astype("int32"), logits)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, [mine.value for mine, _ in weights])
    compared = [
        (mine.path, gradient.numpy(), as_ours(other.grad, tuple(mine.shape)))
        for gradient, (mine, other) in zip(gradients, weights, strict=True)
    ]
    return {
        "parameters": model.count_params(),
        "network": {**network, "activation": "elu"},
        "logits": float(np.abs(logits.numpy() - expected.detach().numpy()).max()),
        "logits, largest": float(expected.detach().abs().max()),
        "loss": abs(float(loss) / their_loss.item() - 1),
        **references.worst_gradient(compared),
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{CONVOLUTIONS[score].__name__}, {graphs}, {given}": {
            "graphs": graphs,
            "score": score,
            "given": given,
        }
        for graphs, score, given in itertools.product(NETWORKS, CONVOLUTIONS, ("edges", "adjacency"))
    },
    lambda run: compare(**run.case, seed=run.seed),
    limits={"logits": 1e-4, "loss": 1e-3, "gradients": 1e-3},
    packages=("torch-geometric",),
    name="parity_gat",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
