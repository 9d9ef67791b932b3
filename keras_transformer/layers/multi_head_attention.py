"""Multi-head attention over any relation, with a key/value cache for generation."""

from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.arguments import check_positive_integer
from keras_transformer.layers import initializers, masks, score_layers
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor

Cache = dict[str, Tensor]


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    r"""Multi-head attention on learned projections, with any relation, score and position encoding.

    $$\mathrm{MultiHead}(X, Y) = [h_1; \dots; h_N] W^O, \quad
    h_n = \mathrm{Attention}(X W^Q_n, Y W^K_n, Y W^V_n)$$

    Self-attention if no `value` is given (Y = X), else cross-attention.

    Args:
        num_heads: N.
        key_dim: H, the size of a head's queries and keys.
        value_dim: V, the size of a head's values, by default H.
        num_kv_heads: K, a divisor of N, for grouped-query attention (1 for multi-query); by default N.
        relation: which positions may attend to which: a `relations.Relation`, its name ("causal"), or None for all.
        position_encoding: the position encoding within the attention: "rotary", "alibi", "relative_bias" (T5's), a
            layer (`RotaryPositions`, `ALiBi`, `RelativeBias`), or None.
        score: the score of queries and keys: an object of `ops.scores`, a layer (`AdditiveScore`, `BilinearScore`,
            `GATScore`), or the name of one ("scaled_dot_product", "cosine", "additive", …).
        kernel: the attention implementation, see `ops.attention`.
        dropout: dropout rate for attention weights.
        use_bias: whether the four projections have biases.
        seed: an integer for reproducible dropout.
        qkv_bias: whether the query, key and value projections have biases, by default `use_bias`.
        kernel_initializer: initializer of the matrices of the four projections.
        query_initializer: initializer of the query projection's matrix, by default `kernel_initializer`.
        output_initializer: initializer of the output projection's matrix, by default `kernel_initializer`.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        query: (B, T, D).
        value: (B, S, D'), by default `query`.
        key: (B, S, D'), by default `value`.
        attention_mask: booleans (B, T, S), (B, N, T, S) or a shape that broadcasts to them, True for "may attend".
        padding_mask: booleans (B, S), False at keys that are padding.
        key_lengths: integers (B,), see `ops.attention`; the masks that Keras passes are then not used.
        segment_ids: integers (B, T) for self-attention: positions attend only within the same segment.
        edges: integers (B, E, 2), the graph of each sample: [source, target] lets the query `target` attend to the key
            `source`; −1 is padding.
        positions: integers (T,) or (B, T) for relation and position encoding of a self-attention, by default 0, 1, …
        mask: passed by Keras (as are `query_mask`, `value_mask` and `key_mask`) and merged with `padding_mask`.

    Shapes:
        output: (B, T, D)

    Raises:
        ValueError: if a size is not positive, `num_kv_heads` does not divide `num_heads`, or a name is unknown.

    Example:
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=8, relation="causal")
        >>> layer(keras.ops.ones((2, 5, 32))).shape
        TensorShape([2, 5, 32])

    References:
        Vaswani et al. (2017), section 3.2.2; Ainslie et al., "GQA" (2023).
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        num_kv_heads: int | None = None,
        relation: relations.Relation | str | dict[str, Any] | None = None,
        position_encoding: Any = None,
        score: Any = "scaled_dot_product",
        kernel: str = "auto",
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        qkv_bias: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        query_initializer: Any = None,
        output_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive_integer(
            num_heads=num_heads, key_dim=key_dim, value_dim=self.value_dim, num_kv_heads=self.num_kv_heads
        )
        if num_heads % self.num_kv_heads:
            raise ValueError(
                "`num_kv_heads` must divide `num_heads`. "
                f"Received: num_heads={num_heads}, num_kv_heads={num_kv_heads}"
            )
        self.relation = relations.get(relation)
        self.position_encoding = attention_encodings.get(position_encoding, num_heads, key_dim)
        self.score = score_layers.get(score)
        self.kernel = kt_ops.check_kernel(kernel)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias = use_bias
        self.qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.query_initializer = initializers.get(query_initializer)
        self.output_initializer = initializers.get(output_initializer)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        """Create the four projections."""
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            if shape is not None and len(shape) != 3:
                raise ValueError(
                    f"`{name}` must have three axes (batch, length, size). Received: {name}.shape={tuple(shape)}"
                )
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        self.query_projection = self._project_to(self.num_heads * self.key_dim, "query", query_shape)
        self.key_projection = self._project_to(self.num_kv_heads * self.key_dim, "key", key_shape)
        self.value_projection = self._project_to(self.num_kv_heads * self.value_dim, "value", value_shape)
        heads_shape = (*query_shape[:-1], self.num_heads * self.value_dim)
        self.output_projection = self._project_to(query_shape[-1], "output", heads_shape)
        score_layers.build(self.score, (self.num_heads, self.num_kv_heads, self.key_dim))
        attention_encodings.build(self.position_encoding, (*query_shape[:-1], self.num_heads, self.key_dim))

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        segment_ids: Tensor | None = None,
        edges: Tensor | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the attention output, projected to the size of the query."""
        keras_masks = (mask, query_mask) if value is None else (value_mask, key_mask)
        dropout = self.dropout if training else 0.0
        heads = kt_ops.attention(
            *self._heads(query, value, key, positions),
            self.relation,
            **self._arguments(value, attention_mask, segment_ids, edges, positions),
            padding_mask=masks.merge(padding_mask, *(keras_masks if key_lengths is None else ())),
            key_lengths=key_lengths,
            dropout=dropout,
            seed=self.seed_generator.next() if dropout else None,
            kernel=self.kernel,
        )
        return self._merge(heads)

    def attention_weights(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        edges: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the attention weights of `call`, float32 (B, N, T, S); masks of Keras are not applied."""
        queries, keys, _ = self._heads(query, value, key, positions)
        return kt_ops.attention_weights(
            queries,
            keys,
            self.relation,
            **self._arguments(value, attention_mask, segment_ids, edges, positions),
            padding_mask=padding_mask,
        )

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

        Returns:
            The output (B, T, D), and the cache with the new tokens.
        """
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
            score=self._score(),
            bias=self._bias(),
            mask=masks.with_head_axis(attention_mask),
            padding_mask=key_positions >= 0,
            query_positions=positions,
            key_positions=key_positions,
        )
        return self._merge(heads), cache

    def queries(self, query: Tensor, positions: Tensor | None = None) -> Tensor:
        """Project a query (B, T, D) to the queries (B, T, N, H) of the heads, rotated if positions are rotary."""
        queries = self._split(self.query_projection(query), self.num_heads, self.key_dim)
        return attention_encodings.rotate(self.position_encoding, queries, positions)

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
            score=self._score(),
            bias=self._bias(),
            padding_mask=padding_mask,
            query_positions=positions,
            kernel=self.kernel,
        )
        return self._merge(heads)

    def compute_output_shape(self, query_shape: tuple[int | None, ...], *_: Any, **__: Any) -> Any:
        """Return the shape of the query."""
        return query_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the first input."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        sizes = ("num_heads", "key_dim", "value_dim", "num_kv_heads")
        options = ("kernel", "dropout", "use_bias", "seed", "qkv_bias")
        initial = ("kernel_initializer", "query_initializer", "output_initializer")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in (*sizes, *options)},
            "relation": keras.saving.serialize_keras_object(self.relation),
            "position_encoding": keras.saving.serialize_keras_object(self.position_encoding),
            "score": score_layers.serialize(self.score),
            **{name: initializers.serialize(getattr(self, name)) for name in initial},
        }

    def _project_to(self, size: int, name: str, input_shape: Any) -> keras.layers.Dense:
        own = {"query": self.query_initializer, "output": self.output_initializer}.get(name)
        layer = keras.layers.Dense(
            size,
            use_bias=self.use_bias if name == "output" else self.qkv_bias,
            kernel_initializer=initializers.another(own or self.kernel_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(input_shape)
        return layer

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
        values = self._split(self.value_projection(value), self.num_kv_heads, self.value_dim)
        return attention_encodings.rotate(self.position_encoding, keys, positions), values

    def _bias(self) -> kt_ops.PositionBias | None:
        return attention_encodings.bias(self.position_encoding)

    def _score(self) -> kt_ops.scores.Score:
        return score_layers.value(self.score)

    def _arguments(
        self,
        value: Tensor | None,
        attention_mask: Tensor | None,
        segment_ids: Tensor | None,
        edges: Tensor | None,
        positions: Tensor | None,
    ) -> dict[str, Any]:
        """Return the arguments that `ops.attention` and `ops.attention_weights` share."""
        for name, given in (("segment_ids", segment_ids), ("positions", positions)):
            if value is not None and given is not None:
                raise ValueError(f"`{name}` must be None if `value` is given. Received: both")
        return {
            "score": self._score(),
            "bias": self._bias(),
            "mask": masks.with_head_axis(attention_mask),
            "segment_ids": segment_ids,
            "edges": edges,
            "query_positions": positions,
            "key_positions": positions,
        }

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
