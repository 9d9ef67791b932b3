"""Public datasets as in `keras.datasets`, verified by their SHA-256, and an embedded phrasebook."""

import importlib
import types

__all__ = ["mnist", "multi30k", "phrasebook", "planetoid", "spa_eng", "sst2"]


def __getattr__(name: str) -> types.ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
