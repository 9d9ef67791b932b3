"""Graph attention networks that classify whole graphs or predict links."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import Dropout
from keras_transformer.models.gat import GAT
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.models.problem_types import check_problem_type
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of

POOLINGS = ("mean", "sum", "max")


class HeadedGAT(Model):
    """Base class of models on the node embeddings of a `GAT`, whose `num_classes` is their size."""

    returns_logits = True
    parts = ("encoder",)

    def __init__(self, encoder: GAT, **kwargs: Any) -> None:
        if not isinstance(encoder, GAT):
            raise TypeError(f"`encoder` must be a `models.GAT`. Received: a {type(encoder).__name__}")
        super().__init__(**{"dtype": encoder.dtype_policy, **kwargs})
        self.encoder = encoder
        encoder.build_as_sublayer()

    def input_specs(self) -> InputSpecs:
        """Return the inputs of a call, by name."""
        return self.encoder.input_specs()

    def _embeddings(self, inputs: dict[str, Tensor], training: bool | None) -> Tensor:
        return self.encoder(
            {name: inputs[name] for name in ("nodes", "edges", "adjacency") if name in inputs},
            training=training,
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class GraphClassifier(HeadedGAT):
    r"""Classify graphs, or predict numbers, from the pooled embeddings of their nodes.

    $$\mathrm{logits} = \mathrm{pool}_i\, \sigma(\mathrm{GAT}(X, G)_i)\; W + b$$

    The logits do not depend on the order of the nodes. σ is the activation of the encoder.

    Args:
        encoder: a `GAT`, whose `num_classes` is the size D of a node's embedding.
        num_classes: C, the number of classes.
        pooling: "mean", "sum" (which also depends on the number of nodes) or "max".
        dropout: dropout rate for the pooled embedding.
        problem_type: the problem type of the head, with the losses of `SequenceClassifier`.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the inputs of the encoder and, if graphs are padded, "padding_mask", booleans (B, T), False at nodes
            that are padding.

    Shapes:
        output: (B, C), float32 logits; for regression the predicted numbers

    Example:
        >>> model = GraphClassifier(GAT(num_features=5, num_classes=8), num_classes=2)
        >>> model({"nodes": keras.ops.ones((3, 4, 5)), "edges": keras.ops.array([[[0, 1], [1, 2]]] * 3)}).shape
        TensorShape([3, 2])

    References:
        Xu et al., "How Powerful are Graph Neural Networks?" (2019), section 5, for the poolings.
    """

    def __init__(
        self,
        encoder: GAT,
        num_classes: int,
        pooling: str = "mean",
        dropout: float = 0.0,
        problem_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        check_one_of(POOLINGS, pooling=pooling)
        self.problem_type = check_problem_type(problem_type, num_classes)
        self.num_classes, self.pooling = num_classes, pooling
        self.dropout = check_rate("dropout", dropout)
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.head = keras.layers.Dense(num_classes, dtype="float32", name="head")
        for layer in (self.drop, self.head):
            layer.build((None, encoder.num_classes))
        self.built = True

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits (B, C)."""
        named = self.named_inputs(inputs)
        hidden = self.encoder.activation(self._embeddings(named, training))
        pooled = self._pool(hidden, named.get("padding_mask"))
        return self.head(self.drop(pooled, training=training))

    def input_specs(self) -> InputSpecs:
        """Return the inputs of a call, by name."""
        mask = InputSpec(2, required=False, exported=True, dtype="bool")
        return {**super().input_specs(), "padding_mask": mask}

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """Return the output shape (B, C)."""
        return (input_shape["nodes"][0], self.num_classes)

    def _pool(self, hidden: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Return one vector (B, D) for each graph, zeros for a graph without nodes."""
        if padding_mask is None:
            present = ops.ones_like(hidden[..., :1], dtype="bool")
        else:
            present = ops.cast(padding_mask, "bool")[..., None]
        count = ops.sum(ops.cast(present, hidden.dtype), axis=1)
        if self.pooling == "max":
            largest = ops.max(ops.where(present, hidden, -np.inf), axis=1, initial=-np.inf)
            return ops.where(count > 0, largest, 0.0)
        total = ops.sum(ops.where(present, hidden, 0.0), axis=1)
        return total if self.pooling == "sum" else total / ops.maximum(count, 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinkPredictor(HeadedGAT):
    r"""Predict which pairs of nodes are linked, by the dot products of their embeddings.

    $$\mathrm{logit}_{ij} = z_i \cdot z_j + b, \qquad Z = \mathrm{GAT}(X, G)$$

    Train it with `keras.losses.BinaryCrossentropy(from_logits=True)` on linked pairs and as many random ones, and
    exclude the pairs to be predicted from the edges of the graph.

    Args:
        encoder: a `GAT`, whose `num_classes` is the size of a node's embedding z.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the inputs of the encoder and "pairs", integers (B, P, 2), pairs of nodes.

    Shapes:
        output: (B, P), float32 logits

    Example:
        >>> model = LinkPredictor(GAT(num_features=5, num_classes=8))
        >>> graph = {"nodes": keras.ops.ones((1, 4, 5)), "edges": keras.ops.array([[[0, 1], [1, 2]]])}
        >>> model({**graph, "pairs": keras.ops.array([[[0, 2], [1, 3], [2, 0]]])}).shape
        TensorShape([1, 3])

    References:
        Kipf and Welling, "Variational Graph Auto-Encoders" (2016), equation 2, with a bias b.
    """

    def __init__(self, encoder: GAT, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.bias = self.add_weight(
            name="bias", shape=(), initializer="zeros", dtype="float32", autocast=False
        )
        self.built = True

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits (B, P) of the pairs."""
        named = self.named_inputs(inputs)
        embeddings, pairs = self._embeddings(named, training), ops.cast(named["pairs"], "int32")
        first, second = (
            ops.take_along_axis(embeddings, pairs[..., side, None], axis=1)  # (B, P, D)
            for side in range(2)
        )
        return ops.sum(first * second, axis=-1) + self.bias

    def input_specs(self) -> InputSpecs:
        """Return the inputs of a call, by name."""
        return {**super().input_specs(), "pairs": InputSpec("T", ("B", "P", "2"))}

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """Return the output shape (B, P)."""
        return tuple(input_shape["pairs"][:-1])
