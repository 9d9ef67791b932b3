"""The nodes of a graph to the names of their classes."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.pipelines import class_labels, folders


class NodeClassification(folders.Saved):
    """A classifier of nodes and the names of its classes.

    Args:
        model: such as `models.GAT`.
        labels: a name for each class, by default its number.

    Raises:
        ValueError: where there is another number of labels than classes.

    Example:
        >>> classifier = NodeClassification(model, labels=["theory", "genetics"])
        >>> classifier(nodes, edges)
        ['genetics', 'theory', 'theory']
    """

    def __init__(self, model: Any, labels: Sequence[Any] | None = None) -> None:
        self.model = model
        self.labels = class_labels.check(labels, model.num_classes)

    def __call__(self, nodes: Any, edges: Any) -> list[Any]:
        """The most probable label of each node of one graph.

        Args:
            nodes: (T, D), their features.
            edges: integers (E, 2) of [source, target], E may be 0. An edge listed twice counts once; self-loops and
                isolated nodes are allowed.

        Returns:
            A list of T labels.

        Raises:
            ValueError: where a shape does not fit, features are not finite, or an edge joins a node that is not there.
        """
        return [self.labels[i] for i in self.probabilities(nodes, edges).argmax(-1)]

    def probabilities(self, nodes: Any, edges: Any) -> np.ndarray:
        """The probability of each class for each node, float32 (T, C)."""
        nodes, edges = np.asarray(nodes), np.asarray(edges)
        _check(nodes, edges, self.model.num_features)
        edges = edges.reshape(-1, 2).astype("int32")
        # What computes edges needs one; −1 is none.
        edges = np.concatenate([edges, np.full((1, 2), -1, "int32")])
        logits = self.model({"nodes": nodes[None], "edges": edges[None]}, training=False)
        return class_labels.softmax(keras.ops.convert_to_numpy(logits)[0])

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides the model."""
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
