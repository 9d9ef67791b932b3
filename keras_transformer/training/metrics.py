"""Metrics over tokens."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.configuration import Configured
from keras_transformer.training.losses import per_token, take_labels, valid_labels
from keras_transformer.typing import Tensor


class _TokenMean(Configured, keras.metrics.Metric):
    """Base class of means over the tokens that are not ignored."""

    default_name: ClassVar[str]

    def __init__(
        self,
        name: str | None = None,
        pad_id: int | None = 0,
        ignore_class: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name or self.default_name, **kwargs)
        self.pad_id = pad_id
        self.ignore_class = ignore_class
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def per_token(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the values to average, float32 (B, T)."""
        raise NotImplementedError

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Accumulate a batch of labels (B, T) and logits (B, T, V)."""
        weights = valid_labels(y_true, y_pred, self.pad_id, self.ignore_class)
        if sample_weight is not None:
            weights = weights * per_token(sample_weight, weights)
        self.total.assign_add(ops.sum(self.per_token(y_true, y_pred) * weights))
        self.count.assign_add(ops.sum(weights))

    def result(self) -> Tensor:
        """Return the mean since the last reset."""
        return ops.divide_no_nan(self.total, self.count)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_TokenMean):
    r"""The exponential of the mean cross-entropy over the tokens that are not ignored.

    $$\exp\Big(-\frac{1}{n} \sum_t \log p(y_t)\Big)$$

    Args:
        name: the name of the metric, by default "perplexity".
        pad_id: the label of padding, which is ignored; None to ignore negative labels.
        ignore_class: a further label to ignore, such as −100.
        **kwargs: arguments of `keras.metrics.Metric`.
    """

    default_name = "perplexity"

    def per_token(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return −log p of each label, float32 (B, T)."""
        logits = ops.cast(y_pred, "float32")
        return ops.logsumexp(logits, axis=-1) - take_labels(logits, y_true)

    def result(self) -> Tensor:
        """Return the perplexity since the last reset."""
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """The fraction of tokens, without ignored ones, whose label has the highest logit.

    Args:
        name: the name of the metric, by default "token_accuracy".
        pad_id: the label of padding, which is ignored; None to ignore negative labels.
        ignore_class: a further label to ignore, such as −100.
        **kwargs: arguments of `keras.metrics.Metric`.
    """

    default_name = "token_accuracy"

    def per_token(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return 1 where the label has the highest logit, else 0, float32 (B, T)."""
        return ops.cast(ops.equal(ops.argmax(y_pred, axis=-1), ops.cast(y_true, "int32")), "float32")
