"""Graph attention over the edges of each sample's graph."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers import masks, score_layers
from keras_transformer.ops import scores
from keras_transformer.ops.attention_inputs import check_edges, known_values
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class GraphAttention(ConfiguredLayer):
    r"""Graph attention: each node attends to its in-neighbours, the sources of its incoming edges.

    $$h'_i = \sigma\left( \big\Vert_{n=1}^{N} \sum_{j \in \mathcal{N}(i)} \alpha^n_{ij} W^n h_j + b \right), \quad
    \alpha^n_{ij} = \frac{\exp s^n_{ij}}{\sum_{l \in \mathcal{N}(i)} \exp s^n_{il}}$$

    If `concat` is False (for a last layer), the heads are averaged, $\frac{1}{N} \sum_n$, instead of concatenated, ∥.
    The score determines the projections:

    - "gat": one W for targets and sources, $s_{ij} = \mathrm{LeakyReLU}(a \cdot [W h_i \Vert W h_j])$;
    - "gatv2": one for targets and one for sources, $s_{ij} = a \cdot \mathrm{LeakyReLU}(W_t h_i + W_s h_j)$, W = W_s
      ("additive" likewise, with tanh);
    - other scores: separate query, key and value projections, as in `MultiHeadAttention`.

    Each graph of a batch has T nodes; smaller graphs are padded with nodes without edges or with nodes that
    `padding_mask` masks. The layer is equivariant to permutations of the nodes.

    Args:
        num_heads: N.
        head_dim: H, the size of a head.
        concat: True to concatenate the heads, False to average them.
        score: the score of two nodes: "gat", "gatv2", or another score of `MultiHeadAttention` ("scaled_dot_product",
            "cosine", …).
        dropout: dropout rate for attention weights.
        self_loops: whether every node attends to itself, even without an edge to itself.
        use_bias: whether there is a bias b and, except for "gat", whether the projections have biases.
        activation: σ, an identifier for `keras.activations.get`.
        seed: an integer for reproducible dropout.
        kernel: the attention implementation, see `ops.attention`.
        kernel_regularizer: regularizer of the projections' matrices; a score layer has its own regularizer.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        nodes: (B, T, D).
        edges: integers (B, E, 2): [source, target] lets `target` attend to `source`; −1 is padding, and duplicate
            edges count once. Edges of other nodes raise an error where their values are known; inside `tf.function`
            and `jax.jit` they are ignored.
        adjacency: booleans (B, T, T) in place of edges, True at [target, source].
        padding_mask: booleans (B, T), False at nodes that no node may attend to.
        mask: passed by Keras (as is `nodes_mask`) and merged with `padding_mask`.

    Shapes:
        output: (B, T, N · H), or (B, T, H) if heads are averaged

    Example:
        >>> nodes, edges = keras.random.normal((1, 3, 8)), keras.ops.array([[[0, 1], [1, 2]]])
        >>> GraphAttention(num_heads=2, head_dim=4)(nodes, edges).shape
        TensorShape([1, 3, 8])

    References:
        Veličković et al., "Graph Attention Networks" (2018), equations 3, 5 and 6; Brody et al., "How Attentive Are
        Graph Attention Networks?" (2022), equation 7. As in PyTorch Geometric, b is added once, after the heads are
        concatenated or averaged.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        concat: bool = True,
        score: Any = "gat",
        dropout: float = 0.0,
        self_loops: bool = True,
        use_bias: bool = True,
        activation: Any = None,
        seed: int | None = None,
        kernel: str = "auto",
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(num_heads=num_heads, head_dim=head_dim)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.concat = concat
        self.score = score_layers.get(score)
        self.dropout = check_rate("dropout", dropout)
        self.self_loops = self_loops
        self.use_bias = use_bias
        self.activation = keras.activations.get(activation)
        self.seed = seed
        self.kernel = kt_ops.check_kernel(kernel)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, nodes_shape: Any) -> None:
        """Create the projections, the score's weights and the bias."""
        if len(nodes_shape) != 3:
            raise ValueError(
                f"`nodes` must have three axes (batch, nodes, size). Received: nodes.shape={tuple(nodes_shape)}"
            )
        if isinstance(self.score, scores.GAT):
            names: tuple[str, ...] = ("nodes",)
        elif isinstance(self.score, scores.Additive):
            names = ("target", "source")
        else:
            names = ("query", "key", "value")
        self.projections = [self._project(nodes_shape, name, len(names) > 1) for name in names]
        if isinstance(self.score, score_layers.ScoreLayer):
            self.score.build((self.num_heads, self.num_heads, self.head_dim))
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self._output_dim,), initializer="zeros")

    def call(
        self,
        nodes: Tensor,
        edges: Tensor | None = None,
        adjacency: Tensor | None = None,
        padding_mask: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        nodes_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the new features of the nodes."""
        dropout = self.dropout if training else 0.0
        heads = kt_ops.attention(
            *self._heads(nodes),
            **self._graph(nodes, edges, adjacency),
            score=self.score,
            padding_mask=masks.merge(padding_mask, mask, nodes_mask),
            dropout=dropout,
            seed=self.seed_generator.next() if dropout else None,
            kernel=self.kernel,
        )  # (B, T, N, H)
        if self.concat:
            output = ops.reshape(heads, [-1, ops.shape(nodes)[1], self._output_dim])
        else:
            output = ops.mean(heads, axis=2)
        return self.activation(output + self.bias if self.use_bias else output)

    def attention_weights(
        self,
        nodes: Tensor,
        edges: Tensor | None = None,
        adjacency: Tensor | None = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the weights α of `call`, float32 (B, N, T, T), of targets (rows) and sources (columns)."""
        query, key, _ = self._heads(nodes)
        return kt_ops.attention_weights(
            query,
            key,
            **self._graph(nodes, edges, adjacency),
            score=self.score,
            padding_mask=padding_mask,
        )

    def compute_output_shape(self, nodes_shape: tuple[int | None, ...], *_: Any, **__: Any) -> Any:
        """Return the output shape (B, T, N · H) or (B, T, H)."""
        return (*nodes_shape[:-1], self._output_dim)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the nodes."""
        return previous_mask

    @property
    def _output_dim(self) -> int:
        return self.num_heads * self.head_dim if self.concat else self.head_dim

    def _project(self, nodes_shape: Any, name: str, may_have_bias: bool) -> keras.layers.Dense:
        limit = math.sqrt(6 / (nodes_shape[-1] + self.head_dim))  # Glorot uniform, for each head
        layer = keras.layers.Dense(
            self.num_heads * self.head_dim,
            use_bias=self.use_bias and may_have_bias,
            kernel_initializer=keras.initializers.RandomUniform(-limit, limit),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(nodes_shape)
        return layer

    def _heads(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, T, N, H)."""
        shape = [-1, ops.shape(nodes)[1], self.num_heads, self.head_dim]
        projected = [ops.reshape(projection(nodes), shape) for projection in self.projections]
        return projected[0], projected[min(1, len(projected) - 1)], projected[-1]

    def _graph(self, nodes: Tensor, edges: Tensor | None, adjacency: Tensor | None) -> dict[str, Tensor]:
        """Return `edges` or `mask` for `ops.attention`, with self-loops added if `self_loops`."""
        if (edges is None) == (adjacency is None):
            raise ValueError(
                "Either `edges` or `adjacency` must be passed. "
                f"Received: {'neither' if edges is None else 'both'}"
            )
        num_nodes = ops.shape(nodes)[1]
        if edges is None:
            adjacency = ops.cast(adjacency, "bool")
            _check_adjacency(nodes, adjacency)
            if self.self_loops:
                adjacency = ops.logical_or(adjacency, ops.eye(num_nodes, dtype="bool"))
            return {"mask": adjacency[:, None]}  # (B, 1, T, T)
        check_edges(nodes, edges)
        _check_nodes(nodes, edges)
        if self.self_loops:
            edges = ops.cast(edges, "int32")
            loops = ops.repeat(ops.arange(num_nodes, dtype="int32")[:, None], 2, axis=1)
            loops = ops.broadcast_to(loops, [ops.shape(edges)[0], num_nodes, 2])
            edges = ops.concatenate([edges, loops], axis=1)
        return {"edges": edges}


def _check_nodes(nodes: Tensor, edges: Tensor) -> None:
    """Raise a ValueError if known edges have other nodes, or only one of −1."""
    num_nodes = nodes.shape[1]
    if (known := known_values(edges)) is None or num_nodes is None:
        return
    is_wrong = ((known < 0) | (known >= num_nodes)).any(-1) & (known != -1).any(-1)
    if is_wrong.any():
        sample, edge = np.argwhere(is_wrong)[0]
        raise ValueError(
            f"`edges` must be [source, target], both in [0, {num_nodes}), or [-1, -1] for padding. "
            f"Received: {known[sample, edge].tolist()}, edge {edge} of sample {sample}"
        )


def _check_adjacency(nodes: Tensor, adjacency: Tensor) -> None:
    batch, num_nodes = nodes.shape[:2]
    shape, expected = tuple(adjacency.shape), (batch, num_nodes, num_nodes)
    if len(shape) != 3 or any(
        None not in pair and pair[0] != pair[1] for pair in zip(shape, expected, strict=True)
    ):
        raise ValueError(f"`adjacency` must be (B, T, T) = {expected}. Received: adjacency.shape={shape}")
