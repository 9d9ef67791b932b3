"""How the next token is chosen, as values."""

import contextlib
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The most probable token at every step."""


_NAMES: dict[str, type] = {"greedy": Greedy}


def get(identifier: Any) -> Greedy:
    """The sampler that an identifier stands for.

    Args:
        identifier: a sampler, its name, or its config as `serialize` makes it.

    Returns:
        A sampler.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(identifier, tuple(_NAMES.values())):
        return identifier
    if isinstance(identifier, str) and identifier in _NAMES:
        return _NAMES[identifier]()
    if isinstance(identifier, dict) and str(identifier.get("sampler")) in _NAMES:
        settings = {name: value for name, value in identifier.items() if name != "sampler"}
        with contextlib.suppress(TypeError):  # an unknown setting
            return _NAMES[identifier["sampler"]](**settings)
    raise ValueError(
        f"`sampler` must be one of {sorted(_NAMES)}, a sampler or its config. Received: sampler={identifier!r}"
    )


def serialize(sampler: Greedy) -> dict[str, Any]:
    """The config of a sampler, for `get`."""
    name = next(name for name, cls in _NAMES.items() if isinstance(sampler, cls))
    return {"sampler": name, **dataclasses.asdict(sampler)}
