"""Transformers for Keras 3: attention as one operator, trained by `fit()`, served as SavedModel and ONNX.

Importing the package registers its classes with Keras, so that `keras.saving.load_model` finds them. The subpackages
that need TensorFlow, and some others, are imported on first use.
"""

import importlib
from typing import Any

from keras_transformer import layers, models, ops, relations, training

__version__ = "0.1.0"

_ON_FIRST_USE = (
    "data",
    "datasets",
    "export",
    "generation",
    "inspection",
    "interop",
    "pipelines",
    "recipes",
    "text",
)
__all__ = ["__version__", "layers", "models", "ops", "relations", "training", *_ON_FIRST_USE]


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name not in ("tensorflow", "tensorflow_text"):
                raise
            from keras_transformer.lazy_tensorflow import TENSORFLOW

            raise ImportError(f"`{__name__}.{name}` requires {TENSORFLOW}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
