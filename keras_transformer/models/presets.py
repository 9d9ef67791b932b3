"""Models of published sizes, by name."""

from typing import Any, ClassVar, Self

from keras_transformer.arguments import check_one_of


class Presets:
    """Gives a model `from_size`, where `presets` holds its constructor's arguments by name."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    @classmethod
    def from_size(cls, name: str, **kwargs: Any) -> Self:
        """A model of a published size with random weights.

        Args:
            name: one of `presets`.
            **kwargs: override the preset's.

        Raises:
            ValueError: where `name` is unknown.
        """
        check_one_of(sorted(cls.presets), name=name)
        return cls(**{**cls.presets[name], **kwargs})
