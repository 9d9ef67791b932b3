"""The positional encodings within an attention, by name or as layers."""

from typing import Any

import keras

from keras_transformer.layers.positions.biases import ALiBi, RelativeBias
from keras_transformer.layers.positions.rotary import RotaryPositions
from keras_transformer.ops import PositionBias
from keras_transformer.typing import Tensor

PositionEncoding = RotaryPositions | ALiBi | RelativeBias
BIASES = (ALiBi, RelativeBias)
NAMES = ("alibi", "relative_bias", "rotary")


def get(identifier: Any, num_heads: int, key_dim: int | None = None) -> PositionEncoding | None:
    """Retrieve a positional encoding.

    Args:
        identifier: a layer (`RotaryPositions`, `ALiBi`, `RelativeBias`), its config, its name ("rotary", "alibi",
            "relative_bias"), or None for no encoding.
        num_heads: the number of heads of the attention.
        key_dim: the size of a head, if known.

    Returns:
        The layer, or None.

    Raises:
        ValueError: if the identifier is none of these, a bias has a different number of heads, or rotary positions
            have an odd size.
    """
    if isinstance(identifier, str) and identifier in NAMES:
        biases = {"alibi": ALiBi, "relative_bias": RelativeBias}
        encoding = biases[identifier](num_heads) if identifier in biases else RotaryPositions()
    elif isinstance(identifier, dict):
        encoding = keras.saving.deserialize_keras_object(identifier)
    else:
        encoding = identifier
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
    if isinstance(encoding, RotaryPositions) and encoding.rotary_dim is None and key_dim and key_dim % 2:
        raise ValueError(f"`key_dim` must be even for rotary positions. Received: key_dim={key_dim}")
    return encoding


def build(encoding: PositionEncoding | None, heads_shape: tuple[int | None, ...]) -> None:
    """Build an encoding for heads (B, T, N, H); a bias shared by several attentions is built once."""
    if isinstance(encoding, RotaryPositions):
        encoding.build(heads_shape)
    elif encoding is not None and not encoding.built:
        encoding.build()


def rotate(encoding: PositionEncoding | None, heads: Tensor, positions: Tensor | None = None) -> Tensor:
    """Return queries or keys (B, T, N, H), rotated if the encoding is rotary."""
    return encoding(heads, positions) if isinstance(encoding, RotaryPositions) else heads


def bias(encoding: PositionEncoding | None) -> PositionBias | None:
    """Return the bias of an encoding, or None if it has none."""
    return encoding.bias() if isinstance(encoding, BIASES) else None
