"""Mamba-2: a selective state space model with one decay for each head."""

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
class Mamba2(RecurrentMixer):
    r"""Selective state space model: each head has a state whose decay and updates depend on the tokens.

    $$h_t = e^{\Delta_t A} h_{t-1} + \Delta_t\, x_t B_t^\top, \quad y_t = h_t C_t + D x_t, \quad
    \mathrm{out}_t = \mathrm{RMSNorm}(y_t \odot \mathrm{SiLU}(z_t))\, W$$

    $z, x, B, C$ and $\Delta$ are projections of the tokens; x, B and C go through a causal convolution of each channel
    and SiLU, Δ through a bias and softplus. A sequence is computed in chunks, each as attention with the weights
    $C_t^\top B_s\, e^{A \sum_{s<r\le t} \Delta_r}\, \Delta_s$ (the dual form); states connect the chunks.

    Args:
        num_heads: H, the number of heads, a divisor of `inner_dim`.
        state_dim: N, the size of B and C.
        inner_dim: E, the size of x and z, by default 2 D; each head has P = E / H channels.
        num_groups: G, the number of groups of heads that share B and C, a divisor of `num_heads`.
        kernel_size: the number of tokens that the convolution covers.
        epsilon: the epsilon of the norm, which is over the channels of each group.
        use_bias: whether the projections have biases.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D), and the others of `RecurrentMixer`.

    Shapes:
        input and output: (B, T, D)

    Example:
        >>> Mamba2(num_heads=4, state_dim=8)(keras.ops.ones((2, 5, 16))).shape
        TensorShape([2, 5, 16])

    References:
        Dao and Gu, "Transformers are SSMs" (2024): equations 2 and 13, section 6 (chunks) and figure 6.
    """

    def __init__(
        self,
        num_heads: int,
        state_dim: int = 64,
        inner_dim: int | None = None,
        num_groups: int = 1,
        kernel_size: int = 4,
        epsilon: float = 1e-5,
        use_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(
            num_heads=num_heads, state_dim=state_dim, num_groups=num_groups, kernel_size=kernel_size
        )
        if num_heads % num_groups:
            raise ValueError(
                "`num_groups` must divide `num_heads`. "
                f"Received: num_groups={num_groups}, num_heads={num_heads}"
            )
        self.num_heads, self.state_dim, self.inner_dim = num_heads, state_dim, inner_dim
        self.num_groups, self.kernel_size = num_groups, kernel_size
        self.epsilon, self.use_bias = epsilon, use_bias

    def build(self, input_shape: Any) -> None:
        """Create the weights for inputs of size D."""
        self.size = 2 * input_shape[-1] if self.inner_dim is None else self.inner_dim  # E
        if self.size % self.num_heads:
            raise ValueError(
                f"`num_heads` must divide `inner_dim`. Received: num_heads={self.num_heads}, inner_dim={self.size}"
            )
        self.channels = self.size + 2 * self.num_groups * self.state_dim

        def dense(name: str, size: int) -> Any:
            return keras.layers.Dense(size, use_bias=self.use_bias, dtype=self.dtype_policy, name=name)

        def weight(name: str, shape: tuple[int, ...], initializer: Any) -> Any:
            return self.add_weight(shape=shape, initializer=initializer, name=name, autocast=False)

        self.input_projection = dense("input", self.size + self.channels + self.num_heads)
        self.output_projection = dense("output", input_shape[-1])
        self.input_projection.build(input_shape)
        self.output_projection.build((*input_shape[:-1], self.size))
        bound = 1 / math.sqrt(self.kernel_size)
        uniform = keras.initializers.RandomUniform(-bound, bound)
        self.kernel = weight("kernel", (self.kernel_size, self.channels), uniform)
        self.bias = weight("bias", (self.channels,), "zeros")
        self.log_decay = weight("log_decay", (self.num_heads,), _log_decays)
        self.step_bias = weight("step_bias", (self.num_heads,), _inverse_softplus_of_steps)
        self.skip = weight("skip", (self.num_heads,), "ones")
        self.scale = weight("scale", (self.size,), "ones")

    def zero_state(self, batch_size: Any) -> State:
        """Return the last inputs of the convolution and the state of each head (B, H, P, N)."""
        head_dim = self.size // self.num_heads
        return {
            "inputs": ops.zeros((batch_size, self.kernel_size - 1, self.channels), "float32"),
            "state": ops.zeros((batch_size, self.num_heads, head_dim, self.state_dim), "float32"),
        }

    def scan(self, inputs: Tensor, state: State, mask: Tensor | None, every: bool) -> tuple[Tensor, State]:
        """Return the outputs and the state; see the base class."""
        if every:

            def update(token: Tensor, state: State) -> tuple[Tensor, State]:
                outputs, state = self.scan(token[:, None], state, None, False)
                return outputs[:, 0], state

            return recurrence(update, inputs, state, mask, every)
        batch, length = -1, ops.shape(inputs)[1]
        projected = ops.cast(self.input_projection(inputs), "float32")
        gate, values, step = ops.split(projected, [self.size, self.size + self.channels], axis=-1)
        values, last = self._convolved(values, state["inputs"], mask)
        sizes = [self.size, self.size + self.num_groups * self.state_dim]
        values, writes, reads = ops.split(keras.activations.silu(values + self.bias), sizes, axis=-1)
        step = keras.activations.softplus(step + self.step_bias)  # (B, T, H)
        if mask is not None:
            step = ops.where(mask[:, :, None], step, 0.0)  # padding does not change the state
        values = ops.reshape(values, [batch, length, self.num_heads, self.size // self.num_heads])
        writes, reads = (
            ops.repeat(
                ops.reshape(projection, [batch, length, self.num_groups, self.state_dim]),
                self.num_heads // self.num_groups,
                axis=2,
            )
            for projection in (writes, reads)
        )  # (B, T, H, N)
        decays = -ops.exp(self.log_decay) * step
        compute = _one_token if inputs.shape[1] == 1 else _chunked
        outputs, new = compute(values * step[:, :, :, None], decays, writes, reads, state["state"])
        outputs = ops.reshape(outputs + self.skip[:, None] * values, [batch, length, self.size])
        outputs = outputs * keras.activations.silu(gate)
        outputs = ops.reshape(outputs, [batch, length, self.num_groups, self.size // self.num_groups])
        outputs = outputs * ops.rsqrt(ops.mean(outputs * outputs, axis=-1, keepdims=True) + self.epsilon)
        outputs = ops.reshape(outputs, [batch, length, self.size]) * self.scale
        outputs = self.output_projection(ops.cast(outputs, inputs.dtype))
        return outputs, {"inputs": last, "state": new}

    def _convolved(self, values: Tensor, earlier: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the causal convolution of each channel (B, T, …), and the last inputs, for the next tokens."""
        length = ops.shape(values)[1]
        inputs = ops.concatenate([earlier, values], axis=1)
        outputs = sum(inputs[:, k : k + length] * self.kernel[k] for k in range(self.kernel_size))
        if mask is None:
            return outputs, inputs[:, length:]
        num_tokens = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)  # (B, 1)
        return outputs, pick(inputs, num_tokens + ops.arange(self.kernel_size - 1, dtype="int32"))


def _one_token(
    values: Tensor, decays: Tensor, writes: Tensor, reads: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the same as `_chunked` for T = 1."""
    decay = ops.exp(decays)[:, 0, :, None, None]  # (B, H, 1, 1)
    state = decay * state + values[:, 0, :, :, None] * writes[:, 0, :, None, :]
    return ops.sum(state * reads[:, 0, :, None, :], axis=-1)[:, None], state


def _chunked(
    values: Tensor, decays: Tensor, writes: Tensor, reads: Tensor, state: Tensor, size: int = 64
) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, H, P) and the last state of h_t = exp(a_t) h_{t−1} + x_t b_tᵀ, y_t = h_t c_t.

    Args:
        values: x, (B, T, H, P).
        decays: a, (B, T, H), at most 0.
        writes: b, (B, T, H, N).
        reads: c, (B, T, H, N).
        state: h before the first token, (B, H, P, N).
        size: the number of tokens in a chunk.
    """
    length = ops.shape(values)[1]
    if isinstance(length, int):
        size = min(size, length)
    count = (length + size - 1) // size

    def chunks(tensor: Tensor) -> Tensor:
        padding = [[0, 0], [0, count * size - length], *[[0, 0]] * (len(tensor.shape) - 2)]
        return ops.reshape(ops.pad(tensor, padding), [-1, count, size, *tensor.shape[2:]])

    values, decays, writes, reads = map(chunks, (values, decays, writes, reads))  # (B, C, Q, …)
    total = ops.cumsum(decays, axis=2)  # (B, C, Q, H)
    order = np.arange(size)
    within = _exp_where(order[:, None] >= order, ops.transpose(total, (0, 1, 3, 2)))  # (B, C, H, Q, Q)
    weights = ops.einsum("bcqhn,bcrhn->bchqr", reads, writes) * within
    outputs = ops.einsum("bchqr,bcrhp->bcqhp", weights, values)
    # What each chunk adds to the state, and from it the state at the start of each chunk.
    decay_to_end = ops.exp(total[:, :, -1:] - total)
    updates = ops.einsum("bcqhp,bcqhn->bchpn", values * decay_to_end[:, :, :, :, None], writes)
    chunk_totals = ops.cumsum(ops.pad(total[:, :, -1], [[0, 0], [1, 0], [0, 0]]), axis=1)  # (B, C + 1, H)
    index = ops.arange(count + 1)
    between = _exp_where(
        index[:, None] >= index, ops.transpose(chunk_totals, (0, 2, 1))
    )  # (B, H, C + 1, C + 1)
    added = ops.concatenate([state[:, None], updates], axis=1)  # (B, C + 1, H, P, N)
    states = ops.einsum("bhcd,bdhpn->bchpn", between, added)
    outputs = outputs + ops.einsum(
        "bcqhn,bchpn->bcqhp", reads * ops.exp(total)[:, :, :, :, None], states[:, :-1]
    )
    outputs = ops.reshape(outputs, [-1, count * size, *outputs.shape[3:]])[:, :length]
    return outputs, states[:, -1]


def _exp_where(mask: Any, sums: Tensor) -> Tensor:
    """Return exp(s_i − s_j) (…, Q, Q) of sums (…, Q) where the mask (Q, Q) is True, else 0."""
    rank = len(sums.shape)  # a slice with "..." in a branch cannot be converted to ONNX
    difference = ops.where(mask, ops.expand_dims(sums, rank) - ops.expand_dims(sums, rank - 1), -1e30)
    return ops.exp(difference)


def _log_decays(shape: Any, dtype: Any = None) -> Tensor:
    """Return log of 1, 2, …, H."""
    return ops.cast(np.log(np.arange(1, shape[0] + 1)), dtype)


def _inverse_softplus_of_steps(shape: Any, dtype: Any = None) -> Tensor:
    """Return biases whose softplus are steps from 0.001 to 0.1 on a logarithmic scale."""
    steps = np.exp(np.linspace(math.log(0.001), math.log(0.1), shape[0]))
    return ops.cast(np.log(np.expm1(steps)), dtype)
