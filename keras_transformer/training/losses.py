"""Losses over tokens."""

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import Configured
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import is_number


class _Mean(keras.losses.Loss):
    """The mean of `y_pred`, divided by the number of replicas as in Keras."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return y_pred


_MEAN = _Mean(name="mean", dtype="float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossentropy(Configured, keras.losses.Loss):
    r"""Cross-entropy with label smoothing, averaged over the tokens that are not ignored.

    $$\ell_t = \log\sum_v e^{z_{tv}} - (1 - \varepsilon) z_{t y_t} - \frac{\varepsilon}{V} \sum_v z_{tv}$$

    The target distribution is (1 − ε) · one-hot label + ε · uniform, but one-hot tensors are not created. Labels equal
    to `pad_id` or to `ignore_class` are excluded from the sum and from the number of tokens, with or without a Keras
    mask. Other labels must be in [0, V), which `fit` of this package's models checks.

    The mean of means over batches with different numbers of tokens is not the mean over all tokens. To give each token
    the same weight across the K batches of `gradient_accumulation_steps=K`, or across the replicas of a
    `tf.distribute` strategy, pass a number as `normalizer`, such as the mean number of tokens in a batch: the gradient
    then equals the gradient of one batch with all tokens and K times the `normalizer`.

    Args:
        smoothing: ε in [0, 1).
        pad_id: the label of padding, which is ignored; None to ignore negative labels.
        normalizer: the divisor of the sum over tokens: "tokens", the number of tokens in the batch (in one replica's
            part of it), or a positive number.
        name: the name of the loss.
        ignore_class: another label to ignore, such as −100, as in `keras.losses.SparseCategoricalCrossentropy`.
        **kwargs: arguments of `keras.losses.Loss`. `reduction` is not used; see `normalizer`.

    Call arguments:
        y_true: integer labels (B, T).
        y_pred: logits (B, T, V).
        sample_weight: weights (B,) or (B, T). The weighted sum is divided by the number of valid tokens, without
            weights.

    References:
        Szegedy et al., "Rethinking the Inception Architecture" (2016); Vaswani et al. (2017), section 5.4.
    """

    def __init__(
        self,
        smoothing: float = 0.1,
        pad_id: int | None = 0,
        normalizer: str | float = "tokens",
        name: str = "label_smoothed_crossentropy",
        ignore_class: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        if not is_number(smoothing) or not 0 <= smoothing < 1:
            raise ValueError(f"`smoothing` must be in [0, 1). Received: smoothing={smoothing!r}")
        if normalizer != "tokens" and not (is_number(normalizer) and 0 < float(normalizer) < math.inf):
            raise ValueError(
                f'`normalizer` must be "tokens" or a positive number. Received: normalizer={normalizer!r}'
            )
        self.smoothing = smoothing
        self.pad_id = pad_id
        self.normalizer = normalizer
        self.ignore_class = ignore_class

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Return the sum over valid tokens, divided by `normalizer` and the number of replicas, a scalar."""
        # Keras' reduction divides by the number of all elements, unless there is a Keras mask.
        valid = valid_labels(y_true, y_pred, self.pad_id, self.ignore_class)
        losses = self.call(y_true, y_pred)
        weights = valid if sample_weight is None else valid * per_token(sample_weight, valid)
        divisor = ops.sum(valid) if self.normalizer == "tokens" else float(self.normalizer)
        loss = ops.reshape(ops.divide_no_nan(ops.sum(losses * weights), divisor), [1])
        return _MEAN(loss, loss)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each token, (B, T), with arbitrary values for ignored tokens."""
        vocabulary_size = y_pred.shape[-1]
        logits = ops.reshape(ops.cast(y_pred, "float32"), [-1, vocabulary_size])
        losses = _smoothed_crossentropy(logits, ops.reshape(y_true, [-1]), self.smoothing)
        return ops.reshape(losses, ops.shape(y_true))


def _smoothed_crossentropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the loss (n,) of logits (n, V) and labels (n,).

    The gradient, softmax − (1 − ε)·label − ε/V, is a custom gradient that reuses one buffer, while automatic
    differentiation allocates several tensors of the size of the logits.
    """

    @ops.custom_gradient
    def crossentropy(logits: Tensor) -> Any:
        uniform = smoothing / logits.shape[-1]
        probabilities = ops.softmax(logits, axis=-1)
        # Backends fuse the softmax, whose largest element is exp(0) / Σ exp(z − max z).
        log_sum = -ops.log(ops.max(probabilities, axis=-1))
        largest = ops.max(logits, axis=-1)
        surprisals = log_sum + (largest - take_labels(logits, labels))
        losses = surprisals
        if smoothing:
            mean = log_sum + (largest - ops.mean(logits, axis=-1))
            losses = (1 - smoothing) * surprisals + smoothing * mean

        def gradient(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            upstream = arguments[0] if upstream is None else upstream
            rows = ops.arange(ops.shape(labels)[0])
            indices = ops.stack([rows, ops.maximum(ops.cast(labels, rows.dtype), 0)], axis=-1)  # (n, 2)
            of_labels = (ops.exp(-surprisals) - uniform - (1 - smoothing)) * upstream
            return ops.scatter_update((probabilities - uniform) * upstream[:, None], indices, of_labels)

        return losses, gradient

    return crossentropy(logits)


def valid_labels(labels: Tensor, logits: Tensor, pad_id: int | None, ignore_class: int | None) -> Tensor:
    """Return a float32 mask with the shape of the labels, 0 for labels to ignore.

    Args:
        labels: integers (…).
        logits: (…, V).
        pad_id: the label of padding, or None to ignore negative labels.
        ignore_class: another label to ignore, or None.
    """
    shape, expected = tuple(labels.shape), tuple(logits.shape[:-1])
    if len(shape) != len(expected) or any(
        size != other for size, other in zip(shape, expected, strict=True) if None not in (size, other)
    ):
        raise ValueError(
            "`y_true` must have the shape of `y_pred` without its last axis. "
            f"Received: y_true.shape={shape}, y_pred.shape={tuple(logits.shape)}"
        )
    valid = ops.greater_equal(labels, 0) if pad_id is None else ops.not_equal(labels, pad_id)
    if ignore_class is not None:
        valid = ops.logical_and(valid, ops.not_equal(labels, ignore_class))
    return ops.cast(valid, "float32")


def take_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the value (…) at each label, from values (…, V) and labels (…)."""
    size = values.shape[-1]
    # Padding labels may be outside the vocabulary, such as −100; their values are not used.
    flat = ops.maximum(ops.reshape(ops.cast(labels, "int32"), [-1]), 0)
    indices = ops.arange(ops.shape(flat)[0], dtype="int32") * size + flat
    return ops.reshape(ops.take(ops.reshape(values, [-1]), indices), ops.shape(labels))


def per_token(sample_weight: Tensor, valid: Tensor) -> Tensor:
    """Reshape weights of rows (B,) or of tokens (B, T) to broadcast to `valid` (B, T).

    TensorFlow traces a graph for both if a model is called with one after the other; their rank is then unknown.
    """
    weight = ops.cast(sample_weight, "float32")
    unknown = getattr(weight.shape, "rank", 0) is None
    return ops.reshape(weight, [ops.shape(valid)[0], -1]) if unknown or len(weight.shape) == 1 else weight
