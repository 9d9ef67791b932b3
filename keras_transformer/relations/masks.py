"""Masks of other conventions as masks in which True means "may attend"."""

from typing import Any

Tensor = Any


def from_additive(mask: Tensor) -> Tensor:
    """The boolean mask (True = may attend) of an additive one (0 = may attend, very negative = may not)."""
    return mask > -1.0


def from_hidden(mask: Tensor) -> Tensor:
    """The boolean mask (True = may attend) of one in which True means hidden."""
    return mask == False  # noqa: E712  (not `~`, which flips the bits of an integer mask)
