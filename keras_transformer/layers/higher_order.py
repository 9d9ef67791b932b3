"""Attention of relations between three or more elements: to pairs, in triangles and over hyperedges.

Axes: B batch, T elements, N heads, H head size, V value size.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers import masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.ops.attention_inputs import known_values
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class SimplicialAttention(ConfiguredLayer):
    r"""Attention of each element to pairs of elements, with a trilinear score (2-simplicial attention).

    $$h_i = \Big[\sum_{j, k} \alpha^n_{ijk}\, (v^n_j \odot v'^n_k)\Big]_n W^O, \quad
    \alpha_{ijk} = \mathrm{softmax}_{(j, k)} \frac{\sum_f q_{if}\, k_{jf}\, k'_{kf}}{\sqrt{H}}$$

    The score is the product of $q_i$ and $k_j \odot k'_k$: this is attention to the T² pairs as keys. Time and memory
    grow with T³. If k' and v' are constant, it is attention to single elements.

    Args:
        num_heads: N.
        key_dim: H, the size of a head's queries and keys, by default D / N.
        value_dim: V, the size of a head's values, by default H.
        relation: which positions i may attend to j, see `MultiHeadAttention`.
        second_relation: which positions i may attend to k, by default `relation`.
        pair_relation: which positions j and k form a pair; None for all.
        kernel: the attention implementation, see `ops.attention`.
        dropout: dropout rate for attention weights.
        use_bias: whether the projections have biases.
        seed: an integer for reproducible dropout.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        attention_mask: booleans (B, T, T, T), True at [i, j, k] where i may attend to the pair (j, k).
        padding_mask: booleans (B, T), False at elements that no pair contains.
        mask: passed by Keras (as is `inputs_mask`) and merged with `padding_mask`.

    Shapes:
        output: (B, T, D)

    Example:
        >>> SimplicialAttention(num_heads=2, relation="causal")(keras.ops.ones((2, 5, 16))).shape
        TensorShape([2, 5, 16])

    References:
        Clift et al., "Logic and the 2-Simplicial Transformer" (2020); the score: Sanford et al., "Representational
        Strengths and Limitations of Transformers" (2023), definition 7.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        relation: Any = None,
        second_relation: Any = None,
        pair_relation: Any = None,
        kernel: str = "auto",
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = {"num_heads": num_heads, "key_dim": key_dim, "value_dim": value_dim}
        check_positive_integer(**{name: size for name, size in sizes.items() if size is not None})
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        self.relation = relations.get(relation)
        self.second_relation = (
            self.relation if second_relation is None else relations.get(second_relation, "second_relation")
        )
        self.pair_relation = relations.get(pair_relation, "pair_relation")
        self.kernel = kt_ops.check_kernel(kernel)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias, self.seed = use_bias, seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        """Create the projections."""
        size, heads = inputs_shape[-1], self.num_heads
        if self.key_dim is None:
            check(size % heads == 0, "divide {model_dim}", num_heads=heads, model_dim=size)
        key_dim = self.key_dim or size // heads
        value_dim = self.value_dim or key_dim
        self.query_projection, self.key_projection, self.second_key_projection = (
            self._project(heads * key_dim, name, inputs_shape) for name in ("query", "key", "second_key")
        )
        self.value_projection, self.second_value_projection = (
            self._project(heads * value_dim, name, inputs_shape) for name in ("value", "second_value")
        )
        self.output_projection = self._project(size, "output", (*inputs_shape[:-1], heads * value_dim))

    def call(
        self,
        inputs: Tensor,
        *,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the attention output."""
        length = ops.shape(inputs)[1]
        query, key, second_key, value, second_value = (
            ops.reshape(projection(inputs), [-1, length, self.num_heads, projection.units // self.num_heads])
            for projection in (
                self.query_projection,
                self.key_projection,
                self.second_key_projection,
                self.value_projection,
                self.second_value_projection,
            )
        )
        dropout = self.dropout if training else 0.0
        heads = kt_ops.attention(
            query,
            _pairs(key, second_key),
            _pairs(value, second_value),
            mask=self._mask(length, attention_mask),
            padding_mask=_pair_mask(masks.merge(padding_mask, mask, inputs_mask)),
            dropout=dropout,
            seed=self.seed_generator.next() if dropout else None,
            kernel=self.kernel,
        )  # (B, T, N, V)
        return self.output_projection(ops.reshape(heads, [-1, length, self.value_projection.units]))

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...], **_: Any) -> Any:
        """Return the shape of the inputs."""
        return inputs_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the inputs."""
        return previous_mask

    def _project(self, units: int, name: str, inputs_shape: Any) -> keras.layers.Dense:
        return _dense(units, name, inputs_shape, self.dtype_policy, use_bias=self.use_bias)

    def _mask(self, length: Any, attention_mask: Tensor | None) -> Tensor | None:
        """Return the mask (B or 1, 1, T, T²) of the relations and the argument."""
        full = relations.get(None)
        related = []
        if attention_mask is not None:
            related.append(ops.cast(attention_mask, "bool"))
        i, j, k = (
            ops.reshape(ops.arange(length), shape) for shape in ((1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1))
        )
        for relation, first, second in (
            (self.relation, i, j),
            (self.second_relation, i, k),
            (self.pair_relation, j, k),
        ):
            if relation != full:
                related.append(relation.related(first, second))
        if not related:
            return None
        allowed = masks.merge(*related)
        shape = [ops.shape(allowed)[0], length, length, length]
        return ops.reshape(ops.broadcast_to(allowed, shape), [-1, 1, length, length * length])


@keras.saving.register_keras_serializable(package="keras_transformer")
class TriangleAttention(ConfiguredLayer):
    r"""Attention among the pairs that share an element, with a bias from the third side of the triangle.

    $$z'_{ij} = \Big[\sigma(G^n z_{ij}) \odot \sum_k \mathrm{softmax}_k\Big(\frac{q^n_{ij} \cdot k^n_{ik}}{\sqrt{H}} +
    b^n_{jk}\Big) v^n_{ik}\Big]_n W^O, \qquad b_{jk} = B z_{jk}$$

    around the starting node i; around the ending node, rows and columns change places. The layer is equivariant to
    permutations of the elements. Time grows with T³.

    Args:
        num_heads: N.
        key_dim: H, by default D / N.
        starting: True for pairs with the same first element, False for the same second element.
        dropout: dropout rate for attention weights.
        seed: an integer for reproducible dropout.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        pairs: (B, T, T, D), a vector for each pair of elements.
        padding_mask: booleans (B, T), False at elements that are padding.

    Shapes:
        output: (B, T, T, D)

    Example:
        >>> TriangleAttention(num_heads=2)(keras.ops.ones((2, 5, 5, 16))).shape
        TensorShape([2, 5, 5, 16])

    References:
        Jumper et al., "Highly Accurate Protein Structure Prediction with AlphaFold" (2021), supplementary algorithms
        13 and 14, without their layer normalization.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        starting: bool = True,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sizes = {"num_heads": num_heads, "key_dim": key_dim}
        check_positive_integer(**{name: size for name, size in sizes.items() if size is not None})
        self.num_heads, self.key_dim, self.starting = num_heads, key_dim, starting
        self.dropout, self.seed = check_rate("dropout", dropout), seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, pairs_shape: Any) -> None:
        """Create the projections."""
        square = len(pairs_shape) == 4 and len({*pairs_shape[1:3]} - {None}) < 2
        check(square, "have the shape (B, T, T, D)", pairs=tuple(pairs_shape))
        size, heads = pairs_shape[-1], self.num_heads
        if self.key_dim is None:
            check(size % heads == 0, "divide {model_dim}", num_heads=heads, model_dim=size)
        self._head_shape = heads, self.key_dim or size // heads
        merged = heads * self._head_shape[1]
        self.query_projection, self.key_projection, self.value_projection, self.bias_projection = (
            self._project(units, name, pairs_shape, use_bias=False)
            for name, units in (("query", merged), ("key", merged), ("value", merged), ("bias", heads))
        )
        self.gate = self._project(merged, "gate", pairs_shape, activation="sigmoid")
        self.output_projection = self._project(size, "output", (*pairs_shape[:-1], merged))

    def call(
        self, pairs: Tensor, *, padding_mask: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Return the new vectors of the pairs."""
        if not self.starting:
            pairs = _transposed(pairs)
        length = ops.shape(pairs)[1]
        heads, size = self._head_shape
        # The pairs of each element i are a sequence.
        query, key, value = (
            ops.reshape(projection(pairs), [-1, length, heads, size])
            for projection in (self.query_projection, self.key_projection, self.value_projection)
        )
        bias = ops.transpose(self.bias_projection(pairs), (0, 3, 1, 2))  # (B, N, T, T)
        dropout = self.dropout if training else 0.0
        attended = kt_ops.attention(
            query,
            key,
            value,
            bias=ops.repeat(bias, length, axis=0),
            padding_mask=None if padding_mask is None else ops.repeat(padding_mask, length, axis=0),
            dropout=dropout,
            seed=self.seed_generator.next() if dropout else None,
        )  # (B · T, T, N, H)
        attended = ops.reshape(attended, [-1, length, length, heads * size])
        output = self.output_projection(self.gate(pairs) * attended)
        return output if self.starting else _transposed(output)

    def compute_output_shape(self, pairs_shape: tuple[int | None, ...], **_: Any) -> Any:
        """Return the shape of the pairs."""
        return pairs_shape

    def _project(self, units: int, name: str, shape: Any, **options: Any) -> keras.layers.Dense:
        return _dense(units, name, shape, self.dtype_policy, **options)


@keras.saving.register_keras_serializable(package="keras_transformer")
class HypergraphAttention(ConfiguredLayer):
    r"""Attention over a hypergraph: hyperedges attend to their nodes, then nodes to their hyperedges.

    $$e' = e + \mathrm{MultiHead}(e,\ \{x_i : i \in e\}), \qquad x'_i = \mathrm{MultiHead}(x_i,\ \{e' : e \ni i\})$$

    A hyperedge joins any number of nodes. Both steps are attention over a bipartite graph, whose edges are the
    incidences of nodes and hyperedges. The layer is equivariant to permutations of nodes and of hyperedges.

    Args:
        num_heads: the number of attention heads.
        key_dim: the size of a head, by default that of the nodes or hyperedges over `num_heads`.
        dropout: dropout rate for attention weights.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        nodes: (B, T, D).
        hyperedges: (B, M, D'), a vector for each hyperedge, such as zeros.
        incidences: integers (B, E, 2), [node, hyperedge]; −1 is padding.

    Shapes:
        outputs: (B, T, D) and (B, M, D')

    Returns:
        The new vectors of the nodes and of the hyperedges.

    Example:
        >>> nodes, hyperedges = keras.random.normal((1, 4, 8)), keras.ops.zeros((1, 2, 8))
        >>> incidences = keras.ops.array([[[0, 0], [1, 0], [2, 0], [2, 1], [3, 1]]])  # {0, 1, 2} and {2, 3}
        >>> nodes, hyperedges = HypergraphAttention(num_heads=2)(nodes, hyperedges, incidences)
        >>> nodes.shape, hyperedges.shape
        (TensorShape([1, 4, 8]), TensorShape([1, 2, 8]))

    References:
        Chien et al., "You are AllSet: A Multiset Function Framework for Hypergraph Neural Networks" (2022).
    """

    def __init__(
        self, num_heads: int, key_dim: int | None = None, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.key_dim, self.dropout = num_heads, key_dim, dropout
        self.to_hyperedges, self.to_nodes = (
            MultiHeadAttention(num_heads, key_dim, dropout=dropout, dtype=self.dtype_policy, name=name)
            for name in ("to_hyperedges", "to_nodes")
        )

    def build(self, nodes_shape: Any, hyperedges_shape: Any, incidences_shape: Any = None) -> None:
        """Create the weights of both steps."""
        del incidences_shape
        self.to_hyperedges.build(hyperedges_shape, nodes_shape)
        self.to_nodes.build(nodes_shape, hyperedges_shape)

    def call(
        self, nodes: Tensor, hyperedges: Tensor, incidences: Tensor, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the new nodes and hyperedges."""
        _check_incidences(incidences, nodes.shape[1], hyperedges.shape[1])
        attended = self.to_hyperedges(hyperedges, nodes, edges=incidences, training=training)
        hyperedges = hyperedges + attended
        backward = ops.flip(incidences, axis=-1)  # [hyperedge, node]
        return self.to_nodes(nodes, hyperedges, edges=backward, training=training), hyperedges

    def compute_output_shape(self, nodes_shape: Any, hyperedges_shape: Any, incidences_shape: Any) -> Any:
        """Return the shapes of nodes and hyperedges."""
        del incidences_shape
        return nodes_shape, hyperedges_shape


def _check_incidences(incidences: Tensor, num_nodes: int | None, num_hyperedges: int | None) -> None:
    """Raise a ValueError if an incidence is known to be out of range; −1 is padding."""
    known = known_values(incidences)
    if known is None or known.ndim != 3 or known.shape[-1] != 2:
        return
    sizes = {"nodes": num_nodes, "hyperedges": num_hyperedges}
    for place, (name, size) in enumerate(sizes.items()):
        if size is not None:
            wrong = known[(known[..., place] < -1) | (known[..., place] >= size)]
            expectation = f"be pairs [node, hyperedge] with {name} in [0, {size}), or −1 for padding"
            check(not len(wrong), expectation, incidences=wrong[:1].tolist())


def _dense(units: int, name: str, shape: Any, dtype: Any, **options: Any) -> keras.layers.Dense:
    layer = keras.layers.Dense(units, dtype=dtype, name=name, **options)
    layer.build(shape)
    return layer


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Return the products (B, T², N, H) of vectors (B, T, N, H) for each pair of positions."""
    pairs = first[:, :, None] * second[:, None]  # (B, T, T, N, H)
    return ops.reshape(pairs, [-1, ops.shape(first)[1] ** 2, *first.shape[2:]])


def _pair_mask(mask: Tensor | None) -> Tensor | None:
    """Return the mask (B, T²) of pairs for a mask (B, T) of their elements."""
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    pairs = ops.logical_and(mask[:, :, None], mask[:, None])
    return ops.reshape(pairs, [-1, ops.shape(mask)[1] ** 2])


def _transposed(pairs: Tensor) -> Tensor:
    return ops.transpose(pairs, (0, 2, 1, 3))
