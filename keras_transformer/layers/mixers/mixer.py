"""The interface of token mixers, and the base class of recurrent mixers."""

from collections.abc import Callable
from typing import Any, Protocol

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers import masks
from keras_transformer.ops.indexing import pick
from keras_transformer.ops.kv_cache import State
from keras_transformer.typing import Tensor


class Mixer(Protocol):
    """A layer that mixes the tokens of a sequence: the self-attention of a block, or a recurrent layer instead.

    `MultiHeadAttention` and `RecurrentMixer` have this interface, which `DecoderBlock` calls. The state of generation
    is a dictionary of tensors.
    """

    def __call__(self, inputs: Tensor, **masks: Any) -> Tensor:
        """Return the outputs (B, T, D) for a sequence (B, T, D); for the masks, see `MultiHeadAttention`."""

    def empty_cache(
        self,
        batch_size: Any,
        length: Any,
        hypotheses: int = 1,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> State:
        """Return the state before the first token, for `length` tokens."""

    def step(
        self,
        inputs: Tensor,
        cache: State,
        *,
        cache_index: Any,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
        trace: bool = False,
    ) -> tuple[Tensor, State]:
        """Return the outputs (B, T, D) of T new tokens, and the state after them; see `MultiHeadAttention.step`."""

    def select(self, cache: State, index: Tensor) -> State:
        """Return the state in which hypothesis r continues hypothesis `index[:, r]`, integers (B, R).

        A layer whose state has an entry for each token returns the state unchanged: the `attention_mask` of `step`
        selects the entries of a hypothesis.
        """


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentMixer(ConfiguredLayer):
    r"""Base class of recurrent layers that replace the self-attention of a `DecoderBlock`.

    $$h_t, y_t = f(h_{t-1}, x_t)$$

    A subclass implements `zero_state` and `scan`, and creates its weights in `build`. Models with such a layer train
    and generate like those with attention: with every sampler and constraint, streamed, and in exports. The state has
    a fixed size, so that the cost of a token does not depend on the number of earlier ones.

    In generation the state has a second axis for hypotheses, (B, R, …).

    Args:
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: booleans (B, T), False at padding, which does not change the state; merged with the mask that
            Keras propagates. Other masks of `MultiHeadAttention` and texts packed in one row are not supported.

    Shapes:
        input and output: (B, T, D)

    Raises:
        ValueError: if an `attention_mask`, `segment_ids` or `edges` is given.

    Example:
        >>> @keras.saving.register_keras_serializable()
        ... class Average(RecurrentMixer):
        ...     def zero_state(self, batch_size):
        ...         return {"mean": keras.ops.zeros((batch_size, self.size)), "count": keras.ops.zeros((batch_size, 1))}
        ...
        ...     def build(self, input_shape):
        ...         self.size = input_shape[-1]
        ...
        ...     def scan(self, inputs, state, mask, every):
        ...         return recurrence(self.update, inputs, state, mask, every)
        ...
        ...     def update(self, inputs, state):
        ...         count = state["count"] + 1
        ...         mean = state["mean"] + (inputs - state["mean"]) / count
        ...         return mean, {"mean": mean, "count": count}
        >>> Average()(keras.ops.ones((2, 5, 16))).shape
        TensorShape([2, 5, 16])
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def zero_state(self, batch_size: Any) -> State:
        """Return the state before the first token: tensors (B, …), whose other sizes are static.

        Use float32: rounding errors of smaller types accumulate over the tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `zero_state`.")

    def scan(self, inputs: Tensor, state: State, mask: Tensor | None, every: bool) -> tuple[Tensor, State]:
        """Return the outputs of consecutive tokens, and the state after them.

        Args:
            inputs: (B, T, D).
            state: the state before the first token.
            mask: booleans (B, T), False at padding, which comes after the tokens of a row and must not change the
                state; its outputs are not used. None without padding.
            every: True to return the states after each token, tensors (B, T, …), instead of the last state, tensors
                (B, …); T is then small.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `scan`.")

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        *,
        key_lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        edges: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs (B, T, D)."""
        del positions, training
        del key_lengths  # padding at the end changes no earlier output
        for name, values in (
            ("attention_mask", attention_mask),
            ("segment_ids", segment_ids),
            ("edges", edges),
        ):
            if values is not None:
                raise ValueError(
                    f"`{name}` must be None for {type(self).__name__}. Received: {name}={values}"
                )
        padding_mask = masks.merge(padding_mask, mask, inputs_mask)
        return self._scan(inputs, self.zero_state(ops.shape(inputs)[0]), padding_mask)[0]

    def empty_cache(
        self,
        batch_size: Any,
        length: Any = None,
        hypotheses: int = 1,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> State:
        """Return the state before the first token, (B, 1, …); `select` repeats it for each hypothesis."""
        del length, hypotheses, kv_cache
        return {name: ops.expand_dims(values, 1) for name, values in self.zero_state(batch_size).items()}

    def step(
        self,
        inputs: Tensor,
        cache: State,
        *,
        cache_index: Any = None,
        positions: Tensor | None = None,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
        trace: bool = False,
    ) -> tuple[Tensor, State]:
        """Compute the outputs of T new tokens.

        Args:
            inputs: (B, T, D), the new tokens. If the state has R > 1 hypotheses, T is R, and each token continues one
                hypothesis; otherwise the tokens are consecutive.
            cache: the return value of `empty_cache`, `select` or an earlier step.
            cache_index: not used; nor are `positions`, `attention_mask` and `kv_cache`.
            positions: integers (B, T).
            padding_mask: booleans (B, T), False at padding, of consecutive tokens.
            attention_mask: booleans.
            kv_cache: how keys and values are stored.
            trace: True for consecutive tokens that continue the last state of the cache. The new cache then has all
                states, (B, R + T, …): the R states of the cache, and one after each token, for `select`.

        Returns:
            The output (B, T, D) and the new state.
        """
        del cache_index, positions, attention_mask, kv_cache
        hypotheses = next(iter(cache.values())).shape[1]
        if trace:
            last = {name: values[:, -1] for name, values in cache.items()}
            outputs, states = self.scan(inputs, last, padding_mask, True)
            return outputs, {
                name: ops.concatenate([values, states[name]], axis=1) for name, values in cache.items()
            }
        if hypotheses == 1:
            outputs, state = self._scan(
                inputs, {name: values[:, 0] for name, values in cache.items()}, padding_mask
            )
            return outputs, {name: ops.expand_dims(values, 1) for name, values in state.items()}
        state = {
            name: ops.reshape(values, [-1, *values.shape[2:]]) for name, values in cache.items()
        }  # (B·R, …)
        outputs, state = self.scan(ops.reshape(inputs, [-1, 1, inputs.shape[-1]]), state, None, False)
        state = {
            name: ops.reshape(values, [-1, hypotheses, *values.shape[1:]]) for name, values in state.items()
        }
        return ops.reshape(outputs, [-1, hypotheses, outputs.shape[-1]]), state

    def select(self, cache: State, index: Tensor) -> State:
        """Return the states (B, R, …) of the hypotheses or tokens `index`, integers (B, R)."""
        return {name: pick(values, index) for name, values in cache.items()}

    def compute_output_shape(self, input_shape: Any, *_: Any, **__: Any) -> Any:
        """Return the shape of the inputs."""
        return input_shape

    def _scan(self, inputs: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
        """Return the outputs and last state of consecutive tokens, which may have padding at any place."""
        if mask is None or inputs.shape[1] == 1:
            return self.scan(inputs, state, mask, False)
        mask = ops.cast(mask, "bool")
        count = ops.cumsum(ops.cast(mask, "int32"), axis=1)  # (B, T), the number of tokens so far
        column = ops.arange(ops.shape(count)[1], dtype="int32")
        # The column of token t (from 0) is the number of columns with a count of at most t.
        order = ops.sum(ops.cast(count[:, None, :] <= column[:, None], "int32"), axis=2)
        order = ops.minimum(order, ops.shape(count)[1] - 1)
        outputs, state = self.scan(
            ops.take_along_axis(inputs, order[:, :, None], axis=1), state, column < count[:, -1:], False
        )
        return ops.take_along_axis(outputs, ops.maximum(count - 1, 0)[:, :, None], axis=1), state


def recurrence(
    update: Callable[[Tensor, State], tuple[Tensor, State]],
    inputs: Tensor,
    state: State,
    mask: Tensor | None,
    every: bool,
) -> tuple[Tensor, State]:
    """Implement `RecurrentMixer.scan` by a function `update` of one token (B, D) and the state before it.

    `update` returns the output (B, D) of the token and the state after it. The other arguments and the results are as
    in `scan`. The loop over the tokens is unrolled for at most `UNROLLED` tokens.
    """
    count = inputs.shape[1]
    if not isinstance(count, int):
        return _exportable_recurrence(update, inputs, state, mask)

    def step(carry: dict[str, Any], token: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        output, new = _updated(update, token["inputs"], carry["state"], token.get("mask"))
        carry = {"output": output, "state": new}
        return carry, carry

    tokens = {"inputs": inputs} if mask is None else {"inputs": inputs, "mask": mask}
    if count <= UNROLLED:
        carry, steps = {"state": state}, []
        for index in range(count):
            carry, _ = step(carry, {name: values[:, index] for name, values in tokens.items()})
            steps.append(carry)
        results = keras.tree.map_structure(lambda *tensors: ops.stack(tensors, axis=1), *steps)
    else:
        output, _ = update(inputs[:, 0], state)  # for its shape
        carry = {"output": ops.zeros_like(output), "state": state}
        carry, results = ops.scan(step, carry, {name: _swapped(values) for name, values in tokens.items()})
        results = keras.tree.map_structure(_swapped, results)
    return results["output"], results["state"] if every else carry["state"]


def _exportable_recurrence(
    update: Callable[[Tensor, State], tuple[Tensor, State]], inputs: Tensor, state: State, mask: Tensor | None
) -> tuple[Tensor, State]:
    """Return the outputs and last state for any number of tokens; `ops.scan` cannot be converted to ONNX."""
    first, _ = update(inputs[:, 0], state)  # for its shape
    column = ops.arange(ops.shape(inputs)[1], dtype="int32")[:, None]
    outputs = ops.zeros_like(inputs[:, :, :1], first.dtype) + ops.zeros_like(first)[:, None]

    def step(index: Tensor, state: State, outputs: Tensor) -> tuple[Tensor, State, Tensor]:
        is_token = None if mask is None else ops.take(mask, index, axis=1)
        output, state = _updated(update, ops.take(inputs, index, axis=1), state, is_token)
        return index + 1, state, ops.where(ops.equal(column, index), output[:, None], outputs)

    start = (ops.zeros((), "int32"), state, outputs)
    _, state, outputs = ops.while_loop(lambda index, *_: index < ops.shape(inputs)[1], step, start)
    return outputs, state


def _updated(
    update: Callable[[Tensor, State], tuple[Tensor, State]], token: Tensor, state: State, mask: Tensor | None
) -> tuple[Tensor, State]:
    """Return the output of a token and the new state, which is the old one at padding, where the mask is False."""
    output, new = update(token, state)
    if mask is None:
        return output, new
    return output, {
        name: ops.where(ops.reshape(mask, [-1] + [1] * (len(values.shape) - 1)), values, state[name])
        for name, values in new.items()
    }


UNROLLED = 8
"""The largest number of tokens for which `recurrence` unrolls the loop."""


def _swapped(tensor: Tensor) -> Tensor:
    """Swap the first two axes."""
    return ops.transpose(tensor, (1, 0, *range(2, len(tensor.shape))))
