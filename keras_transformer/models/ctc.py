"""Connectionist temporal classification: a sequence of tokens from a longer sequence of frames."""

from typing import Any

import keras
from keras import ops

from keras_transformer.models.input_specs import InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.models.speech_encoder import SpeechEncoder
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer

_NEVER = -1e9  # the logit of an impossible token


@keras.saving.register_keras_serializable(package="keras_transformer")
class CTC(Model):
    r"""Predict a token or none for each frame of an encoder; the tokens of a text are those that remain.

    $$p(y \mid x) = \sum_{\pi \in B^{-1}(y)} \prod_t p_t(\pi_t \mid x), \qquad p_t = \mathrm{softmax}(W h_t + b)$$

    B maps the tokens π of all frames to a text: it drops repetitions, then the id 0 for "no token", which is also the
    padding id of texts. After the end of a row, 0 has probability 1, so that neither the loss nor the text depends on
    padding. Compile the model with `keras.losses.CTC()`; labels are ids (B, U), padded with 0. A text of U tokens, R of
    them equal to the one before, needs at least U + R hidden states.

    Args:
        encoder: a `SpeechEncoder`.
        vocabulary_size: the number of ids, including 0.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the encoder's inputs.

    Shapes:
        output: (B, T', vocabulary_size), float32 logits

    Example:
        >>> model = CTC(SpeechEncoder(1, 2, 16, 32), vocabulary_size=30)
        >>> model({"audio": keras.ops.zeros((2, 16000))}).shape
        TensorShape([2, 25, 30])

    References:
        Graves et al., "Connectionist Temporal Classification" (2006), equations 2 to 4; `greedy_ids`: section 3.2.1,
        best path decoding.
    """

    returns_logits = True
    parts = ("encoder",)

    pad_id = 0

    def __init__(self, encoder: SpeechEncoder, vocabulary_size: int, **kwargs: Any) -> None:
        if not isinstance(encoder, SpeechEncoder):
            raise TypeError(f"`encoder` must be a `SpeechEncoder`. Received: a {type(encoder).__name__}")
        super().__init__(autocast=False, **{"dtype": encoder.dtype_policy, **kwargs})
        check_positive_integer(vocabulary_size=vocabulary_size)
        self.encoder = encoder
        self.vocabulary_size = vocabulary_size
        encoder.build_as_sublayer()
        self.head = keras.layers.Dense(vocabulary_size, dtype="float32", name="head")
        self.head.build((None, None, encoder.model_dim))
        self.built = True

    @property
    def features(self) -> Any:
        """The layer that converts audio to frames; None for a model that reads frames."""
        return self.encoder.features

    @property
    def sample_rate(self) -> int | None:
        """The number of samples in a second of audio; None for a model that reads frames."""
        return self.encoder.sample_rate

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the logits (B, T', vocabulary_size)."""
        named = self.named_inputs(inputs)
        logits = self.head(self.encoder(named, training=training))
        if "lengths" not in named:
            return logits
        nothing = ops.where(ops.arange(self.vocabulary_size) == self.pad_id, 0.0, _NEVER)
        return ops.where(self.is_real(named["lengths"], ops.shape(logits)[1]), logits, nothing)

    def is_real(self, lengths: Tensor, num_logits: Any) -> Tensor:
        """Return which of T' logits belong to rows of these lengths, as samples or frames: (B, T', 1)."""
        lengths = ops.cast(self.encoder.output_lengths(lengths), "int32")
        return (ops.arange(num_logits, dtype="int32") < lengths[:, None])[..., None]

    def greedy_ids(self, logits: Tensor) -> Tensor:
        """Return the most probable id of each frame (B, T'), 0 where it repeats the one before."""
        ids = ops.cast(ops.top_k(logits, 1)[1][..., 0], "int32")
        before = ops.pad(ids[:, :-1], [[0, 0], [1, 0]])
        return ops.where(ids == before, self.pad_id, ids)

    def input_specs(self) -> InputSpecs:
        """Return the inputs of the encoder."""
        return self.encoder.input_specs()

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T', vocabulary_size)."""
        return (*self.encoder.compute_output_shape(input_shape)[:2], self.vocabulary_size)
