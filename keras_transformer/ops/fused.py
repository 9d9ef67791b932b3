"""The fused kernel: cuDNN's attention on NVIDIA GPUs, by `jax.nn.dot_product_attention`.

This is the only module that imports JAX, and only if it is the backend. TensorFlow has no fused attention.

References:
    Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023).
"""

import re
from typing import Any

import keras
from keras import backend, ops

from keras_transformer.ops import dense
from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.relations import Causal, Full, Relation, SlidingWindow
from keras_transformer.typing import Tensor

IMPLEMENTATION = "cudnn"  # "xla", the same definition on any device, in tests
MAX_HEAD_SIZE, HEAD_SIZE_MULTIPLE = 128, 8
AMPERE = (8, 0)  # the lowest compute capability with fused attention
UNSUPPORTED_INPUTS = (
    "bias",
    "mask",
    "padding_mask",
    "segment_ids",
    "edges",
    "query_positions",
    "key_positions",
)


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute attention (B, T, N, V)."""
    import jax

    tensors = (inputs.query, inputs.key, inputs.value)
    if any(backend.is_keras_tensor(tensor) for tensor in tensors):
        return dense.attend(inputs.with_padding_mask())  # functional models cannot contain functions of JAX
    query, key, value = (ops.convert_to_tensor(tensor) for tensor in tensors)
    score: Any = inputs.score
    options = _options(inputs.relation, inputs.num_keys) or {}
    lengths = None
    if inputs.key_lengths is not None:
        lengths = ops.cast(inputs.key_lengths, "int32")
        # The weights of a row without keys are not defined, and their gradients may be NaN.
        options["key_value_seq_lengths"] = ops.clip(lengths, 1, inputs.num_keys)
    output = jax.nn.dot_product_attention(
        query, key, value, scale=score.scale, implementation=IMPLEMENTATION, **options
    )
    if lengths is None:
        return output
    return ops.where(lengths[:, None, None, None] > 0, output, ops.zeros_like(output))


def unsupported(inputs: AttentionInputs) -> str | None:
    """Return the reasons why the kernel does not support the inputs or the device, or None if it does."""
    return "; ".join([*_unsupported_inputs(inputs), *_unsupported_device()]) or None


def device_name() -> str:
    """Return the name of the GPU, such as "NVIDIA A100-SXM4-40GB"."""
    return str(_device().device_kind)


def _unsupported_inputs(inputs: AttentionInputs) -> list[str]:
    queries, keys = inputs.num_queries, inputs.num_keys
    reasons = []
    options = _options(inputs.relation, keys)
    if options is None:
        reasons.append("the relation is neither full, causal nor a window to the left")
    elif options.get("is_causal") and queries != keys:
        reasons.append("a causal relation has unequal numbers of queries and keys")
    if options and "local_window_size" in options and inputs.key_lengths is not None:
        reasons.append("`key_lengths` is passed for a window, which leaves queries without keys")
    if type(inputs.score) is not ScaledDotProduct or inputs.score.soft_cap is not None:
        reasons.append("the score is not a scaled dot product without soft cap")
    reasons += [f"`{name}` is passed" for name in UNSUPPORTED_INPUTS if getattr(inputs, name) is not None]
    if inputs.dropout:
        reasons.append("attention weights are dropped")
    tensors = (inputs.query, inputs.key, inputs.value)
    dtypes = {backend.standardize_dtype(tensor.dtype) for tensor in tensors}
    if dtypes not in ({"float16"}, {"bfloat16"}):
        reasons.append(f"the dtype is {' and '.join(sorted(dtypes))}, neither float16 nor bfloat16")
    size, value_size = inputs.query.shape[-1], inputs.value.shape[-1]
    if size > MAX_HEAD_SIZE or size % HEAD_SIZE_MULTIPLE:
        reasons.append(
            f"the head size {size} is not a multiple of {HEAD_SIZE_MULTIPLE} up to {MAX_HEAD_SIZE}"
        )
    if value_size != size:
        reasons.append(f"the value size {value_size} is not the head size {size}")
    if not all(isinstance(length, int) for length in (queries, keys)):
        reasons.append("lengths are not static")
    elif min(queries, keys) < 2:
        reasons.append("there are fewer than two queries or keys")
    return reasons


def _options(relation: Relation, num_keys: Any) -> dict[str, Any] | None:
    """Return the arguments of `dot_product_attention` for a relation, or None if it is not supported."""
    match relation:
        case Full() | SlidingWindow(None, None):
            return {}
        case Causal() | SlidingWindow(None, 0):
            return {"is_causal": True}
        case SlidingWindow(int(left), 0):
            if isinstance(num_keys, int) and left >= num_keys - 1:
                return {"is_causal": True}
            # cuDNN supports windows of causal attention only; JAX 0.7 ignores other windows in its "xla" form.
            return {"is_causal": True, "local_window_size": (left, 0)}
    return None


def _unsupported_device() -> list[str]:
    name = keras.config.backend()
    if name != "jax":
        return [f"the backend is {name}: only JAX has fused attention"]
    if IMPLEMENTATION != "cudnn":
        return []
    device = _device()
    if device.platform not in ("gpu", "cuda"):
        return [f"the device is a {device.platform.upper()}, not an NVIDIA GPU"]
    capability = str(getattr(device, "compute_capability", ""))
    version = re.fullmatch(r"(\d+)\.(\d+)", capability)  # AMD's capabilities are names
    if version is None:
        return [f"the device is {device.device_kind}, not an NVIDIA GPU"]
    if tuple(map(int, version.groups())) < AMPERE:
        return [f"{device.device_kind} has compute capability {capability}, lower than Ampere's 8.0"]
    return []


def _device() -> Any:
    """Return the device on which JAX computes."""
    import jax

    device = jax.config.jax_default_device  # set by `keras.device` too
    if device is None or isinstance(device, str):
        return jax.local_devices(backend=device)[0]
    return device
