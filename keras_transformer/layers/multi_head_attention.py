"""Multi-head attention over any relation."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.configuration import ConfiguredLayer, serialized
from keras_transformer.layers import initializers, masks, score_layers
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.layers.quantization import matrix_arguments
from keras_transformer.layers.residual import NORMS, new_norm
from keras_transformer.ops.kv_cache import State
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(ConfiguredLayer):
    r"""Multi-head attention on learned projections, with any relation, score and position encoding.

    $$\mathrm{MultiHead}(X, Y) = [h_1; \dots; h_N] W^O, \quad
    h_n = \mathrm{Attention}(X W^Q_n, Y W^K_n, Y W^V_n)$$

    Self-attention if no `value` is given (Y = X), else cross-attention.

    Args:
        num_heads: N.
        key_dim: H, the size of a head's queries and keys, by default D / N.
        value_dim: V, the size of a head's values, by default H.
        num_kv_heads: K, a divisor of N, for grouped-query attention (1 for multi-query); by default N.
        relation: which positions may attend to which: a `relations.Relation`, its name ("causal"), or None for all.
        position_encoding: the position encoding within the attention: "rotary", "alibi", "relative_bias" (T5's),
            "relative_sinusoidal" (Transformer-XL's), a layer (a `PositionEncoding`), or None.
        score: the score of queries and keys: an object of `ops.scores`, a layer (`AdditiveScore`, `BilinearScore`,
            `GATScore`), or the name of one ("scaled_dot_product", "cosine", "additive", …).
        kernel: the attention implementation, see `ops.attention`.
        dropout: dropout rate for attention weights.
        use_bias: whether the four projections have biases.
        seed: an integer for reproducible dropout.
        qkv_bias: whether the query, key and value projections have biases, by default `use_bias`.
        key_bias: whether the key projection has a bias, by default `qkv_bias`; it does not change the softmax of
            scaled dot products.
        kernel_initializer: initializer of the matrices of the four projections.
        query_initializer: initializer of the query projection's matrix, by default `kernel_initializer`.
        output_initializer: initializer of the output projection's matrix, by default `kernel_initializer`.
        bias_initializer: initializer of the biases of the four projections.
        head_norm: "rms" or "layer" to normalize each head's query and key before positions are encoded, or None.
        head_norm_epsilon: the epsilon of these norms.
        shared_query_key: whether queries and keys have the same projection, so that κ is a symmetric function of two
            positions for a score that compares features by a dot product, up to the position encoding and `head_norm`.
        kernel_regularizer: regularizer of the matrices of the four projections.
        bias_regularizer: regularizer of their biases.
        activity_regularizer: regularizer of their outputs.
        kernel_constraint: constraint of their matrices.
        bias_constraint: constraint of their biases.
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
        use_causal_mask: whether to mask later positions, in addition to those that `relation` masks.
        return_attention_scores: whether to return the attention weights, too.
        mask: passed by Keras (as are `query_mask`, `value_mask` and `key_mask`) and merged with `padding_mask`.

    Shapes:
        output: (B, T, D); with `return_attention_scores` also the weights, float32 (B, N, T, S), before dropout

    Raises:
        ValueError: if `num_kv_heads` does not divide `num_heads`, a name is unknown, `num_heads` does not divide D for
            the default `key_dim`, or queries and keys cannot share a projection.

    Example:
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=8, relation="causal")
        >>> layer(keras.ops.ones((2, 5, 32))).shape
        TensorShape([2, 5, 32])

    References:
        Vaswani et al. (2017), section 3.2.2; Ainslie et al., "GQA" (2023); `head_norm`: Henry et al., "Query-Key
        Normalization for Transformers" (2020), as in Dehghani et al., "Scaling Vision Transformers to 22 Billion
        Parameters" (2023), section 2; `shared_query_key`: Tsai et al., "Transformer Dissection" (2019), section 3.2.
    """

    key_dim: int  # set by `build`, if not given
    value_dim: int
    query_norm: Any = None
    key_norm: Any = None

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
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
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        head_norm: str | None = None,
        head_norm_epsilon: float = 1e-6,
        shared_query_key: bool = False,
        key_bias: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim  # type: ignore[assignment]
        self.value_dim = key_dim if value_dim is None else value_dim  # type: ignore[assignment]
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive_integer(num_heads=num_heads, num_kv_heads=self.num_kv_heads)
        for name, size in (("key_dim", key_dim), ("value_dim", value_dim)):
            if size is not None:
                check_positive_integer(**{name: size})
        divides = num_heads % self.num_kv_heads == 0
        check(divides, "divide {num_heads}", num_kv_heads=num_kv_heads, num_heads=num_heads)
        shares = self.num_kv_heads == num_heads or not shared_query_key
        check(
            shares,
            "equal {num_heads} for a shared projection",
            num_kv_heads=num_kv_heads,
            num_heads=num_heads,
        )
        self.shared_query_key = shared_query_key
        self.relation = relations.get(relation)
        self.position_encoding = attention_encodings.get(position_encoding, num_heads, key_dim)
        self.score = score_layers.get(score)
        self.kernel = kt_ops.check_kernel(kernel)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias = use_bias
        self.qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self.key_bias = self.qkv_bias if key_bias is None else key_bias
        if shared_query_key:
            fits = self.key_bias == self.qkv_bias
            check(fits, "equal {qkv_bias} for a shared projection", key_bias=key_bias, qkv_bias=self.qkv_bias)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.query_initializer = initializers.get(query_initializer)
        self.output_initializer = initializers.get(output_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        if head_norm is not None:
            check_one_of(tuple(NORMS), head_norm=head_norm)
        self.head_norm, self.head_norm_epsilon = head_norm, head_norm_epsilon
        self.projection_options = {  # as `keras.layers.MultiHeadAttention` passes them on, activities too
            "kernel_regularizer": keras.regularizers.get(kernel_regularizer),
            "bias_regularizer": keras.regularizers.get(bias_regularizer),
            "activity_regularizer": keras.regularizers.get(activity_regularizer),
            "kernel_constraint": keras.constraints.get(kernel_constraint),
            "bias_constraint": keras.constraints.get(bias_constraint),
        }
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
        if self.key_dim is None:
            self.key_dim = _head_dim(query_shape[-1], self.num_heads)
            if self.position_encoding is not None:
                self.position_encoding.check(self.num_heads, self.key_dim)
        if self.value_dim is None:
            self.value_dim = self.key_dim
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        self.query_projection = self._project_to(self.num_heads * self.key_dim, "query", query_shape)
        if self.shared_query_key:
            shape = tuple(key_shape)
            fits = shape[-1] == query_shape[-1]
            check(fits, f"have the size {query_shape[-1]} of the query for a shared projection", key=shape)
            self.key_projection = self.query_projection
        else:
            self.key_projection = self._project_to(self.num_kv_heads * self.key_dim, "key", key_shape)
        self.value_projection = self._project_to(self.num_kv_heads * self.value_dim, "value", value_shape)
        heads_shape = (*query_shape[:-1], self.num_heads * self.value_dim)
        self.output_projection = self._project_to(query_shape[-1], "output", heads_shape)
        if self.head_norm is not None:
            self.query_norm, self.key_norm = (
                new_norm(self.head_norm, self.head_norm_epsilon, dtype=self.dtype_policy, name=name)
                for name in ("query_norm", "key_norm")
            )
            for norm in (self.query_norm, self.key_norm):
                norm.build((None, None, None, self.key_dim))
        if isinstance(self.score, score_layers.ScoreLayer):
            self.score.build((self.num_heads, self.num_kv_heads, self.key_dim))
        if self.position_encoding is not None and not self.position_encoding.built:  # attentions may share it
            self.position_encoding.build((*query_shape[:-1], self.num_heads, self.key_dim))

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
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the attention output, projected to the size of the query, and the weights if requested."""
        keras_masks = (mask, query_mask) if value is None else (value_mask, key_mask)
        dropout = self.dropout if training else 0.0
        queries, keys, values = self._heads(query, value, key, positions)
        arguments = {
            "relation": self.relation & relations.Causal() if use_causal_mask else self.relation,
            **self._arguments(value, attention_mask, segment_ids, edges, positions),
            "padding_mask": masks.merge(padding_mask, *(keras_masks if key_lengths is None else ())),
            "key_lengths": key_lengths,
        }
        heads = kt_ops.attention(
            queries,
            keys,
            values,
            **arguments,
            dropout=dropout,
            seed=self.seed_generator.next() if dropout else None,
            kernel=self.kernel,
        )
        output = self.merge_heads(heads)
        if not return_attention_scores:
            return output
        return output, kt_ops.attention_weights(queries, keys, **arguments)

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
        """Return the attention weights of `call`, float32 (B, N, T, S), without the masks that Keras propagates."""
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
    ) -> State:
        """Return the empty cache for `step` with the same `kv_cache`.

        If the relation has bandwidth k on the left, the cache holds k + 1 positions with `hypotheses` entries each, and
        new tokens replace the oldest.
        """
        return kv_cache.allocate(
            batch_size,
            length,
            num_heads=self.num_kv_heads,
            key_dim=self.encoded_key_dim,
            value_dim=self.value_dim,
            dtype=self.compute_dtype,
            window=self._window,
            hypotheses=hypotheses,
        )

    @property
    def encoded_key_dim(self) -> int:
        """The size of the keys in the cache, with encoded positions."""
        encoding = self.position_encoding
        return self.key_dim if encoding is None else encoding.encoded_dim(self.key_dim)

    def step(
        self,
        query: Tensor,
        cache: State,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
        trace: bool = False,
    ) -> tuple[Tensor, State]:
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
            attention_mask: booleans (B, T, S) or (1, T, S), True where a new token may attend to a token; the S tokens
                are in the order in which they were written, and S is at least `cache_index` + T. With this mask, the
                new tokens are candidates for one position.
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
        # Causal attention from the last position excludes no entry.
        is_last = kv_cache.appends and (attention_mask is not None or query.shape[1] == 1)
        heads = kt_ops.attention(
            query,
            keys,
            values,
            relations.Full() if is_last and self.relation == relations.Causal() else self.relation,
            score=self.score,
            bias=self._bias(),
            mask=masks.with_head_axis(attention_mask),
            padding_mask=key_positions >= 0,
            query_positions=positions,
            key_positions=key_positions,
        )
        return self.merge_heads(heads), cache

    def select(self, cache: State, index: Tensor) -> State:
        """Return the cache unchanged: the `attention_mask` of `step` selects the entries of a hypothesis."""
        del index
        return cache

    def queries(self, query: Tensor, positions: Tensor | None = None) -> Tensor:
        """Project a query (B, T, D) to the queries (B, T, N, H) of the heads, with encoded positions."""
        queries = self._split(self.query_projection(query), self.num_heads, self.key_dim, self.query_norm)
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
        return self.merge_heads(heads)

    def enable_lora(self, rank: int, lora_alpha: float | None = None) -> None:
        """Add low-rank adapters to the four projections, and freeze all other weights of the layer.

        For some projections only, use `enable_lora` of `query_projection`, `key_projection`, `value_projection` or
        `output_projection`, which are `keras.layers.Dense` and leave their biases trainable.

        Args:
            rank: the rank of the adapters.
            lora_alpha: the scale of the adapters times `rank`, by default `rank`.

        References:
            Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022).
        """
        for weight in self.trainable_weights:
            weight.trainable = False
        names = ("query", "value", "output") if self.shared_query_key else ("query", "key", "value", "output")
        for name in names:
            getattr(self, f"{name}_projection").enable_lora(rank, lora_alpha=lora_alpha)

    def compute_output_spec(
        self, query: Any, value: Any = None, *_: Any, return_attention_scores: bool = False, **__: Any
    ) -> Any:
        """Return the spec of the output, and of the weights if requested."""
        output = keras.KerasTensor(query.shape, self.compute_dtype)
        batch, length = query.shape[:2]
        weights = (batch, self.num_heads, length, (query if value is None else value).shape[1])
        return (output, keras.KerasTensor(weights, "float32")) if return_attention_scores else output

    def compute_output_shape(self, query_shape: tuple[int | None, ...], *_: Any, **__: Any) -> Any:
        """Return the shape of the query."""
        return query_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the first input."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), **serialized(self.projection_options)}

    def _project_to(self, size: int, name: str, input_shape: Any) -> keras.layers.Dense:
        initializer = {"query": self.query_initializer, "output": self.output_initializer}.get(name)
        layer = keras.layers.Dense(
            size,
            use_bias={"output": self.use_bias, "key": self.key_bias}.get(name, self.qkv_bias),
            kernel_initializer=initializers.clone(initializer or self.kernel_initializer),
            bias_initializer=initializers.clone(self.bias_initializer),
            **self.projection_options,
            name=name,
            **matrix_arguments(self.dtype_policy),
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
        keys = self._split(self.key_projection(key), self.num_kv_heads, self.key_dim, self.key_norm)
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
    def _split(projected: Tensor, heads: int, size: int, norm: Any = None) -> Tensor:
        shape = [-1, ops.shape(projected)[1], heads, size]
        split = ops.reshape(projected, shape)  # (B, T, heads, size)
        # The conversion to ONNX does not know the shape of a norm's output.
        return split if norm is None else ops.reshape(norm(split), shape)

    def merge_heads(self, heads: Tensor) -> Tensor:
        """Project the outputs (B, T, N, V) of the heads to the output (B, T, D)."""
        shape = [-1, ops.shape(heads)[1], self.num_heads * self.value_dim]
        return self.output_projection(ops.reshape(heads, shape))  # (B, T, D)

    def _arguments(
        self,
        value: Tensor | None,
        attention_mask: Tensor | None,
        segment_ids: Tensor | None,
        edges: Tensor | None,
        positions: Tensor | None,
    ) -> dict[str, Any]:
        """Return the arguments common to `ops.attention` and `ops.attention_weights`."""
        for name, integers in (("segment_ids", segment_ids), ("positions", positions)):
            if value is not None and integers is not None:
                raise ValueError(f"`{name}` must be None if `value` is passed. Received: both")
        return {
            "score": self.score,
            "bias": self._bias(),
            "mask": masks.with_head_axis(attention_mask),
            "segment_ids": segment_ids,
            "edges": edges,
            "query_positions": positions,
            "key_positions": positions,
        }


@contextlib.contextmanager
def recorded_attention_weights(layers: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Record the attention weights of `MultiHeadAttention` layers while a model that contains them is called.

    Yields:
        A list, filled with the weights (B, N, T, S) of the last call of each layer, as `return_attention_scores`
        returns them.
    """
    weights: list[Any] = [None] * len(layers)

    def recording(index: int, layer: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            output, weights[index] = type(layer).call(layer, *args, **kwargs, return_attention_scores=True)
            return output

        return call

    for index, layer in enumerate(layers):
        layer.call = recording(index, layer)  # overrides the method of this layer
    try:
        yield weights
    finally:
        for layer in layers:
            del layer.call


def _head_dim(model_dim: int, num_heads: int) -> int:
    """Return `model_dim` / `num_heads`, which must be an integer."""
    check(model_dim % num_heads == 0, "divide {model_dim}", num_heads=num_heads, model_dim=model_dim)
    return model_dim // num_heads


def _heads_first(tensor: Tensor) -> Tensor:
    """Transpose (B, S, K, H) to (B, K, S, H), the layout of a projected memory, or back."""
    return ops.transpose(tensor, (0, 2, 1, 3))
