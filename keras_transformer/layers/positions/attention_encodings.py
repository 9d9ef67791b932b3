"""The positional encodings that act inside an attention, by name or as layers."""

from typing import Any

import keras

from keras_transformer.layers.positions.biases import ALiBi, RelativeBias
from keras_transformer.layers.positions.rotary import RotaryPositions

PositionEncoding = RotaryPositions | ALiBi | RelativeBias
BIASES = (ALiBi, RelativeBias)
NAMES = ("alibi", "relative_bias", "rotary")


def get(identifier: Any, num_heads: int) -> PositionEncoding | None:
    """Return the positional encoding of an identifier.

    Args:
        identifier: a layer (`RotaryPositions`, `ALiBi`, `RelativeBias`), its config, its name ("rotary", "alibi",
            "relative_bias"), or None for none.
        num_heads: of the attention.

    Returns:
        The layer, or None.

    Raises:
        ValueError: for anything else, or a bias for another number of heads.
    """
    if isinstance(identifier, str) and identifier in NAMES:
        makers = {"alibi": lambda: ALiBi(num_heads), "relative_bias": lambda: RelativeBias(num_heads)}
        return makers.get(identifier, RotaryPositions)()
    encoding = (
        keras.saving.deserialize_keras_object(identifier) if isinstance(identifier, dict) else identifier
    )
    if encoding is not None and not isinstance(encoding, PositionEncoding):
        raise ValueError(
            f"`position_encoding` must be a RotaryPositions, ALiBi or RelativeBias layer, its config, one of {NAMES} "
            "or None; other encodings are layers of their own, added to the inputs. "
            f"Received: position_encoding={identifier!r}"
        )
    if isinstance(encoding, BIASES) and encoding.num_heads != num_heads:
        raise ValueError(
            f"`position_encoding` must have as many heads as the attention, {num_heads}. "
            f"Received: position_encoding.num_heads={encoding.num_heads}"
        )
    return encoding
