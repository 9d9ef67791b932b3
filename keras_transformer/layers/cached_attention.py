"""Attention with a key/value cache: the projections to heads, and the steps of generation."""

from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers import masks
from keras_transformer.layers.positions.base import PositionEncoding
from keras_transformer.typing import Tensor

Cache = dict[str, Tensor]


class CachedAttention(ConfiguredLayer):
    """Base class of `MultiHeadAttention`: what its call and its steps of generation share."""

    num_heads: int
    key_dim: int
    value_dim: int
    num_kv_heads: int
    relation: relations.Relation
    position_encoding: PositionEncoding | None
    score: kt_ops.scores.Score
    kernel: str
    query_projection: keras.layers.Dense
    key_projection: keras.layers.Dense
    value_projection: keras.layers.Dense
    output_projection: keras.layers.Dense
    query_norm: Any = None
    key_norm: Any = None

    def empty_cache(
        self,
        batch_size: Any,
        length: Any,
        hypotheses: int = 1,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> Cache:
        """Return the empty cache for `step` with the same `kv_cache`.

        If the relation has bandwidth k on the left, the cache holds k + 1 positions with `hypotheses` entries each, and
        new tokens replace the oldest.
        """
        return kv_cache.allocate(
            batch_size,
            length,
            num_heads=self.num_kv_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            dtype=self.compute_dtype,
            window=self._window,
            hypotheses=hypotheses,
        )

    def step(
        self,
        query: Tensor,
        cache: Cache,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
        trace: bool = False,
    ) -> tuple[Tensor, Cache]:
        """Compute self-attention of T new tokens to the tokens in the cache and to each other.

        For causal relations, `step` over all tokens, one or several at a time, equals one `call`. With an
        `attention_mask`, the new tokens may also be T candidates for one position, each of which attends to the tokens
        of its own hypothesis.

        Args:
            query: (B, T, D), the new tokens.
            cache: the return value of `empty_cache` or of an earlier step.
            cache_index: integer scalar, the number of tokens written before; it may exceed the size of the cache.
            positions: integers (B, T), the positions of the new tokens.
            padding_mask: booleans (B, T), False at new tokens that are padding, which no token may attend to.
            attention_mask: booleans (B, T, S) or (1, T, S), True where a new token may attend to a token, in the order
                in which tokens were written; S is at least `cache_index` + T. The new tokens then share one position.
            kv_cache: how the cache is stored, the same in all steps (see `ops.KVCache`).
            trace: not used: the cache keeps the entries of earlier tokens.

        Returns:
            The output (B, T, D), and the cache with the new tokens.
        """
        del trace
        positions = ops.cast(positions, "int32")
        query, key, value = self._heads(query, positions=positions)
        new = {
            "key": key,
            "value": value,
            "positions": positions if padding_mask is None else ops.where(padding_mask, positions, -1),
        }
        size = cache["positions"].shape[1]
        kv_cache = kv_cache.for_window(self._window, size)
        if attention_mask is not None:
            attention_mask = kv_cache.entries_mask(attention_mask, cache_index + query.shape[1], size)
        entries, cache = kv_cache.write(cache, new, cache_index, are_candidates=attention_mask is not None)
        keys, values, key_positions = kv_cache.read(entries, self.num_kv_heads)
        heads = kt_ops.attention(
            query,
            keys,
            values,
            self.relation,
            score=self.score,
            bias=self._bias(),
            mask=masks.with_head_axis(attention_mask),
            padding_mask=key_positions >= 0,
            query_positions=positions,
            key_positions=key_positions,
        )
        return self._merge(heads), cache

    def select(self, cache: Cache, index: Tensor) -> Cache:
        """Return the cache: entries are never moved, and an `attention_mask` selects those of each hypothesis."""
        del index
        return cache

    def queries(self, query: Tensor, positions: Tensor | None = None) -> Tensor:
        """Project a query (B, T, D) to the queries (B, T, N, H) of the heads, with their encoding."""
        queries = self._split(self.query_projection(query), self.num_heads, self.key_dim)
        queries = queries if self.query_norm is None else self.query_norm(queries)
        encoding = self.position_encoding
        return queries if encoding is None else encoding.queries(queries, positions)

    def project(self, memory: Tensor) -> dict[str, Tensor]:
        """Project a memory (B, S, D') to keys (B, K, S, H) and values (B, K, S, V), for `attend`."""
        keys, values = self._keys_and_values(memory, memory)
        return {"key": _heads_first(keys), "value": _heads_first(values)}

    def attend(
        self,
        query: Tensor,
        projected: dict[str, Tensor],
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Compute cross-attention of a query (B, T, D) to a memory projected by `project`."""
        heads = kt_ops.attention(
            self.queries(query, positions),
            _heads_first(projected["key"]),
            _heads_first(projected["value"]),
            self.relation,
            score=self.score,
            bias=self._bias(),
            padding_mask=padding_mask,
            query_positions=positions,
            kernel=self.kernel,
        )
        return self._merge(heads)

    def _heads(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, N, H), keys (B, S, K, H) and values (B, S, K, V)."""
        value = query if value is None else value
        key = value if key is None else key
        return self.queries(query, positions), *self._keys_and_values(key, value, positions)

    def _keys_and_values(self, key: Tensor, value: Tensor, positions: Any = None) -> tuple[Tensor, Tensor]:
        keys = self._split(self.key_projection(key), self.num_kv_heads, self.key_dim)
        keys = keys if self.key_norm is None else self.key_norm(keys)
        values = self._split(self.value_projection(value), self.num_kv_heads, self.value_dim)
        encoding = self.position_encoding
        return keys if encoding is None else encoding.keys(keys, positions), values

    def _bias(self) -> kt_ops.PositionBias | None:
        return None if self.position_encoding is None else self.position_encoding.bias()

    @property
    def _window(self) -> int | None:
        """The bandwidth of the relation on the left, or None if unbounded."""
        return self.relation.bandwidth()[0]

    @staticmethod
    def _split(projected: Tensor, heads: int, size: int) -> Tensor:
        return ops.reshape(projected, [-1, ops.shape(projected)[1], heads, size])  # (B, T, heads, size)

    def _merge(self, heads: Tensor) -> Tensor:
        shape = [-1, ops.shape(heads)[1], self.num_heads * self.value_dim]
        return self.output_projection(ops.reshape(heads, shape))  # (B, T, D)


def _heads_first(tensor: Tensor) -> Tensor:
    """Transpose (B, S, K, H) to (B, K, S, H), the layout of a projected memory, or back."""
    return ops.transpose(tensor, (0, 2, 1, 3))
