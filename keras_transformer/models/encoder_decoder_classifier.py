"""Classification with an encoder–decoder."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Dropout
from keras_transformer.models.bert import weight_initializer
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.input_specs import InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.models.problem_types import check_problem_type
from keras_transformer.models.unlimiformer import Unlimiformer
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderDecoderClassifier(Model):
    r"""Classify texts, or pairs of texts, with an encoder–decoder, or predict numbers.

    Encoder and decoder read the same text, the decoder shifted by one token, as in BART; or the decoder reads only the
    start token. With its hidden state h at the last end token, or at the start token,

    $$\mathrm{logits} = W_2 \tanh(W_1 h + b_1) + b_2$$

    Compile it with the loss of the problem type, see `SequenceClassifier`.

    For long texts, the encoder–decoder can be an `Unlimiformer`: its encoder reads the text in chunks, and each head of
    its decoder retrieves the k states with the highest scores, for the start token or for each token of the last chunk.
    If k is at least the text's length, it equals full cross-attention to the same states; for a text of one chunk, it
    equals the classifier of the wrapped model, with the same weights. With `decoder_input="start"`, everything that the
    decoder knows of a text is retrieved, and the memory does not grow with the chunk.

    Args:
        encoder: the encoder–decoder, such as a `Transformer`, or an `Unlimiformer`.
        num_classes: C, the number of classes.
        dropout: dropout rate before each layer of the head, by default that of the encoder–decoder.
        problem_type: see `SequenceClassifier`.
        decoder_input: "text", or "start" for the start token only.
        **kwargs: arguments of `keras.Model`; the default dtype policy is that of the encoder–decoder.

    Call arguments:
        inputs: ids (B, T), or {"token_ids": (B, T)}, that end with the end id.

    Shapes:
        output: (B, C), float32 logits; for regression the predicted numbers

    References:
        Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation, Translation,
        and Comprehension" (2019), section 3.1. Bertsch et al., "Unlimiformer" (2023), generate texts only.
    """

    returns_logits = True
    parts = ("encoder",)

    def __init__(
        self,
        encoder: EncoderDecoder | Unlimiformer,
        num_classes: int,
        dropout: float | None = None,
        problem_type: str | None = None,
        decoder_input: str = "text",
        **kwargs: Any,
    ) -> None:
        if not isinstance(encoder, EncoderDecoder | Unlimiformer):
            raise TypeError(
                "`encoder` must be an encoder–decoder such as `models.Transformer`. "
                f"Received: a {type(encoder).__name__}"
            )
        check_one_of(("text", "start"), decoder_input=decoder_input)
        super().__init__(**{"dtype": encoder.dtype_policy, **kwargs})
        self.decoder_input = decoder_input
        self.encoder = encoder
        encoder.build_as_sublayer()
        self.problem_type = check_problem_type(problem_type, num_classes)
        self.num_classes = num_classes
        self.dropout = check_rate("dropout", dropout, encoder.dropout)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.transform = keras.layers.Dense(
            encoder.model_dim,
            "tanh",
            kernel_initializer=weight_initializer(),
            dtype=self.dtype_policy,
            name="transform",
        )
        self.head = keras.layers.Dense(
            num_classes, kernel_initializer=weight_initializer(), dtype="float32", name="head"
        )
        for layer in (self.drop, self.transform, self.head):
            layer.build((None, encoder.model_dim))
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the logits (B, C)."""
        ids = self.named_inputs(inputs)["token_ids"]
        memory, padding_mask = self.encoder.encoder_states(ids, training)
        if self.decoder_input == "start":
            ids = ids[:, :1]
        elif isinstance(self.encoder, Unlimiformer):
            ids = self.encoder.last_chunk(ids)
        shifted = ops.concatenate([ops.full_like(ids[:, :1], self.encoder.start_id), ids[:, :-1]], axis=1)
        hidden = self.encoder.decoder_states(shifted, memory, padding_mask, training)
        places = ops.where(ops.equal(ids, self.encoder.end_id), ops.arange(ops.shape(ids)[1]), 0)
        last = ops.max(places, axis=1, initial=0)[:, None, None]  # (B, 1, 1)
        pooled = ops.take_along_axis(hidden, last, axis=1)[:, 0]
        pooled = self.transform(self.drop(pooled, training=training))
        return self.head(self.drop(pooled, training=training))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, C)."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (shape[0], self.num_classes)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {"token_ids": self.encoder.input_specs()["source_ids"]._replace(axes=("B", "T"))}

    def count_tokens(self, inputs: Any) -> int:
        """Return the number of tokens in a batch without padding."""
        ids = inputs["token_ids"] if isinstance(inputs, dict) else inputs
        return int((ids != self.encoder.pad_id).sum())
