"""The base class of the models, and models of published sizes by name."""

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
