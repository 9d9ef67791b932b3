"""Graphs beyond GAT's node labels: hypergraphs, links, clusters and classes of whole graphs.

"hyperedges": classes of Cora's papers on the split of `cora.py`, from a hyperedge for each paper with its neighbours.
"links": the area under the ROC curve of Cora's held-out citations beside as many random pairs. "clusters": the
normalized mutual information of Cora's classes and k-means clusters of node embeddings that are trained to predict
links, without labels. "molecules": generated graphs like those of MUTAG, whose class is whether they have a nitro
group; all have equal numbers of nitrogens and oxygens.

Beside each figure is the figure without the graph: hyperedges of single papers, the cosine of the papers' features,
clusters of features, atoms without bonds. `--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np
from sklearn import cluster, metrics

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import cora
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """The models and their training."""

    embedding_dim: int = 16
    head_dim: int = 32
    num_heads: tuple[int, ...] = (4, 1)
    learning_rate: float = 0.005
    epochs: int = 150
    test_share: float = 0.1
    validation_share: float = 0.05
    hidden_dim: int = 64
    hypergraph_heads: int = 8
    dropout: float = 0.6
    weight_decay: float = 0.005
    graphs: int = 2000
    graph_epochs: int = 15


def normalized(nodes: np.ndarray) -> np.ndarray:
    """Return features that sum to one for each node."""
    return nodes / np.maximum(nodes.sum(1, keepdims=True), 1)


def hypergraph(graph: Any) -> np.ndarray:
    """Return incidences (E, 2): hyperedge i joins node i and its neighbours."""
    number = np.arange(len(graph.nodes))
    return np.concatenate([np.stack([number, number], axis=1), graph.edges]).astype("int32")


def hypergraph_model(num_features: int, num_nodes: int, num_classes: int, settings: Settings) -> Any:
    """Return a compiled model of two layers of hypergraph attention, with the losses of `cora.build`."""
    import keras

    from keras_transformer import layers

    regularizer = keras.regularizers.L2(settings.weight_decay / 2)
    nodes = keras.Input((num_nodes, num_features), name="nodes")
    incidences = keras.Input((None, 2), dtype="int32", name="edges")
    hidden = keras.layers.Dropout(settings.dropout)(nodes)
    hidden = keras.layers.Dense(settings.hidden_dim, kernel_regularizer=regularizer)(hidden)
    hyperedges = keras.ops.zeros_like(hidden)
    for _ in range(2):
        dropped = keras.layers.Dropout(settings.dropout)(hidden)
        attended, hyperedges = layers.HypergraphAttention(
            settings.hypergraph_heads, dropout=settings.dropout
        )(dropped, hyperedges, incidences)
        hidden = keras.layers.LayerNormalization()(hidden + keras.ops.elu(attended))
    hidden = keras.layers.Dropout(settings.dropout)(hidden)
    logits = keras.layers.Dense(num_classes, kernel_regularizer=regularizer)(hidden)
    model = keras.Model({"nodes": nodes, "edges": incidences}, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.Adam(settings.learning_rate), loss, jit_compile=False)
    return model


def hyperedges(run: references.Run) -> references.Figures:
    """Train and test on Cora's nodes, with the split and the early stopping of GAT."""
    graph, figures = cora.data(run.options.data), {}
    for name, incidences in (
        ("without graph", hypergraph(graph)[: len(graph.nodes)]),
        ("test", hypergraph(graph)),
    ):
        num_nodes, num_features = graph.nodes.shape
        model = hypergraph_model(num_features, num_nodes, int(graph.labels.max()) + 1, run.settings)
        found = cora.train(model, graph._replace(edges=incidences), cora.Settings(max_epochs=120))
        figures |= {**found, name: found["test"]}
    return {**figures, "parameters": model.count_params()}


