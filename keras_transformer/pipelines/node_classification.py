"""Node classification."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.pipelines.arguments import check_model
from keras_transformer.pipelines.classification import check_labels, labels_tensor
from keras_transformer.pipelines.forward import FORWARD, ForwardPipeline, check_no_texts
from keras_transformer.pipelines.pipeline import DEFAULT, Arrays, Preprocessed
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.classification import NodeTask
from keras_transformer_serving.pipelines.errors import RowErrors


class NodeClassification(NodeTask, ForwardPipeline):
    """A pipeline of a node classifier and the names of its classes.

    Args:
        model: such as `models.GAT`.
        labels: a name for each class, by default its index.

    Example:
        >>> classifier = NodeClassification(model, labels=["theory", "genetics"])
        >>> classifier(nodes, edges)
        ['genetics', 'theory', 'theory']
    """

    summary: ClassVar[str] = "It labels each node of a graph."
    sequence_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    hub_task: ClassVar[str | None] = "graph-ml"

    def __init__(self, model: Any, labels: Sequence[Any] | None = None) -> None:
        check_model(model, "a classifier of nodes, such as `models.GAT`", "num_classes", "num_features")
        self.model = model
        self.labels = check_labels(labels, model.num_classes)

    def __call__(self, nodes: Any, edges: Any) -> list[Any]:
        """Classify each node of one graph.

        Args:
            nodes: (T, D), the features of the nodes.
            edges: integers (E, 2) of [source, target], E may be 0. Duplicate edges count once; self-loops and isolated
                nodes are allowed.

        Returns:
            A list of the T most probable labels.
        """
        return self.answer(self._answer_nodes(nodes, edges), self.config)

    def probabilities(self, nodes: Any, edges: Any) -> np.ndarray:
        """Return the probability of each class for each node, float32 (T, C)."""
        return self._answer_nodes(nodes, edges)["probabilities"]

    @property
    def padding(self) -> dict[str, tuple[int, float]]:
        """The axes of nodes and edges, and their padding values."""
        return {"nodes": (1, 0.0), "edges": (1, -1)}

    def preprocess(self, nodes: Tensor, edges: Tensor) -> Preprocessed:
        """Check nodes (B, T, D) and edges (B, E, 2), padded with −1, as TensorFlow operations."""
        count = tf.shape(nodes, tf.int64)[1]
        in_range = tf.reduce_all((edges >= -1) & (edges < count), axis=[1, 2])
        finite = tf.reduce_all(tf.math.is_finite(nodes), axis=[1, 2])
        error = tf.where(
            in_range, "", "`edges` must connect nodes of the graph. Received: an edge of a missing node"
        )
        error = tf.where(finite, error, "`nodes` must be finite. Received: features that are not finite")
        accepted = (in_range & finite)[:, None, None]
        inputs = {"nodes": tf.where(accepted, nodes, 0.0), "edges": tf.where(accepted, edges, -1)}
        return Preprocessed(inputs, error, {})

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return "label" (B, T) and "probabilities" (B, T, C)."""
        probabilities = tf.nn.softmax(outputs["logits"])
        label = tf.gather(labels_tensor(self.labels), tf.argmax(probabilities, axis=-1))
        return {"label": label, "probabilities": probabilities}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model with a padding edge (−1, −1), as its kernel needs at least one edge."""
        edges = ops.pad(ops.cast(inputs["edges"], "int32"), [[0, 0], [0, 1], [0, 0]], constant_values=-1)
        return super().forward({"nodes": inputs["nodes"], "edges": edges})

    def example_inputs(self, texts: Any = None) -> dict[str, list[Arrays]]:
        """Return random graphs, with and without edges; see `ForwardPipeline`."""
        check_no_texts(self, texts)
        random = np.random.default_rng(0)
        edges = random.integers(0, 6, (2, 12, 2))
        edges[0, 1], edges[0, 2], edges[1, 7:] = edges[0, 0], [3, 3], -1
        graphs = [
            {
                "nodes": random.normal(size=(len(graph_edges), nodes, self.model.num_features)).astype(
                    "float32"
                ),
                "edges": graph_edges,
            }
            for nodes, graph_edges in ((6, edges), (2, np.zeros((1, 0, 2), "int64")))
        ]
        return {FORWARD: graphs, DEFAULT: graphs}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        return {**super().export_config(), "num_features": self.model.num_features}

    def _answer_nodes(self, nodes: Any, edges: Any) -> Arrays:
        nodes, edges = np.asarray(nodes), np.asarray(edges)
        _check(nodes, edges, self.model.num_features)
        edges = edges.reshape(-1, 2).astype("int64")
        return self.rows([nodes[None].astype("float32"), edges[None]], 1, [0], RowErrors())[0]


def _check(nodes: np.ndarray, edges: np.ndarray, num_features: int) -> None:
    if nodes.ndim != 2 or nodes.shape[1] != num_features or not len(nodes):
        raise ValueError(f"`nodes` must be (T, {num_features}), T > 0. Received: nodes.shape={nodes.shape}")
    if not np.isfinite(nodes).all():
        raise ValueError(
            f"`nodes` must be finite. Received: {np.count_nonzero(~np.isfinite(nodes))} values that are not finite"
        )
    if edges.size == 0:
        return
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise ValueError(
            f"`edges` must be integers (E, 2). Received: edges.shape={edges.shape}, edges.dtype={edges.dtype}"
        )
    outside = np.flatnonzero(((edges < 0) | (edges >= len(nodes))).any(1))
    if len(outside):
        raise ValueError(
            f"`edges` must connect nodes from 0 to {len(nodes) - 1}. "
            f"Received: edges[{outside[0]}]={edges[outside[0]].tolist()}, and {len(outside) - 1} more out of range"
        )
