"""The base class of the models, and models of published sizes by name."""

import contextlib
from typing import Any, ClassVar, Self

import keras

from keras_transformer import xla
from keras_transformer.arguments import check_one_of
from keras_transformer.models.input_checks import InputCheck, InputSpecs, as_dictionary
from keras_transformer.typing import Tensor


class Model(keras.Model):
    """Base class of the models: `keras.Model` with what all models of this package share.

    It compiles with XLA only where that is enabled (see `xla`). `fit`, `evaluate` and `predict` have an argument
    `check_inputs`, by default True: they raise a `ValueError` that names the argument, row and column of an id outside
    the vocabulary or a label that is none of the classes, where XLA would read another one. Arrays are checked before,
    batches of a data set when they are read. `training.ExactResume` can continue `fit`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = xla.is_enabled()

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name, which `fit` checks."""
        return {}

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
        check_inputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Train as `keras.Model.fit`, with a check of ids and labels unless `check_inputs` is False."""
        with contextlib.ExitStack() as stack:
            callbacks = _with_resuming(callbacks, x, validation_data, stack)
            if check_inputs:
                check = InputCheck(self)
                stack.enter_context(check.raised())
                x, validation_data = check.data(x, y), check.validation_data(validation_data)
            given = (batch_size, epochs, verbose, callbacks, validation_split, validation_data)
            return super().fit(x, y, *given, *args, **kwargs)

    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, check_inputs: bool = True, **kwargs: Any
    ) -> Any:
        """Evaluate as `keras.Model.evaluate`, with a check of ids and labels unless `check_inputs` is False."""
        # `fit` has checked the validation data that it evaluates.
        if not check_inputs or kwargs.get("_use_cached_eval_dataset"):
            return super().evaluate(x, y, *args, **kwargs)
        check = InputCheck(self)
        with check.raised():
            return super().evaluate(check.data(x, y), y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, check_inputs: bool = True, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict`, with a check of ids unless `check_inputs` is False."""
        if not check_inputs:
            return super().predict(x, *args, **kwargs)
        check = InputCheck(self)
        with check.raised():
            return super().predict(check.data(x), *args, **kwargs)

    def named_inputs(self, inputs: Any) -> dict[str, Tensor]:
        """Return the inputs of a call by name, after a check of their names, ranks and dtypes."""
        return as_dictionary(inputs, self.input_specs())


def _with_resuming(callbacks: Any, x: Any, validation_data: Any, stack: contextlib.ExitStack) -> Any:
    """Prepare a callback that resumes training, which saves and restores the state of the others."""
    given = keras.tree.flatten([] if callbacks is None else callbacks)
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
