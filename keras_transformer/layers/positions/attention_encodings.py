"""Position encodings of attention by name."""

from typing import Any

import keras

from keras_transformer.layers.positions.base import PositionEncoding
from keras_transformer.layers.positions.biases import ALiBi, RelativeBias
from keras_transformer.layers.positions.relative import RelativeSinusoidalPositions
from keras_transformer.layers.positions.rotary import RotaryPositions

NAMES = ("alibi", "relative_bias", "relative_sinusoidal", "rotary")


def get(identifier: Any, num_heads: int, key_dim: int | None = None) -> PositionEncoding | None:
    """Retrieve a position encoding.

    Args:
        identifier: a `PositionEncoding`, its config, its name ("rotary", "alibi", "relative_bias",
            "relative_sinusoidal"), or None for no encoding.
        num_heads: the number of heads of the attention layer.
        key_dim: the size of a head, if known.

    Returns:
        The layer, or None.

    Raises:
        ValueError: if the identifier is none of these, or the encoding does not fit the heads.
    """
    if isinstance(identifier, str) and identifier in NAMES:
        biases = {"alibi": ALiBi, "relative_bias": RelativeBias}
        others = {"rotary": RotaryPositions, "relative_sinusoidal": RelativeSinusoidalPositions}
        encoding = biases[identifier](num_heads) if identifier in biases else others[identifier]()
    elif isinstance(identifier, dict):
        encoding = keras.saving.deserialize_keras_object(identifier)
    else:
        encoding = identifier
    if encoding is None:
        return None
    if not isinstance(encoding, PositionEncoding):
        raise ValueError(
            f"`position_encoding` must be a PositionEncoding, its config, one of {NAMES} or None; encodings that are "
            f"added to the inputs are separate layers. Received: position_encoding={identifier!r}"
        )
    encoding.check(num_heads, key_dim)
    return encoding
