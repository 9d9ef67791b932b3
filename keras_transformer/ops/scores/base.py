"""The base class of scores. Axes: as in `keras_transformer.ops.scores`."""

from typing import Any

from keras import ops

from keras_transformer.configuration import Configured
from keras_transformer.typing import Tensor


class Score(Configured):
    r"""Base class of scores: log κ(q, k) = link(compare(features of q, features of k)).

    By default the comparison is the dot product and the link is the identity.
    """

    @property
    def pair_size(self) -> int:
        """The number of elements that `compare` stores for each (query, key) pair."""
        return 1

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The trainable tensors or variables of `compare`."""
        return ()

    @property
    def num_heads(self) -> int | None:
        """The number of query heads that the parameters are for, or None without parameters."""
        return None

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, T, N, F) and (B, S, K, F) of queries (B, T, N, H) and keys (B, S, K, H)."""
        return query, key

    def compare(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Compare features (…, K, G·T, F) of queries, grouped by key head, with (…, K, S, F): (…, K, G·T, S)."""
        return ops.matmul(query, _swap(key))

    def compare_gradient(
        self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...], upstream: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return the gradients of `compare` with respect to queries, keys and parameters."""
        return ops.matmul(upstream, key), ops.matmul(_swap(upstream), query), ()

    def compare_pairs(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return (…, N) for pairs of query and key features (…, N, F)."""
        return ops.sum(query * key, axis=-1)

    def link(self, compared: Tensor) -> Tensor:
        """Return log κ from the output of `compare`, elementwise."""
        return compared

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        """Return the gradient of `link` with respect to `compared`."""
        return upstream

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments.

        Raises:
            ValueError: if they are tensors.
        """
        if self.num_heads is not None:
            raise ValueError(
                "`score` must be a layer to be saved with its weights, such as layers.AdditiveScore. "
                f"Received: score={type(self).__name__}"
            )
        return super().get_config()


def _swap(tensor: Tensor) -> Tensor:
    """Transpose the last two axes."""
    axes = list(range(len(tensor.shape)))
    return ops.transpose(tensor, [*axes[:-2], axes[-1], axes[-2]])
