"""Self-attention to the current and earlier segments of a long text, as in Transformer-XL."""

from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.layers import masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class SegmentAttention(MultiHeadAttention):
    r"""Self-attention whose keys and values also come from the inputs of earlier calls, without their gradient.

    $$Y_\tau = \mathrm{MultiHead}(X_\tau,\ [\mathrm{sg}(M_\tau); X_\tau]), \qquad
    M_{\tau+1} = \text{last } M \text{ rows of } [M_\tau; X_\tau]$$

    with $\mathrm{sg}$ for "stop gradient". Row b of each call continues row b of the call before, until `reset_state`.
    Without a `batch_size` there is no memory, and the layer is a `MultiHeadAttention`; weights are the same.
    Generation (`step`) uses its cache instead of the memory. The position encoding must be relative.

    Args:
        num_heads: N.
        memory_length: M, the number of tokens of earlier calls.
        batch_size: B, the number of rows of each call; None for no memory.
        relation: which positions may attend to which, where the memory precedes the inputs.
        **kwargs: other arguments of `MultiHeadAttention`.

    Call arguments:
        query: (B, T, D).
        padding_mask: booleans (B, T), False at padding, to which later calls do not attend either.
        key_lengths: integers (B,), the lengths of rows padded at the end.

    Shapes:
        memory: (B, M, D)
        memory_mask: (B, M)
        output: (B, T, D)

    Raises:
        ValueError: if another number of rows, a mask that is not for padding, segments or edges are given to a layer
            with memory.

    Example:
        >>> layer = SegmentAttention(4, memory_length=8, batch_size=2, position_encoding="rotary")
        >>> first, second = keras.random.normal((2, 2, 5, 32))
        >>> layer(first).shape, layer(second).shape  # `second` attends to `first`
        (TensorShape([2, 5, 32]), TensorShape([2, 5, 32]))
        >>> layer.reset_state()

    References:
        Dai et al., "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (2019), section 3.2.
    """

    def __init__(
        self,
        num_heads: int,
        memory_length: int,
        batch_size: int | None = None,
        relation: Any = "causal",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, relation=relation, **kwargs)
        check_positive_integer(memory_length=memory_length)
        if batch_size is not None:
            check_positive_integer(batch_size=batch_size)
        self.memory_length, self.batch_size = memory_length, batch_size

    def build(self, query_shape: Any, *shapes: Any) -> None:
        """Create the projections and the memory."""
        super().build(query_shape, *shapes)
        if self.batch_size is not None:
            shape = self.batch_size, self.memory_length
            state: dict[str, Any] = {"initializer": "zeros", "trainable": False}
            self.memory = self.add_weight(name="memory", shape=(*shape, query_shape[-1]), **state)
            self.memory_mask = self.add_weight(name="memory_mask", shape=shape, dtype="bool", **state)

    def reset_state(self) -> None:
        """Forget the earlier calls, before the first segments of other texts."""
        if self.batch_size is not None:
            for state in (self.memory, self.memory_mask):
                state.assign(ops.zeros(state.shape, state.dtype))

    def call(  # type: ignore[override]  # self-attention only
        self,
        query: Tensor,
        *,
        padding_mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        training: bool | None = None,
        **arguments: Any,
    ) -> Any:
        """Return the attention output, and write the inputs to the memory."""
        if self.batch_size is None:
            padding: Any = {"padding_mask": padding_mask, "key_lengths": key_lengths}
            keras_masks: Any = {"mask": mask, "query_mask": query_mask}
            return super().call(query, **padding, **keras_masks, **arguments, training=training)
        unsupported = sorted(
            name for name, value in arguments.items() if value is not None and value is not False
        )
        check(not unsupported, "be None for a layer with memory", **dict.fromkeys(unsupported, "given"))
        check(
            query.shape[0] in (None, self.batch_size),
            f"have batch_size={self.batch_size} rows, each of which continues a row of the call before",
            query=tuple(query.shape),
        )
        size, length = self.memory_length, ops.shape(query)[1]
        if key_lengths is not None:
            padding_mask = ops.arange(length) < ops.cast(key_lengths, "int32")[:, None]
            mask = query_mask = None
        present = masks.merge(padding_mask, mask, query_mask)
        present = ops.ones_like(query[..., 0], "bool") if present is None else present
        value = ops.concatenate([ops.cast(self.memory, query.dtype), query], axis=1)
        present = ops.concatenate([self.memory_mask, present], axis=1)
        positions = ops.arange(size + length)
        keys, values = self._keys_and_values(value, value, positions)
        dropout = self.dropout if training else 0.0
        heads = kt_ops.attention(
            self.queries(query, positions[size:]),
            keys,
            values,
            self.relation,
            score=self.score,
            bias=self._bias(),
            padding_mask=present,
            query_positions=positions[size:],
            key_positions=positions,
            dropout=dropout,
            seed=self.seed_generator.next() if dropout else None,
            kernel=self.kernel,
        )
        self.memory.assign(ops.stop_gradient(value[:, -size:]))
        self.memory_mask.assign(present[:, -size:])
        return self.merge_heads(heads)
