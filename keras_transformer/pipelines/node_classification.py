"""Node classification."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.pipelines import class_labels, folders


class NodeClassification(folders.Pipeline):
    """A pipeline of a node classifier and the names of its classes.

    Args:
        model: such as `models.GAT`.
        labels: a name for each class, by default its index.

    Raises:
        ValueError: if the number of labels is not that of classes.

    Example:
        >>> classifier = NodeClassification(model, labels=["theory", "genetics"])
        >>> classifier(nodes, edges)
        ['genetics', 'theory', 'theory']
    """

    def __init__(self, model: Any, labels: Sequence[Any] | None = None) -> None:
        self.model = model
        self.labels = class_labels.check(labels, model.num_classes)

    def __call__(self, nodes: Any, edges: Any) -> list[Any]:
        """Classify each node of one graph.

        Args:
            nodes: (T, D), the features of the nodes.
            edges: integers (E, 2) of [source, target], E may be 0. Duplicate edges count once; self-loops and isolated
                nodes are allowed.

        Returns:
            A list of the T most probable labels.

        Raises:
            ValueError: if a shape is wrong, features are not finite, or an edge refers to a missing node.
        """
        return [self.labels[i] for i in self.probabilities(nodes, edges).argmax(-1)]

    def probabilities(self, nodes: Any, edges: Any) -> np.ndarray:
        """Return the probability of each class for each node, float32 (T, C)."""
        nodes, edges = np.asarray(nodes), np.asarray(edges)
        _check(nodes, edges, self.model.num_features)
        edges = edges.reshape(-1, 2).astype("int32")
        # The kernel needs at least one edge; −1 is padding.
        edges = np.concatenate([edges, np.full((1, 2), -1, "int32")])
        logits = self.model({"nodes": nodes[None], "edges": edges[None]}, training=False)
        return class_labels.softmax(keras.ops.convert_to_numpy(logits)[0])

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except the model."""
        return {"labels": self.labels}


def _check(nodes: np.ndarray, edges: np.ndarray, num_features: int) -> None:
    if nodes.ndim != 2 or nodes.shape[1] != num_features or not len(nodes):
        raise ValueError(f"`nodes` must be (T, {num_features}), T > 0. Received: nodes.shape={nodes.shape}")
    if not np.isfinite(nodes).all():
        raise ValueError(
            f"`nodes` must be finite. Received: {np.count_nonzero(~np.isfinite(nodes))} values that are not"
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
            f"`edges` must join nodes from 0 to {len(nodes) - 1}. "
            f"Received: edges[{outside[0]}]={edges[outside[0]].tolist()}, and {len(outside) - 1} others outside"
        )
