"""Scores with weights: tensors given to the constructor, or the variables of a layer that extends the score.

A score is log κ(q, k), the logarithm of the similarity of a query q and a key k; see `keras_transformer.ops.scores`.
"""

import dataclasses
from collections.abc import Callable

from keras import ops

from keras_transformer.ops.scores.base import Score
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of

Map = Callable[[Tensor], Tensor]


@dataclasses.dataclass(eq=False)
class Additive(Score):
    r"""Additive attention: a network with one hidden layer, for each head n.

    $$\log \kappa(q, k) = a_n \cdot f(q + k)$$

    The query and the key are the projections that Bahdanau et al. write W s_{i−1} and U h_j. With f = LeakyReLU this
    is GATv2's score.

    Args:
        vectors: a, (N, H).
        activation: f: "tanh" or "leaky_relu" (negative slope 0.2).

    Raises:
        ValueError: if `activation` is unknown.

    References:
        Bahdanau et al. (2015), section A.1.2; Brody et al., "How Attentive Are Graph Attention Networks?" (2022),
        equation 7.
    """

    vectors: Tensor
    activation: str = "tanh"

    @property
    def num_heads(self) -> int | None:
        return int(self.vectors.shape[0])

    def __post_init__(self) -> None:
        check_one_of(sorted(_ACTIVATIONS), activation=self.activation)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.vectors,)

    @property
    def pair_size(self) -> int:
        return int(self.vectors.shape[-1])

    def compare(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        activation, _ = _ACTIVATIONS[self.activation]
        sums, vectors = self._unfold(query, key, parameters[0])
        return _fold(ops.sum(activation(sums) * vectors, axis=-1))

    def compare_gradient(
        self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...], upstream: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        activation, slope = _ACTIVATIONS[self.activation]
        sums, vectors = self._unfold(query, key, parameters[0])  # (…, K, G, T, S, H)
        upstream = ops.reshape(upstream, [*ops.shape(sums)[:-1], 1])
        d_sum = slope(sums) * vectors * upstream
        other_axes = (*range(len(sums.shape) - 5), -3, -2)
        d_vectors = ops.sum(activation(sums) * upstream, axis=other_axes)  # (K, G, H)
        return (
            _fold(ops.sum(d_sum, axis=-2)),
            ops.sum(d_sum, axis=(-4, -3)),
            (ops.reshape(d_vectors, parameters[0].shape),),
        )

    def compare_pairs(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        activation, _ = _ACTIVATIONS[self.activation]
        return ops.sum(activation(query + key) * ops.cast(parameters[0], query.dtype), axis=-1)

    def _unfold(self, query: Tensor, key: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of every query and every key (…, K, G, T, S, H), and the vectors (K, G, 1, 1, H)."""
        kv_heads, size = key.shape[-3], key.shape[-1]
        groups = vectors.shape[0] // kv_heads
        *leading, rows, _ = ops.shape(query)
        query = ops.reshape(query, [*leading, groups, rows // groups, 1, size])
        vectors = ops.reshape(ops.cast(vectors, query.dtype), [kv_heads, groups, 1, 1, size])
        return query + key[..., None, None, :, :], vectors


@dataclasses.dataclass(eq=False)
class GAT(Score):
    r"""The score of graph attention networks: a LeakyReLU of the sum of a query term and a key term.

    $$\log \kappa(q, k) = \mathrm{LeakyReLU}(a_n \cdot q + b_n \cdot k)$$

    Args:
        query_vectors: a, (N, H).
        key_vectors: b, (K, H).
        negative_slope: the negative slope of the LeakyReLU.

    References:
        Veličković et al., "Graph Attention Networks" (2018), equation 3.
    """

    query_vectors: Tensor
    key_vectors: Tensor
    negative_slope: float = 0.2

    @property
    def num_heads(self) -> int | None:
        return int(self.query_vectors.shape[0])

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query_term = ops.sum(query * ops.cast(self.query_vectors, query.dtype), axis=-1, keepdims=True)
        key_term = ops.sum(key * ops.cast(self.key_vectors, key.dtype), axis=-1, keepdims=True)
        return (
            ops.concatenate([query_term, ops.ones_like(query_term)], axis=-1),
            ops.concatenate([ops.ones_like(key_term), key_term], axis=-1),
        )

    def link(self, compared: Tensor) -> Tensor:
        return ops.where(compared > 0, compared, compared * self.negative_slope)

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        return ops.where(compared > 0, upstream, upstream * self.negative_slope)


@dataclasses.dataclass(eq=False)
class Bilinear(Score):
    r"""Bilinear attention ("general" in the paper): a learned bilinear form of query and key for each head n.

    $$\log \kappa(q, k) = q^\top W_n k$$

    Args:
        matrices: W, (N, H, H).

    References:
        Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015), equation 8.
    """

    matrices: Tensor

    @property
    def num_heads(self) -> int | None:
        return int(self.matrices.shape[0])

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return ops.einsum("btnh,nhf->btnf", query, ops.cast(self.matrices, query.dtype)), key


def _fold(tensor: Tensor) -> Tensor:
    """Reshape (…, G, T, ·) to (…, G·T, ·)."""
    *leading, groups, queries, size = ops.shape(tensor)
    return ops.reshape(tensor, [*leading, groups * queries, size])


def _leaky(inputs: Tensor) -> Tensor:
    return ops.where(inputs > 0, inputs, 0.2 * inputs)


def _leaky_slope(inputs: Tensor) -> Tensor:
    return ops.where(inputs > 0, ops.ones_like(inputs), 0.2 * ops.ones_like(inputs))


_ACTIVATIONS: dict[str, tuple[Map, Map]] = {
    "tanh": (ops.tanh, lambda x: 1.0 - ops.square(ops.tanh(x))),
    "leaky_relu": (_leaky, _leaky_slope),
}
