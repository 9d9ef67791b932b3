"""Losses over tokens."""

from typing import Any

import keras
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossentropy(keras.losses.Loss):
    r"""Cross-entropy against (1 − ε)·label + ε·uniform, averaged over the tokens that are not padding.

    $$\ell_t = \log\sum_v e^{z_{tv}} - (1 - \varepsilon) z_{t y_t} - \frac{\varepsilon}{V} \sum_v z_{tv}$$

    Labels stay integers: no one-hot tensor is made. Labels equal to `pad_id` count neither in the sum nor in
    the number of tokens, with or without a Keras mask.

    Args:
        smoothing: ε in [0, 1).
        pad_id: the label to ignore.
        name: shown by Keras.
        **kwargs: for `keras.losses.Loss`. The reduction is always the mean over valid tokens.

    Call arguments:
        y_true: integer labels (B, T).
        y_pred: logits (B, T, V).
        sample_weight: broadcast to (B, T): the mean becomes a weighted sum over the number of valid tokens.

    Raises:
        ValueError: where `smoothing` is outside [0, 1).

    References:
        Szegedy et al., "Rethinking the Inception Architecture" (2016); Vaswani et al. (2017), section 5.4.
    """

    def __init__(
        self,
        smoothing: float = 0.1,
        pad_id: int = 0,
        name: str = "label_smoothed_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not 0 <= smoothing < 1:
            raise ValueError(f"`smoothing` must be in [0, 1). Received: smoothing={smoothing}")
        self.smoothing = smoothing
        self.pad_id = pad_id

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The mean over valid tokens, a scalar."""
        # Keras' own reduction divides by the number of all elements unless it finds a Keras mask.
        valid = ops.cast(ops.not_equal(y_true, self.pad_id), "float32")
        losses = self.call(y_true, y_pred)
        weights = valid if sample_weight is None else valid * _per_token(sample_weight)
        return ops.divide_no_nan(ops.sum(losses * weights), ops.sum(valid))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The loss of each token, (B, T); that of padding is meaningless."""
        logits = ops.cast(y_pred, "float32")
        label_logits = take_labels(logits, y_true)
        target = (1 - self.smoothing) * label_logits + self.smoothing * ops.mean(logits, axis=-1)
        return ops.logsumexp(logits, axis=-1) - target

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "smoothing": self.smoothing, "pad_id": self.pad_id}


def take_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of each label: (B, T) from (B, T, V) and integers (B, T)."""
    indices = ops.expand_dims(ops.cast(labels, "int32"), -1)
    return ops.squeeze(ops.take_along_axis(logits, indices, axis=-1), -1)


def _per_token(sample_weight: Tensor) -> Tensor:
    weight = ops.cast(sample_weight, "float32")
    return ops.expand_dims(weight, -1) if len(weight.shape) == 1 else weight
