"""Creation of layers whose matrices are quantized from the start."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

_CONFIG: contextvars.ContextVar[Any] = contextvars.ContextVar("quantization_config", default=None)


@contextlib.contextmanager
def quantized_matrices(config: Any) -> Iterator[None]:
    """Create the matrices of new layers quantized, as `quantize(config=config)` leaves them, but with zeros as values.

    Values in floats, which `quantize` reads, are never allocated. This applies to layers that are created with
    `matrix_arguments`, of which values and scales are assigned afterwards.

    Args:
        config: a `keras.quantizers.QuantizationConfig`.

    Example:
        >>> with quantized_matrices(keras.quantizers.Int8QuantizationConfig()):
        ...     layer = keras.layers.Dense(8, **matrix_arguments("float32"))
        >>> layer.build((None, 16))
        >>> layer.kernel.dtype
        'int8'
    """
    token = _CONFIG.set(config)
    try:
        yield
    finally:
        _CONFIG.reset(token)


def matrix_arguments(dtype: Any) -> dict[str, Any]:
    """Return the arguments of a new `Dense` or `Embedding` of a dtype, quantized within `quantized_matrices`."""
    config = _CONFIG.get()
    if config is None:
        return {"dtype": dtype}
    policy = keras.dtype_policies.get(dtype)
    quantized = keras.dtype_policies.QuantizedDTypePolicy(config.mode, policy.name)
    return {"dtype": quantized, "quantization_config": config}
