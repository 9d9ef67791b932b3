"""Models with heads on an encoder such as BERT."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Dropout
from keras_transformer.layers.feed_forward import activation_function, get_activation
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.bert import weight_initializer
from keras_transformer.models.input_specs import InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.models.problem_types import check_problem_type
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of, check_positive_integer

POOLINGS = ("pooler", "mean")


def _set_pooler_trainable(encoder: Any, trainable: bool) -> None:
    """Set whether the pooler of an encoder is trained."""
    for layer in encoder.pooler_layers:
        layer.trainable = trainable


class HeadedEncoder(Model):
    """Base class of encoders with a head; the encoder's pooler is trainable only if the head uses it."""

    returns_logits = True
    parts = ("encoder",)

    def __init__(self, encoder: Any, pools: bool = False, **kwargs: Any) -> None:
        if not hasattr(encoder, "pooler"):
            raise TypeError(
                f"`encoder` must be an encoder such as `models.BERT`. Received: a {type(encoder).__name__}"
            )
        super().__init__(**{"dtype": encoder.dtype_policy, **kwargs})
        self.encoder = encoder
        encoder.build_as_sublayer()
        _set_pooler_trainable(encoder, pools)
        if pools and encoder.pooler is None:
            raise ValueError(
                f"`encoder` must have a pooler for a {type(self).__name__}. Received: an encoder with pooler=False"
            )

    def count_tokens(self, inputs: Any) -> int:
        """Return the number of tokens in a batch, as counted by the encoder."""
        return int(self.encoder.count_tokens(inputs))

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of the encoder."""
        return self.encoder.input_specs()

    def _head(
        self, units: int, name: str, size: int, dtype: Any = "float32", use_bias: bool = True
    ) -> keras.layers.Dense:
        layer = keras.layers.Dense(
            units, use_bias=use_bias, kernel_initializer=weight_initializer(), dtype=dtype, name=name
        )
        layer.build((None, size))
        return layer

    def _add_transform(self, activation: Any = None, epsilon: float | None = None) -> None:
        """Create the layers of `_transformed`."""
        encoder, size = self.encoder, self.encoder.embedding_dim
        use_bias = getattr(encoder, "use_bias", True)
        self.transform = self._head(size, "transform", encoder.model_dim, self.dtype_policy, use_bias)
        self.activation = activation_function(activation or encoder.activation)
        self.norm = new_norm(
            getattr(encoder, "norm", "layer"),
            encoder.epsilon if epsilon is None else epsilon,
            dtype=self.dtype_policy,
            name="norm",
        )
        self.norm.build((None, None, size))

    def _set_prediction_head(self, prediction_head: bool, activation: Any) -> None:
        """Create the layers of `_transformed` if there is a prediction head."""
        check(
            prediction_head or activation is None,
            "be None without prediction_head",
            head_activation=activation,
        )
        self.prediction_head = prediction_head
        self.head_activation = None if activation is None else get_activation(activation)
        if prediction_head:
            self._add_transform(self.head_activation)

    def _transformed(self, hidden: Tensor) -> Tensor:
        """Return norm(f(W h + b))."""
        return self.norm(self.activation(self.transform(hidden)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedLanguageModel(HeadedEncoder):
    r"""Predict masked tokens, with output weights tied to the encoder's embedding matrix E.

    $$\mathrm{logits}_t = \mathrm{norm}(f(W h_t + b))\, E^\top + c$$

    Args:
        encoder: a `BERT`.
        head_activation: f, by default the encoder's activation; for a gated one such as "swiglu", the activation of its
            gate (SiLU).
        head_epsilon: the epsilon of the norm, by default the encoder's.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the encoder's inputs; a dictionary may also have "masked_positions" (B, M), the positions whose logits
            are returned.

    Shapes:
        output: (B, T, vocabulary_size), or (B, M, vocabulary_size), float32 logits

    Example:
        >>> from keras_transformer.models import BERT
        >>> model = MaskedLanguageModel(BERT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8))
        >>> model({"token_ids": keras.ops.array([[2, 4, 6, 3]]), "masked_positions": keras.ops.array([[1]])}).shape
        TensorShape([1, 1, 100])

    References:
        Devlin et al. (2019), section 3.1, task 1; the transformation before E as in the authors' code.
    """

    def __init__(
        self, encoder: Any, head_activation: Any = None, head_epsilon: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.head_activation = None if head_activation is None else get_activation(head_activation)
        self.head_epsilon = head_epsilon
        self._add_transform(self.head_activation, head_epsilon)
        self.bias = self.add_weight(
            name="bias",
            shape=(encoder.vocabulary_size,),
            initializer="zeros",
            dtype="float32",
            autocast=False,
        )
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the token logits of each position."""
        return self.logits(self.encoder(inputs, training=training), inputs)

    def logits(self, hidden: Tensor, inputs: Any) -> Tensor:
        """Return the logits of the encoder's output (B, T, D), only at the masked positions if `inputs` has them."""
        positions = inputs.get("masked_positions") if isinstance(inputs, dict) else None
        if positions is not None:
            hidden = ops.take_along_axis(hidden, ops.cast(positions, "int32")[..., None], axis=1)  # (B, M, D)
        return self.encoder.embedding.logits(self._transformed(hidden)) + self.bias

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor | None:
        """Return the encoder's mask; None for masked positions."""
        if isinstance(inputs, dict) and inputs.get("masked_positions") is not None:
            return None
        return self.encoder.compute_mask(inputs)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T, vocabulary_size) or (B, M, vocabulary_size)."""
        if isinstance(input_shape, dict):
            input_shape = input_shape.get("masked_positions") or input_shape["token_ids"]
        return (*input_shape, self.encoder.vocabulary_size)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Pretraining(HeadedEncoder):
    """BERT's pretraining model: masked language modelling and next-sentence prediction with one encoder.

    Args:
        encoder: a `BERT`.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the inputs of `MaskedLanguageModel`, with "segment_ids".

    Shapes:
        output: {"tokens": the output of `MaskedLanguageModel`, "next_sentence": (B, 2)}, float32 logits; class 0 if the
            second sentence follows the first, 1 if it is random

    References:
        Devlin et al. (2019), section 3.1, tasks 1 and 2.
    """

    def __init__(self, encoder: Any, **kwargs: Any) -> None:
        super().__init__(encoder, pools=True, **kwargs)
        self.masked_language_model = MaskedLanguageModel(
            encoder, dtype=self.dtype_policy, name="masked_language_model"
        )
        self.masked_language_model.build_as_sublayer()
        _set_pooler_trainable(encoder, True)  # `MaskedLanguageModel` has set it to False
        self.next_sentence = self._head(2, "next_sentence", encoder.model_dim)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Tensor]:
        """Return the logits of the masked tokens and of next-sentence prediction."""
        hidden = self.encoder(inputs, training=training)
        return {
            "tokens": self.masked_language_model.logits(hidden, inputs),
            "next_sentence": self.next_sentence(self.encoder.pool(hidden)),
        }

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> dict[str, Tensor | None]:
        """Return the mask of each output."""
        return {"tokens": self.masked_language_model.compute_mask(inputs), "next_sentence": None}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple[int | None, ...]]:
        """Return the shape of each output."""
        tokens = self.masked_language_model.compute_output_shape(input_shape)
        return {"tokens": tokens, "next_sentence": (tokens[0], 2)}


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequenceClassifier(HeadedEncoder):
    """Classify texts, or pairs of texts with segments 0 and 1, or predict numbers.

    Compile it with the loss of the problem type, on logits:

    | `problem_type` | labels | loss |
    |---|---|---|
    | "single_label_classification" | integers (B,) | `keras.losses.SparseCategoricalCrossentropy(from_logits=True)` |
    | "multi_label_classification" | 0 or 1, floats (B, C) | `keras.losses.BinaryCrossentropy(from_logits=True)` |
    | "regression" | floats (B, C) | `keras.losses.MeanSquaredError()` |

    Args:
        encoder: a `BERT`.
        num_classes: C, the number of classes.
        pooling: "pooler" (as in the paper, a transformation of the first hidden state) or "mean" (over all tokens).
        dropout: dropout rate before the head, by default the encoder's.
        problem_type: "single_label_classification", "multi_label_classification" or "regression"; by default regression
            for one class and single-label classification for several.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the encoder's inputs.

    Shapes:
        output: (B, C), float32 logits; for regression the predicted numbers

    Raises:
        ValueError: if `pooling` or `problem_type` is unknown, or a single-label classifier has one class.

    References:
        Devlin et al. (2019), section 4.1.
    """

    def __init__(
        self,
        encoder: Any,
        num_classes: int,
        pooling: str = "pooler",
        dropout: float | None = None,
        problem_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, pooling == "pooler", **kwargs)
        check_one_of(POOLINGS, pooling=pooling)
        self.problem_type = check_problem_type(problem_type, num_classes)
        self.num_classes = num_classes
        self.pooling = pooling
        self.dropout = check_rate("dropout", dropout, encoder.dropout)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.drop.build((None, encoder.model_dim))
        self.head = self._head(num_classes, "head", encoder.model_dim)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the logits (B, C)."""
        hidden = self.encoder(inputs, training=training)
        if self.pooling == "pooler":
            pooled = self.encoder.pool(hidden, self.encoder.padding_mask(inputs))
        else:
            pooled = mean_of_tokens(hidden, self.encoder.padding_mask(inputs))
        return self.head(self.drop(pooled, training=training))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, C)."""
        return (self.encoder.compute_output_shape(input_shape)[0], self.num_classes)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenClassifier(HeadedEncoder):
    """Classify every token, as in named entity recognition.

    Args:
        encoder: a `BERT`.
        num_classes: C, the number of classes.
        dropout: dropout rate before the head, by default the encoder's.
        prediction_head: whether hidden states are transformed before the head as in `MaskedLanguageModel` (ModernBERT).
        head_activation: the activation of this transformation, as in `MaskedLanguageModel`.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the encoder's inputs.

    Shapes:
        output: (B, T, C), float32 logits

    Raises:
        ValueError: if there is a `head_activation` without `prediction_head`.

    References:
        Devlin et al. (2019), section 5.3.
    """

    def __init__(
        self,
        encoder: Any,
        num_classes: int,
        dropout: float | None = None,
        prediction_head: bool = False,
        head_activation: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        check_positive_integer(num_classes=num_classes)
        self._set_prediction_head(prediction_head, head_activation)
        self.num_classes = num_classes
        self.dropout = check_rate("dropout", dropout, encoder.dropout)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.drop.build((None, encoder.model_dim))
        self.head = self._head(num_classes, "head", encoder.model_dim)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the logits (B, T, C)."""
        hidden = self.encoder(inputs, training=training)
        hidden = self._transformed(hidden) if self.prediction_head else hidden
        return self.head(self.drop(hidden, training=training))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the encoder's mask (B, T)."""
        return self.encoder.compute_mask(inputs)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T, C)."""
        return (*self.encoder.compute_output_shape(input_shape)[:-1], self.num_classes)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpanClassifier(HeadedEncoder):
    """Predict the start and end of an answer in a context (segment 1), given a question (segment 0).

    Args:
        encoder: a `BERT`.
        prediction_head, head_activation: see `TokenClassifier`.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the encoder's inputs.

    Shapes:
        output: (B, 2, T), float32 logits of start and end over positions

    References:
        Devlin et al. (2019), section 4.2.
    """

    def __init__(
        self, encoder: Any, prediction_head: bool = False, head_activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(encoder, **kwargs)
        self._set_prediction_head(prediction_head, head_activation)
        self.head = self._head(2, "head", encoder.model_dim)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the logits (B, 2, T), −10⁹ for padding."""
        hidden = self.encoder(inputs, training=training)
        logits = self.head(self._transformed(hidden) if self.prediction_head else hidden)  # (B, T, 2)
        padding = ~self.encoder.padding_mask(inputs)[:, None]
        return ops.where(padding, -1e9, ops.transpose(logits, (0, 2, 1)))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, 2, T)."""
        batch, length, _ = self.encoder.compute_output_shape(input_shape)
        return (batch, 2, length)


def mean_of_tokens(hidden: Tensor, padding_mask: Tensor) -> Tensor:
    """Return the mean (B, D), float32, of (B, T, D) over tokens that are not padding."""
    weights = ops.cast(padding_mask, "float32")[..., None]
    total = ops.sum(ops.cast(hidden, "float32") * weights, axis=1)
    return total / ops.maximum(ops.sum(weights, axis=1), 1)
