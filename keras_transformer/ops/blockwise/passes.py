"""The chunked and the banded kernel: exact attention in memory linear in the sequence length.

Both scan over the blocks of a static schedule. The blocks of a forward scan step share their queries, and an online
softmax accumulates them; those of a backward scan step share their keys, and the weights are recomputed. Empty blocks
are not scheduled, and the graph, its compile time and its temporary memory are those of one block, whatever the
sequence length. The schedules are `schedule.chunked`, with one query block and one key block per block, and
`schedule.banded`, with several query blocks per block, each with the key blocks of its window.

Axes: as in `partition`.

References:
    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Rabe and Staats, "Self-attention Does
    Not Need O(n²) Memory" (2021); Dao et al., "FlashAttention" (2022), algorithms 1 and 4.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from keras import ops, tree

from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.blockwise import blocks, partition
from keras_transformer.ops.blockwise.blocks import Gradients, OutputGradients, Parameters, ScanState
from keras_transformer.ops.blockwise.partition import SplitTensors, at, read, write
from keras_transformer.ops.blockwise.schedule import BlockSchedule, ScanOrder
from keras_transformer.typing import Tensor

Carry = TypeVar("Carry")


def attend(inputs: AttentionInputs, schedule: BlockSchedule) -> Tensor:
    """Compute attention (B, T, N, V) block by block."""

    # A custom gradient differentiates its arguments only, and JAX cannot compile one that captures traced tensors.
    @ops.custom_gradient  # type: ignore[untyped-decorator]
    def blockwise(tensors: SplitTensors, parameters: Parameters, auxiliary: dict[str, Tensor]) -> Any:
        state = forward(inputs, schedule, tensors, parameters, auxiliary)

        def gradient(d_output: Tensor) -> Any:
            d_tensors, d_parameters = backward(
                inputs, schedule, tensors, parameters, auxiliary, state, d_output
            )
            return d_tensors, d_parameters, tree.map_structure(lambda _: None, auxiliary)

        return state.output, gradient

    # Copied to tensors, because a custom gradient of TensorFlow may not read Keras variables.
    parameters = Parameters(
        tuple(ops.copy(tensor) for tensor in inputs.bias_parameters()),
        tuple(ops.copy(tensor) for tensor in inputs.score.parameters),
    )
    output = blockwise(
        partition.split_tensors(inputs, schedule), parameters, partition.split_auxiliary(inputs, schedule)
    )
    output = ops.transpose(output, (1, 0, 3, 2, 4))  # (B, Q, b, N, V)
    length = schedule.num_query_blocks * schedule.block_size
    output = ops.reshape(output, [-1, length, inputs.num_heads, inputs.value.shape[-1]])
    return ops.cast(output[:, : inputs.num_queries], inputs.value.dtype)


def forward(
    inputs: AttentionInputs,
    schedule: BlockSchedule,
    tensors: SplitTensors,
    parameters: Parameters,
    auxiliary: dict[str, Tensor],
) -> ScanState:
    """Return the state (Q, B, N, b, ·) of all queries after all of their keys."""
    order = schedule.query_order

    def accumulate(block: Tensor, state: ScanState, is_partial: bool) -> ScanState:
        block = partition.read_block(inputs, schedule, tensors, auxiliary, block)
        return blocks.accumulate(inputs, state, block, parameters, is_partial)

    def scan_step(step: Tensor, states: ScanState) -> ScanState:
        start = at(order.starts, step)
        query = read(tensors.query, start, schedule.num_parallel)
        state = blocks.initial_state(inputs, query, tensors.value)
        state = accumulate_step(order, step, accumulate, state)
        return ScanState(*(write(old, start, new) for old, new in zip(states, state, strict=True)))

    return scan(order, scan_step, blocks.initial_state(inputs, tensors.query, tensors.value))


def backward(
    inputs: AttentionInputs,
    schedule: BlockSchedule,
    tensors: SplitTensors,
    parameters: Parameters,
    auxiliary: dict[str, Tensor],
    state: ScanState,
    d_output: Tensor,
) -> tuple[SplitTensors, Parameters]:
    """Return the gradients with respect to the tensors and the parameters.

    Args:
        inputs: the inputs of the attention.
        schedule: the blocks.
        tensors: as in `forward`.
        parameters: the parameters of bias and score.
        auxiliary: as in `forward`.
        state: the output of `forward`.
        d_output: (Q, B, N, b, V), the gradient of the loss with respect to the output.
    """
    order, dtype = schedule.key_order, inputs.accumulator_dtype
    max_logit, sum_exp = blocks.softmax_statistics(state)
    d_output = d_output / sum_exp
    delta = ops.sum(d_output * state.output, axis=-1, keepdims=True)
    d_output = blocks.merge_groups(inputs, ops.cast(d_output, inputs.value.dtype), tensors.query)
    output_gradients = OutputGradients(d_output, max_logit, delta)

    def accumulate(block: Tensor, total: Gradients, is_partial: bool) -> Gradients:
        start = at(schedule.query_starts, block)
        new = blocks.block_gradients(
            inputs,
            partition.read_block(inputs, schedule, tensors, auxiliary, block),
            parameters,
            is_partial,
            OutputGradients(*(read(tensor, start, schedule.num_parallel) for tensor in output_gradients)),
        )
        return Gradients(
            partition.add(total.d_query, start, new.d_query),
            total.d_key + ops.cast(new.d_key, dtype),
            total.d_value + ops.cast(new.d_value, dtype),
            tuple(
                write(d_bias, block * schedule.num_parallel, new_d_bias)
                for d_bias, new_d_bias in zip(total.d_bias, new.d_bias, strict=True)
            ),
            tree.map_structure(
                lambda old, added: old + ops.cast(added, dtype), total.d_parameters, new.d_parameters
            ),
        )

    def scan_step(step: Tensor, total: Gradients) -> Gradients:
        start = at(order.starts, step)
        d_key, d_value = (
            ops.zeros_like(partition.read_keys(schedule, tensor, start, axis=-2), dtype)
            for tensor in (tensors.key, tensors.value)
        )
        new = accumulate_step(order, step, accumulate, total._replace(d_key=d_key, d_value=d_value))
        return new._replace(
            d_key=partition.add_keys(schedule, total.d_key, start, new.d_key),
            d_value=partition.add_keys(schedule, total.d_value, start, new.d_value),
        )

    zeros = tree.map_structure(lambda tensor: ops.zeros_like(tensor, dtype), (*tensors, parameters))
    gradients = scan(order, scan_step, Gradients(*zeros))
    *d_tensors, d_parameters = tree.map_structure(
        lambda gradient, tensor: ops.cast(gradient, tensor.dtype), tuple(gradients), (*tensors, parameters)
    )
    return SplitTensors(*d_tensors), d_parameters


def scan(order: ScanOrder, scan_step: Callable[[Tensor, Carry], Carry], carry: Carry) -> Carry:
    """Return the carry after `carry = scan_step(step, carry)` for each step of a scan order."""
    num_steps = len(order.starts)
    if not num_steps:
        return carry

    # TensorFlow runs ten iterations of a loop in parallel, and stores the temporary tensors of all, unless the
    # condition depends on the carry. No number is below −∞, but XLA does not fold the comparison, because of NaN.
    def is_unfinished(step: Tensor, carry: Any) -> Tensor:
        tensor = tree.flatten(carry)[0]
        never = ops.cast(tensor[(0,) * len(tensor.shape)], "float32") < float("-inf")
        return ops.logical_and(step < num_steps, ops.logical_not(never))

    _, carry = ops.while_loop(
        is_unfinished, lambda step, carry: (step + 1, scan_step(step, carry)), (0, carry)
    )
    return carry


def accumulate_step(
    order: ScanOrder, step: Tensor, accumulate: Callable[[Tensor, Carry, bool], Carry], carry: Carry
) -> Carry:
    """Return the carry after `carry = accumulate(block, carry, is_partial)` for each block of a scan step."""
    for begin, end, is_partial in ((order.begin, order.full, True), (order.full, order.end, False)):
        if (begin + 1 == end).all():
            carry = accumulate(at(order.blocks, at(begin, step)), carry, is_partial)
        elif (begin < end).any():
            carry = ops.fori_loop(
                at(begin, step),
                at(end, step),
                lambda index, carry, is_partial=is_partial: accumulate(
                    at(order.blocks, index), carry, is_partial
                ),
                carry,
            )
    return carry
