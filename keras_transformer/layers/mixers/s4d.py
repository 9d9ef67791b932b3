"""S4D: a diagonal state space model."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.mixers.mixer import RecurrentMixer, recurrence
from keras_transformer.ops.indexing import pick
from keras_transformer.ops.kv_cache import State
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class S4D(RecurrentMixer):
    r"""Diagonal state space model: N complex states for each channel, which decay and rotate.

    $$h_t = \bar A h_{t-1} + \bar B x_t, \quad y_t = 2\, \mathrm{Re}(C h_t) + D x_t, \quad
    \bar A = e^{\Delta A}, \quad \bar B = (\bar A - 1) A^{-1}$$

    The outputs of all channels are mixed by a gated projection of GELU(y). A sequence is computed in chunks of about
    2 √T tokens, each by a convolution with the kernel $2\, \mathrm{Re}(C \bar A^k \bar B)$; states connect the chunks.
    Unlike the weights of attention, the kernel does not depend on the tokens.

    Args:
        state_dim: N, the number of complex states of a channel.
        min_step: the smallest initial Δ.
        max_step: the largest initial Δ.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D), and the others of `RecurrentMixer`.

    Shapes:
        input and output: (B, T, D)

    Example:
        >>> S4D(16)(keras.ops.ones((2, 5, 8))).shape
        TensorShape([2, 5, 8])

    References:
        Gu et al., "On the Parameterization and Initialization of Diagonal State Space Models" (2022): zero-order hold,
        S4D-Lin initialization $A_n = -1/2 + i \pi n$.
    """

    def __init__(
        self, state_dim: int = 32, min_step: float = 0.001, max_step: float = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(state_dim=state_dim)
        if not 0 < min_step <= max_step < math.inf:
            raise ValueError(
                "`min_step` must be positive and at most `max_step`. "
                f"Received: min_step={min_step}, max_step={max_step}"
            )
        self.state_dim = state_dim
        self.min_step, self.max_step = min_step, max_step

    def build(self, input_shape: Any) -> None:
        """Create the weights for inputs of size D."""
        self.size, states = input_shape[-1], self.state_dim
        shape = (self.size, states)
        low, high = math.log(self.min_step), math.log(self.max_step)

        def weight(name: str, shape: tuple[int, ...], initializer: Any) -> Any:
            return self.add_weight(shape=shape, initializer=initializer, name=name, autocast=False)

        self.log_step = weight("log_step", (self.size,), keras.initializers.RandomUniform(low, high))
        self.log_decay = weight("log_decay", shape, keras.initializers.Constant(math.log(0.5)))
        frequencies = np.broadcast_to(math.pi * np.arange(states, dtype="float32"), shape)
        self.frequency = weight("frequency", shape, lambda _, dtype=None: ops.cast(frequencies, dtype))
        normal = [keras.initializers.RandomNormal(stddev=math.sqrt(0.5)) for _ in range(3)]
        self.output_real, self.output_imaginary = (
            weight(f"output_{name}", shape, initializer)
            for name, initializer in zip(("real", "imaginary"), normal, strict=False)
        )
        self.skip = weight("skip", (self.size,), normal[2])
        self.gate = keras.layers.Dense(2 * self.size, dtype=self.dtype_policy, name="gate")
        self.gate.build(input_shape)

    def zero_state(self, batch_size: Any) -> State:
        """Return the state, real and imaginary parts (B, D, N)."""
        zeros = ops.zeros((batch_size, self.size, self.state_dim), "float32")
        return {"real": zeros, "imaginary": zeros}

    def scan(self, inputs: Tensor, state: State, mask: Tensor | None, every: bool) -> tuple[Tensor, State]:
        """Return the outputs and the state; see the base class."""
        values = ops.cast(inputs, "float32")
        if every or inputs.shape[1] == 1:
            outputs, state = recurrence(self._update, values, state, mask, every)
        else:
            outputs, state = self._chunked(values, state, mask)
        outputs = keras.activations.gelu(outputs + self.skip * values, approximate=True)
        outputs, gate = ops.split(self.gate(ops.cast(outputs, inputs.dtype)), 2, axis=-1)
        return outputs * ops.sigmoid(gate), state

    def _update(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """Return y (B, D) of one token (B, D)."""
        (decay_real, decay_imaginary), (input_real, input_imaginary) = self._powers(1.0), self._input()
        real, imaginary = state["real"], state["imaginary"]
        new = {
            "real": decay_real * real - decay_imaginary * imaginary + input_real * token[..., None],
            "imaginary": decay_real * imaginary + decay_imaginary * real + input_imaginary * token[..., None],
        }
        outputs = self.output_real * new["real"] - self.output_imaginary * new["imaginary"]
        return 2 * ops.sum(outputs, axis=-1), new

    def _chunked(self, values: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
        """Return y (B, T, D) of the tokens (B, T, D), padded at the end, and the state after them."""
        length = ops.shape(values)[1]
        size = 2 ** round(math.log2(length) / 2 + 1) if isinstance(length, int) else 64  # Q
        count = (length + size - 1) // size  # C
        if mask is None:
            num_tokens = ops.reshape(ops.cast(length, "int32"), [1])
        else:
            num_tokens = ops.sum(ops.cast(mask, "int32"), axis=1)  # (B,)
        chunks = ops.pad(values, [[0, 0], [0, count * size - length], [0, 0]])
        chunks = ops.reshape(chunks, [-1, count, size, self.size])  # (B, C, Q, D)
        index = np.arange(size)
        # What each chunk adds to the state, and from it the state at the start of each chunk, (B, C, D, N).
        kernel = _product(self._powers(size - 1.0 - index), self._input())
        updates = _einsum("bcqd,qdn->bcdn", chunks, kernel)
        starts = ops.arange(count + 1, dtype="float32")
        distance = starts[:, None] - starts[:count] - 1  # (C + 1, C)
        between = self._powers(size * ops.maximum(distance, 0.0))
        between = [ops.where((distance >= 0)[:, :, None, None], powers, 0.0) for powers in between]
        initial = (state["real"], state["imaginary"])
        starts = [
            earlier + first
            for earlier, first in zip(
                _multiplied("cedn,bedn->bcdn", between, updates),
                _multiplied("cdn,bdn->bcdn", self._powers(size * starts), initial),
                strict=True,
            )
        ]
        output = (self.output_real, self.output_imaginary)
        # The outputs in a chunk: the kernel at the distances of tokens, plus the effect of the state at its start.
        kernel = 2 * ops.sum(_product(_product(self._powers(1.0 * index), self._input()), output)[0], axis=-1)
        distances = index[:, None] - index
        kernel = ops.take(kernel, np.maximum(distances, 0), axis=0)  # (Q, Q, D)
        kernel = ops.where((distances >= 0)[..., None], kernel, 0.0)
        real, _ = _multiplied(
            "qdn,bcdn->bcqd",
            _product(self._powers(1.0 + index), output),
            [states[:, :count] for states in starts],
        )
        outputs = ops.einsum("bcrd,qrd->bcqd", chunks, kernel) + 2 * real
        outputs = ops.reshape(outputs, [-1, count * size, self.size])[:, :length]
        return outputs, self._last_state(chunks, starts, num_tokens, size)

    def _last_state(self, chunks: Tensor, starts: list[Tensor], num_tokens: Tensor, size: int) -> State:
        """Return the state after `num_tokens` (B,) or (1,) tokens, from the states at the starts of chunks."""
        num_tokens = num_tokens + ops.zeros_like(ops.cast(chunks[:, 0, 0, 0], "int32"))
        chunk, within = num_tokens // size, num_tokens % size
        tokens = pick(chunks, ops.minimum(chunk, ops.shape(chunks)[1] - 1)[:, None])[:, 0]  # (B, Q, D)
        exponent = ops.cast(within[:, None] - 1 - ops.arange(size, dtype="int32"), "float32")  # (B, Q)
        tokens = ops.where((exponent >= 0)[:, :, None], tokens, 0.0)
        kernel = _product(self._powers(ops.maximum(exponent, 0.0)), self._input())
        updates = _einsum("bqd,bqdn->bdn", tokens, kernel)
        start = [pick(states, chunk[:, None])[:, 0] for states in starts]
        start = _product(self._powers(ops.cast(within, "float32")), start)
        return {"real": start[0] + updates[0], "imaginary": start[1] + updates[1]}

    def _powers(self, exponents: Any) -> list[Tensor]:
        """Return the real and imaginary part of Āᵏ for exponents k (…), each (…, D, N)."""
        exponents = ops.convert_to_tensor(exponents, "float32")
        # Not a slice with "...", which cannot be converted to ONNX in a branch.
        exponents = ops.expand_dims(exponents, [len(exponents.shape), len(exponents.shape) + 1])
        step = ops.exp(self.log_step)[:, None]
        size = ops.exp(-exponents * step * ops.exp(self.log_decay))
        angle = exponents * step * self.frequency
        return [size * ops.cos(angle), size * ops.sin(angle)]

    def _input(self) -> list[Tensor]:
        """Return the real and imaginary part of B̄ (D, N)."""
        real, imaginary = self._powers(1.0)
        decay = ops.exp(self.log_decay)
        square = decay * decay + self.frequency * self.frequency
        inverse = [-decay / square, -self.frequency / square]  # of A = −decay + i frequency
        return _product([real - 1, imaginary], inverse)


def _product(left: Any, right: Any) -> list[Tensor]:
    """Multiply complex numbers, pairs of their real and imaginary parts."""
    return [left[0] * right[0] - left[1] * right[1], left[0] * right[1] + left[1] * right[0]]


def _einsum(equation: str, real: Tensor, pair: list[Tensor]) -> list[Tensor]:
    """Contract a real tensor with a complex one."""
    return [ops.einsum(equation, real, tensor) for tensor in pair]


def _multiplied(equation: str, left: Any, right: Any) -> list[Tensor]:
    """Contract two complex tensors."""
    real, imaginary = _einsum(equation, left[0], right), _einsum(equation, left[1], right)
    return [real[0] - imaginary[1], real[1] + imaginary[0]]
