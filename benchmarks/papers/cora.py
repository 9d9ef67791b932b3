"""GAT on Cora: the accuracy on the 1,000 test nodes, over seeds.

Hyperparameters, split and early stopping are the paper's (83.0 ± 0.7 % over 100 runs). `--help` lists the options.
"""

import argparse
import dataclasses
import functools
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """The paper's hyperparameters, section 3.3."""

    num_heads: tuple[int, ...] = (8, 1)
    head_dim: int = 8
    activation: str = "elu"
    dropout: float = 0.6
    score: str = "gat"
    learning_rate: float = 0.005
    weight_decay: float = 0.0005
    patience: int = 100
    max_epochs: int = 100_000


def build(graph: Any, settings: Settings) -> Any:
    """Return the compiled model."""
    import keras

    from keras_transformer import models

    model = models.GAT(
        graph.nodes.shape[1],
        int(graph.labels.max()) + 1,
        num_heads=settings.num_heads,
        head_dim=settings.head_dim,
        activation=settings.activation,
        dropout=settings.dropout,
        score=settings.score,
        regularizer=keras.regularizers.L2(settings.weight_decay / 2),
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.Adam(settings.learning_rate), loss, jit_compile=True)
    return model


def train(model: Any, graph: Any, settings: Settings) -> dict[str, Any]:
    """Train until neither validation loss nor accuracy has improved for `patience` epochs, and test the best weights.

    An epoch is one batch of one graph. The best weights are the weights of the last epoch in which both were best, as
    in the authors' program.
    """
    from keras import ops

    # Each paper's features sum to one.
    nodes = graph.nodes / np.maximum(graph.nodes.sum(1, keepdims=True), 1)
    inputs = {"nodes": ops.convert_to_tensor(nodes[None]), "edges": ops.convert_to_tensor(graph.edges[None])}
    labels, known = ops.convert_to_tensor(graph.labels[None]), ops.cast(graph.train[None], "float32")
    lowest, highest, waited, best, best_epoch, epoch = np.inf, 0.0, 0, model.get_weights(), 0, 0
    while waited < settings.patience and epoch < settings.max_epochs:
        epoch += 1
        model.train_on_batch(inputs, labels, known)
        logits = np.asarray(model.predict_on_batch(inputs))[0]
        loss, accuracy = validate(logits[graph.validation], graph.labels[graph.validation])
        if loss <= lowest and accuracy >= highest:
            best, best_epoch = model.get_weights(), epoch
        waited = 0 if loss <= lowest or accuracy >= highest else waited + 1
        lowest, highest = min(lowest, loss), max(highest, accuracy)
    model.set_weights(best)
    logits = np.asarray(model.predict_on_batch(inputs))[0]
    accuracies = {
        name: 100 * validate(logits[mask], graph.labels[mask])[1]
        for name, mask in (("validation", graph.validation), ("test", graph.test))
    }
    return {**accuracies, "epochs": epoch, "best_epoch": best_epoch}


def validate(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy."""
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -log_probabilities[np.arange(len(labels)), labels].mean()
    return float(loss), float((logits.argmax(1) == labels).mean())


@functools.cache
def data(folder: pathlib.Path | None) -> Any:
    """Load the graph."""
    from keras_transformer.datasets import planetoid

    return planetoid.load_data(folder)


def compare(run: references.Run) -> references.Figures:
    """Train and test a model with one seed."""
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(run.seed)
    graph = data(run.options.data)
    model = build(graph, run.settings)
    return {**train(model, graph, run.settings), "parameters": model.count_params()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument("--data", type=pathlib.Path, help="folder of ind.cora.* (default: see the dataset)")


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"GAT": None},
    compare,
    measures=("validation", "test"),
    published={"mean": 83.0, "standard_deviation": 0.7, "runs": 100},
    settings=Settings,
    seeds=range(20),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