def split(graph: Any, settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """Return citations [a, b] with a < b for training, validation and test, and as many random unlinked pairs.

    Pairs for training are drawn in each epoch; "all" are the numbers of all linked pairs.
    """
    random, size = np.random.default_rng(seed), len(graph.nodes)
    citations = random.permutation(graph.edges[graph.edges[:, 0] < graph.edges[:, 1]])
    test, validation = (
        round(share * len(citations)) for share in (settings.test_share, settings.validation_share)
    )
    parts = {
        "test": citations[:test],
        "validation": citations[test : test + validation],
        "train": citations[test + validation :],
        "all": number(citations, size),
    }
    for part in ("test", "validation"):
        parts[f"not {part}"] = unlinked(random, len(parts[part]), parts["all"], size)
    return parts


def number(pairs: np.ndarray, size: int) -> np.ndarray:
    """Return a number for each pair of nodes."""
    return pairs[:, 0] * size + pairs[:, 1]


def unlinked(random: np.random.Generator, count: int, linked: np.ndarray, size: int) -> np.ndarray:
    """Return random pairs [a, b] with a < b that are not linked."""
    pairs = np.sort(random.integers(0, size, (2 * count + 100, 2)), axis=1)
    pairs = pairs[(pairs[:, 0] < pairs[:, 1]) & ~np.isin(number(pairs, size), linked)]
    return pairs[:count]


def link_predictor(graph: Any, train: np.ndarray, settings: Settings) -> tuple[Any, dict[str, Any]]:
    """Return a compiled model and its inputs without pairs: the graph has only the citations for training."""
    import keras

    from keras_transformer import models

    encoder = models.GAT(
        graph.nodes.shape[1],
        settings.embedding_dim,
        settings.num_heads,
        settings.head_dim,
        dropout=0.0,
    )
    model = models.LinkPredictor(encoder)
    model.compile(
        keras.optimizers.Adam(settings.learning_rate),
        keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    edges = np.concatenate([train, train[:, ::-1]])
    return model, {"nodes": normalized(graph.nodes)[None], "edges": edges[None]}


def train_links(model: Any, inputs: dict[str, Any], parts: dict[str, Any], run: references.Run) -> int:
    """Train on all citations and as many new unlinked pairs in each epoch; keep the best weights in validation."""
    random, size = np.random.default_rng(run.seed), inputs["nodes"].shape[1]
    count, best, highest, best_epoch = len(parts["train"]), model.get_weights(), 0.0, 0
    labels = np.repeat([1.0, 0.0], count)[None]
    for epoch in range(run.settings.epochs):
        pairs = np.concatenate([parts["train"], unlinked(random, count, parts["all"], size)])
        model.train_on_batch({**inputs, "pairs": pairs[None]}, labels)
        if "validation" in parts and (found := tested(model, inputs, parts, "validation")) > highest:
            best, highest, best_epoch = model.get_weights(), found, epoch + 1
    if "validation" in parts:
        model.set_weights(best)
    return best_epoch


def tested(model: Any, inputs: dict[str, Any], parts: dict[str, Any], part: str) -> float:
    """Return the area under the ROC curve of a part."""
    pairs, labels = labelled(parts, part)
    logits = np.asarray(model.predict_on_batch({**inputs, "pairs": pairs[None]}))[0]
    return 100 * float(metrics.roc_auc_score(labels, logits))


def labelled(parts: dict[str, Any], part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the linked and the unlinked pairs of a part, and which are linked."""
    linked, not_linked = parts[part], parts[f"not {part}"]
    return np.concatenate([linked, not_linked]), np.repeat([1, 0], [len(linked), len(not_linked)])


def links(run: references.Run) -> references.Figures:
    """Predict held-out citations."""
    graph = cora.data(run.options.data)
    parts = split(graph, run.settings, run.seed)
    model, inputs = link_predictor(graph, parts["train"], run.settings)
    epoch = train_links(model, inputs, parts, run)
    features = inputs["nodes"][0]
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-9)
    (a, b), labels = (array.T for array in labelled(parts, "test"))
    return {
        "test": tested(model, inputs, parts, "test"),
        "without graph": 100 * float(metrics.roc_auc_score(labels, (unit[a] * unit[b]).sum(-1))),
        "best_epoch": epoch,
        "parameters": model.count_params(),
    }


def clusters(run: references.Run) -> references.Figures:
    """Cluster embeddings that are trained on all citations, without labels."""
    graph = cora.data(run.options.data)
    train = graph.edges[graph.edges[:, 0] < graph.edges[:, 1]]
    parts = {"train": train, "all": number(train, len(graph.nodes))}
    model, inputs = link_predictor(graph, train, run.settings)
    train_links(model, inputs, parts, run)
    embeddings = np.asarray(model.encoder(inputs))[0]
    count = int(graph.labels.max()) + 1
    k_means = cluster.KMeans(count, n_init=3, random_state=run.seed)
    return {
        name: 100 * float(metrics.normalized_mutual_info_score(graph.labels, k_means.fit_predict(points)))
        for name, points in (("test", embeddings), ("without graph", inputs["nodes"][0]))
    }


def molecule(random: np.random.Generator, has_group: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the atoms and bonds of a ring of six carbons with chains, a nitrogen and two oxygens.

    In a nitro group, both oxygens are bonded to the nitrogen; otherwise at most one is, and the others to carbons.
    """
    bonds, size = [[i, (i + 1) % 6] for i in range(6)], 6
    for _ in range(int(random.integers(2, 8))):
        bonds.append([int(random.integers(0, size)), size])
        size += 1
    nitrogen, bonded = size, 2 if has_group else int(random.integers(0, 2))
    bonds.append([int(random.integers(0, size)), nitrogen])
    others = [int(random.integers(0, size)) for _ in range(2 - bonded)]
    bonds += [[atom, nitrogen + 1 + i] for i, atom in enumerate([nitrogen] * bonded + others)]
    return np.repeat([0, 1, 2], [size, 1, 2]), np.array(bonds)


def molecules(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return generated graphs, padded to 16 nodes, with their atoms as features, and whether each has a nitro group."""
    random, labels = np.random.default_rng(seed), np.arange(count) % 2
    nodes = np.zeros((count, 16, 3), "float32")
    edges, present = np.full((count, 32, 2), -1, "int32"), np.zeros((count, 16), bool)
    for graph, label in enumerate(labels):
        atoms, bonds = molecule(random, bool(label))
        order = random.permutation(len(atoms))
        nodes[graph, order, atoms] = 1
        bonds = order[bonds]
        edges[graph, : 2 * len(bonds)] = np.concatenate([bonds, bonds[:, ::-1]])
        present[graph, : len(atoms)] = True
    return {"nodes": nodes, "edges": edges, "padding_mask": present}, labels


def classify(run: references.Run) -> references.Figures:
    """Classify generated graphs."""
    import keras

    from keras_transformer import models

    settings, figures = run.settings, {}
    train, test = (molecules(settings.graphs, seed) for seed in (run.seed, run.seed + 1000))
    for name in ("test", "without graph"):
        if name == "without graph":
            for graphs, _ in (train, test):
                graphs["edges"][:] = -1
        encoder = models.GAT(3, 32, (4, 4, 4), 8, dropout=0.0, score="gatv2", residual=True)
        model = models.GraphClassifier(encoder, 2, "sum")
        steps = settings.graphs // 32 * settings.graph_epochs
        model.compile(
            keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(settings.learning_rate, steps)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,
        )
        model.fit(*train, batch_size=32, epochs=settings.graph_epochs, verbose=0)
        figures[name] = 100 * model.evaluate(*test, batch_size=200, verbose=0)[1]
    return {**figures, "parameters": model.count_params()}


def compare(run: references.Run) -> references.Figures:
    """Run one case with one seed."""
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(run.seed)
    return run.case(run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument("--data", type=pathlib.Path, help="folder of ind.cora.* (default: see the dataset)")


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"hyperedges": hyperedges, "links": links, "clusters": clusters, "molecules": classify},
    compare,
    measures=("test", "without graph"),
    settings=Settings,
    packages=("scikit-learn",),
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
