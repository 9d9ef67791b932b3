"""Position encodings of attention by name."""

from collections.abc import Callable
from typing import Any

from keras_transformer.configuration import retrieve
from keras_transformer.layers.positions.biases import ALiBi, RelativeBias
from keras_transformer.layers.positions.position_encoding import PositionEncoding
from keras_transformer.layers.positions.relative import RelativeSinusoidalPositions
from keras_transformer.layers.positions.rotary import RotaryPositions


def get(identifier: Any, num_heads: int, key_dim: int | None = None) -> PositionEncoding | None:
    """Retrieve a position encoding.

    Args:
        identifier: a `PositionEncoding`, its config, its name ("rotary", "alibi", "relative_bias",
            "relative_sinusoidal"), or None for no encoding.
        num_heads: the number of heads of the attention layer.
        key_dim: the size of a head, if known.

    Returns:
        The layer, or None.
    """
    if identifier is None:
        return None
    names: dict[str, Callable[[], PositionEncoding]] = {
        "rotary": RotaryPositions,
        "alibi": lambda: ALiBi(num_heads),
        "relative_bias": lambda: RelativeBias(num_heads),
        "relative_sinusoidal": RelativeSinusoidalPositions,
    }
    expectation = (
        f"be a PositionEncoding, its config, one of {sorted(names)} or None; encodings that are added to the inputs "
        "are separate layers"
    )
    encoding = retrieve(PositionEncoding, names, expectation, position_encoding=identifier)
    encoding.check(num_heads, key_dim)
    return encoding
