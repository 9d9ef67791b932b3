"""Transformers for Keras 3: attention as one operator, trained by `fit()`, served as SavedModel and ONNX.

Subpackages are imported on first use, so that `keras_transformer.serving` starts without TensorFlow or Keras.
"""

import importlib
from typing import Any

from keras_transformer import _registration

__version__ = "0.1.0"

_SUBPACKAGES = (
    "data",
    "datasets",
    "export",
    "generation",
    "inspection",
    "interop",
    "layers",
    "models",
    "ops",
    "pipelines",
    "relations",
    "serving",
    "text",
    "training",
)
__all__ = ["__version__", "load_model", *_SUBPACKAGES]

_registration.install()


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def load_model(path: Any, **kwargs: Any) -> Any:
    """Load a `.keras` file that holds layers of this package, as `keras.models.load_model` does.

    Args:
        path: the file.
        **kwargs: passed on to `keras.models.load_model`.

    Returns:
        The model, compiled if it was saved compiled.
    """
    import keras

    _registration.register()
    return keras.models.load_model(path, **kwargs)
