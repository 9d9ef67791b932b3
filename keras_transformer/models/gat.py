"""The graph attention network, which classifies the nodes of graphs."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import separate_config
from keras_transformer.layers import Dropout, GraphAttention, ScoreLayer, score_layers
from keras_transformer.layers.embeddings import nan_if_unknown
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.ops.random import check_rate
from keras_transformer.ops.scores import Score
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class GAT(Model):
    r"""Graph attention network (GAT): classify nodes by a stack of graph attention layers.

    $$h^{(l)} = \sigma\big(\mathrm{GraphAttention}_l(\bar h^{(l-1)}, G)\; [+\, \bar h^{(l-1)} W_l]\big), \quad
    \mathrm{logits} = \mathrm{GraphAttention}_L(\bar h^{(L-1)}, G)\; [+\, \bar h^{(L-1)} W_L], \quad
    \bar h = \mathrm{drop}(h)$$

    G is the graph, and the terms in brackets are the residual connections. The heads of the last layer have one logit
    for each class and are averaged; those of other layers are concatenated.

    For transductive learning (one graph with some labelled nodes), pass the graph as a batch and a `sample_weight` of 1
    for labelled nodes and 0 for others. For inductive learning, pass batches of graphs, padded with nodes of
    `sample_weight` 0 and edges of −1. Use a loss with the reduction "mean_with_sample_weight" to average over the
    labelled nodes: Keras' default divides by all nodes.

    Args:
        num_features: D, the number of features of a node.
        num_classes: C, the number of classes.
        num_heads: the number of heads of each layer.
        head_dim: the size of a head, in all layers but the last, where it is C.
        activation: σ.
        dropout: dropout rate for layer inputs and attention weights.
        score: "gat", "gatv2", "scaled_dot_product" or another score of `GraphAttention`.
        residual: whether to add the input of a layer to its output, projected by W if sizes differ.
        self_loops: whether to add an edge from every node to itself.
        regularizer: the regularizer of all weights but biases.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: {"nodes": (B, T, D), "edges": integers (B, E, 2) of [source, target], padded with −1}, or a boolean
            "adjacency" (B, T, T), True at [target, source], in place of edges.

    Shapes:
        output: (B, T, C), float32 logits

    Example:
        >>> model = GAT(num_features=5, num_classes=3)
        >>> model({"nodes": keras.ops.ones((1, 4, 5)), "edges": keras.ops.array([[[0, 1], [1, 2]]])}).shape
        TensorShape([1, 4, 3])

    References:
        Veličković et al., "Graph Attention Networks" (2018), sections 2.1 and 3.3. The authors' code also applies
        dropout to projected features before the sum, which neither the paper nor this model does.
    """

    returns_logits = True

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        num_heads: Sequence[int] = (8, 1),
        head_dim: int = 8,
        activation: Any = "elu",
        dropout: float = 0.6,
        score: Any = "gat",
        residual: bool = False,
        self_loops: bool = True,
        regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(num_features=num_features, num_classes=num_classes)
        if not isinstance(num_heads, Sequence) or not num_heads:
            raise ValueError(
                f"`num_heads` must be a list with the number of heads of each layer. Received: num_heads={num_heads}"
            )
        self.num_features = num_features
        self.num_classes = num_classes
        self.num_heads = tuple(num_heads)
        self.head_dim = head_dim
        self.activation = keras.activations.get(activation)
        self.dropout = check_rate("dropout", dropout)
        # Stored as a config, from which each attention layer gets a separate score.
        self.score = separate_config(score_layers.get(score))
        self.residual = residual
        self.self_loops = self_loops
        self.regularizer = keras.regularizers.get(regularizer)
        self._build_weights()

    @classmethod
    def transductive(cls, num_features: int, num_classes: int, **kwargs: Any) -> "GAT":
        """Create the paper's model for Cora and Citeseer: 8 heads of size 8, then 1; dropout 0.6, L2 5e-4 (λ‖w‖²/2)."""
        return cls(num_features, num_classes, **{"regularizer": keras.regularizers.L2(5e-4 / 2), **kwargs})

    @classmethod
    def inductive(cls, num_features: int, num_classes: int, **kwargs: Any) -> "GAT":
        """Create the paper's model for PPI: 4, 4 and 6 heads of size 256, residual, without dropout."""
        sizes = {"num_heads": (4, 4, 6), "head_dim": 256, "dropout": 0.0, "residual": True}
        return cls(num_features, num_classes, **{**sizes, **kwargs})

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits (B, T, C) of every node."""
        hidden, graph = self._nodes_and_graph(inputs)
        for i in range(len(self.num_heads)):
            hidden = self._layer(i, hidden, graph, training)
        return ops.cast(hidden, "float32")

    def input_specs(self) -> InputSpecs:
        """Return the inputs of a call, by name."""
        axes = ("B", "T", str(self.num_features))
        return {
            "nodes": InputSpec(None, axes, dtype="float32", any_number=True),
            "edges": InputSpec(
                "T", ("B", "E", "2"), required=False, exported=True, minimum=-1, is_padded=True
            ),
            "adjacency": InputSpec(2, ("B", "T", "T"), required=False, dtype="bool"),
        }

    def attention_weights(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """Return the attention weights of every layer, float32 (B, N, T, T), targets in rows, sources in columns."""
        hidden, graph = self._nodes_and_graph(inputs)
        weights = []
        for i, layer in enumerate(self.attention_layers):
            weights.append(layer.attention_weights(hidden, **graph))
            hidden = self._layer(i, hidden, graph, training=False)
        return weights

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """Return the output shape (B, T, C)."""
        return (*input_shape["nodes"][:-1], self.num_classes)

    def _build_weights(self) -> None:
        self.attention_layers, self.drops, self.skips = [], [], {}
        size = self.num_features
        for i, heads in enumerate(self.num_heads):
            last = i + 1 == len(self.num_heads)
            layer = GraphAttention(
                heads,
                self.num_classes if last else self.head_dim,
                concat=not last,
                score=self._new_score(),
                dropout=self.dropout,
                self_loops=self.self_loops,
                kernel_regularizer=self.regularizer,
                dtype=self.dtype_policy,
                name=f"attention_{i}",
            )
            shape = (None, None, size)
            layer.build(shape)
            output_size = layer.compute_output_shape(shape)[-1]
            if self.residual and output_size != size:
                skip = keras.layers.Dense(
                    output_size,
                    use_bias=False,
                    kernel_regularizer=self.regularizer,
                    dtype=self.dtype_policy,
                    name=f"skip_{i}",
                )
                skip.build(shape)
                self.skips[str(i)] = skip
            self.attention_layers.append(layer)
            drop = Dropout(self.dropout, dtype=self.dtype_policy, name=f"dropout_{i}")
            drop.build(shape)
            self.drops.append(drop)
            size = output_size
        self.built = True

    def _new_score(self) -> Score | ScoreLayer:
        """Return a new score for one attention, with regularized weights."""
        score = score_layers.get(dict(self.score))
        if self.regularizer is None or not isinstance(score, ScoreLayer):
            return score
        return type(score).from_config({**score.get_config(), "kernel_regularizer": self.regularizer})

    def _nodes_and_graph(self, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
        named = self.named_inputs(inputs)
        graph = {name: named.get(name) for name in ("edges", "adjacency")}
        nodes = ops.cast(named["nodes"], self.compute_dtype)
        if (edges := graph["edges"]) is not None:
            batch_size, num_edges, _ = ops.shape(edges)
            is_half = ops.not_equal(*(ops.equal(edges[..., side], -1) for side in range(2)))[..., None]
            of_graph = ops.reshape(ops.where(is_half, -2, edges), (batch_size, 1, 2 * num_edges))
            nodes = nan_if_unknown(nodes, of_graph, ops.shape(nodes)[1], minimum=-1)
        return nodes, graph

    def _layer(
        self, i: int, inputs: Tensor, graph: dict[str, Tensor | None], training: bool | None
    ) -> Tensor:
        dropped = self.drops[i](inputs, training=training)
        output = self.attention_layers[i](dropped, **graph, training=training)
        if self.residual:
            skip = self.skips.get(str(i))
            output = output + (dropped if skip is None else skip(dropped))
        return output if i + 1 == len(self.num_heads) else self.activation(output)
