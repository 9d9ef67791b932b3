"""The base class of the models, and models of published sizes by name."""

import contextlib
from typing import Any, ClassVar, Self

import keras

from keras_transformer import xla
from keras_transformer.arguments import check_one_of
from keras_transformer.typing import Tensor


class Model(keras.Model):
    """Base class of the models: `keras.Model` that compiles with XLA only where that is enabled (see `xla`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = xla.is_enabled()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Train as `keras.Model.fit`, which `training.ExactResume` can continue."""
        with contextlib.ExitStack() as stack:
            callbacks = _with_resuming(callbacks, x, validation_data, stack)
            given = (batch_size, epochs, verbose, callbacks, validation_split, validation_data)
            return super().fit(x, y, *given, *args, **kwargs)


def _with_resuming(callbacks: Any, x: Any, validation_data: Any, stack: contextlib.ExitStack) -> Any:
    """Prepare a callback that resumes training, which saves and restores the state of the others."""
    given = (
        [] if callbacks is None else list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    )
    resuming = next((callback for callback in given if hasattr(callback, "training")), None)
    if resuming is None:
        return callbacks
    others = [callback for callback in given if callback is not resuming]
    return stack.enter_context(resuming.training(x, validation_data, others))


class PublishedSizes:
    """Mixin that adds `from_size` to a model.

    A subclass sets `sizes`, the arguments of its constructor for each published size.
    """

    sizes: ClassVar[dict[str, dict[str, Any]]] = {}

    @classmethod
    def from_size(cls, name: str, **kwargs: Any) -> Self:
        """Create a model of a published size, with random weights.

        Args:
            name: a key of `sizes`.
            **kwargs: arguments of the constructor, which replace those of the size.

        Raises:
            ValueError: if `name` is unknown.
        """
        check_one_of(sorted(cls.sizes), name=name)
        return cls(**{**cls.sizes[name], **kwargs})


def padding_arguments(padding_mask: Tensor | None, lengths: Tensor | None) -> dict[str, Tensor | None]:
    """Return a block's argument for padding: the lengths (B,) of rows padded at the end if given, else the mask."""
    return {"padding_mask": padding_mask} if lengths is None else {"key_lengths": lengths}
