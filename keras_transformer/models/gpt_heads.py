"""Fine-tuning of GPT: classifiers with a language-modelling auxiliary loss."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Dropout
from keras_transformer.models.gpt import GPT
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.models.problem_types import check_problem_type
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor

NUM_SPECIAL_IDS = 3


class _HeadedDecoder(Model):
    """Base class of decoders with a linear head on the hidden state of each sequence's extract token."""

    returns_logits = True
    parts = ("decoder",)

    def __init__(
        self,
        decoder: GPT,
        units: int,
        special_ids: Sequence[int] | None,
        dropout: float | None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(decoder, GPT):
            raise TypeError(f"`decoder` must be a `models.GPT`. Received: a {type(decoder).__name__}")
        super().__init__(**{"dtype": decoder.dtype_policy, **kwargs})
        self.decoder = decoder
        decoder.build_as_sublayer()
        self.special_ids = _check_special_ids(special_ids, decoder)
        self.dropout = check_rate("dropout", dropout, decoder.dropout)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.drop.build((None, decoder.model_dim))
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.head = keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name="head")
        self.head.build((None, decoder.model_dim))
        self.built = True

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """Return the logits of the classes and of the next token at each position."""
        named = self.named_inputs(inputs)
        ids, hidden = named["token_ids"], self._hidden(named, training)
        tokens = self.decoder.logits(hidden)
        return {
            "classes": self._classes(ids, hidden, training),
            "tokens": ops.reshape(tokens, (*ops.shape(ids), self.decoder.vocabulary_size)),
        }

    def classify(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits of the classes as in `call`, without computing the logits of tokens."""
        named = self.named_inputs(inputs)
        return self._classes(named["token_ids"], self._hidden(named, training), training)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> dict[str, Any]:
        """Return the mask of each output."""
        return {"classes": None, "tokens": self.decoder.compute_mask(inputs)}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple[int | None, ...]]:
        """Return the shape of each output."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return {
            "classes": self._classes_shape(tuple(shape)),
            "tokens": (*shape, self.decoder.vocabulary_size),
        }

    def count_tokens(self, inputs: Any) -> int:
        """Return the number of tokens in a batch, as counted by the decoder."""
        return int(self.decoder.count_tokens(inputs))

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {
            "token_ids": InputSpec(
                self.decoder.vocabulary_size, self._axes, max_length=self.decoder.max_length
            ),
            "padding_mask": InputSpec(
                2, self._axes, required=False, exported=self.decoder.pad_id is None, dtype="bool"
            ),
        }

    def _hidden(self, inputs: dict[str, Tensor], training: bool | None) -> Tensor:
        """Return the hidden states (rows, T, D), with the sequences of an example in consecutive rows."""
        rows = {name: ops.reshape(values, (-1, ops.shape(values)[-1])) for name, values in inputs.items()}
        return self.decoder.hidden(rows, training=training)

    def _classes(self, ids: Tensor, hidden: Tensor, training: bool | None) -> Tensor:
        rows = ops.reshape(ids, (-1, ops.shape(ids)[-1]))
        index = ops.arange(ops.shape(rows)[1], dtype="int32")
        last = ops.max(ops.where(ops.equal(rows, self.special_ids[-1]), index, 0), axis=1, initial=0)
        ends = ops.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]  # (rows, D)
        ends = ops.reshape(ends, (*ops.shape(ids)[:-1], self.decoder.model_dim))
        return self._logits(ends, training)

    def _logits(self, ends: Tensor, training: bool | None) -> Tensor:
        """Return the logits of the hidden states (B, D), or (B, R, D) of R sequences, at the extract tokens."""
        raise NotImplementedError

    def _classes_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        raise NotImplementedError

    @property
    def _axes(self) -> tuple[str, ...]:
        """The names of the axes of the ids."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_transformer")
class GPTClassifier(_HeadedDecoder):
    r"""Classify texts or pairs of texts, or predict numbers, by the hidden state of the last token, the extract token.

    $$P(y \mid x_1 \dots x_m) = \mathrm{softmax}(W h_L^m + b), \qquad
    L_3 = -\log P(y \mid x) - \lambda \sum_t \log P(x_{t+1} \mid x_1 \dots x_t)$$

    `data.fine_tuning` creates batches; λ is a loss weight of `compile`, 0.5 in the paper:

        model = GPTClassifier(gpt.resize_token_embeddings(gpt.vocabulary_size + 3), num_classes=2)
        losses = {"classes": SparseCategoricalCrossentropy(from_logits=True), "tokens": LabelSmoothedCrossentropy(0.0)}
        model.compile(Adam(6.25e-5), losses, loss_weights={"classes": 1.0, "tokens": 0.5})

    Args:
        decoder: a `GPT`, usually pretrained.
        num_classes: C, the number of classes.
        symmetric: whether to read the texts of a pair in both orders and add the two hidden states.
        special_ids: ids of the start, delimiter and extract tokens; by default the decoder's last three ids, as added
            by `decoder.resize_token_embeddings(decoder.vocabulary_size + 3)`.
        dropout: dropout rate before the head, by default the decoder's.
        problem_type: "single_label_classification", "multi_label_classification" or "regression"; by default regression
            for one class and single-label classification for several. See `SequenceClassifier` for the loss of
            "classes".
        **kwargs: arguments of `keras.Model`; the default dtype policy is the decoder's.

    Call arguments:
        inputs: ids (B, T), padded on the right; (B, 2, T) if `symmetric`. Or {"token_ids": these ids,
            "padding_mask": booleans of the same shape}.

    Shapes:
        output: {"classes": (B, C), "tokens": (…, T, vocabulary_size) as the ids}, float32 logits; for regression
            "classes" are the predicted numbers

    Example:
        >>> decoder = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> model = GPTClassifier(decoder.resize_token_embeddings(103), num_classes=2)
        >>> model(keras.ops.array([[100, 5, 6, 102]]))["classes"].shape
        TensorShape([1, 2])

    References:
        Radford et al., "Improving Language Understanding by Generative Pre-Training" (2018), section 3.2, equations 3
        to 5, and section 3.3. In the paper λ weights a sum over tokens; here, as in the authors' code, a mean.
    """

    def __init__(
        self,
        decoder: GPT,
        num_classes: int,
        symmetric: bool = False,
        special_ids: Sequence[int] | None = None,
        dropout: float | None = None,
        problem_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        problem_type = check_problem_type(problem_type, num_classes)
        super().__init__(decoder, num_classes, special_ids, dropout, **kwargs)
        self.num_classes = num_classes
        self.problem_type = problem_type
        self.symmetric = symmetric

    def _logits(self, ends: Tensor, training: bool | None) -> Tensor:
        if self.symmetric:
            ends = ops.sum(ends, axis=1)
        return self.head(self.drop(ends, training=training))

    def _classes_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (shape[0], self.num_classes)

    @property
    def _axes(self) -> tuple[str, ...]:
        return ("B", "2", "T") if self.symmetric else ("B", "T")


@keras.saving.register_keras_serializable(package="keras_transformer")
class GPTMultipleChoice(_HeadedDecoder):
    r"""Choose among answers; each answer is read after the context, in a separate sequence.

    $$P(a_k) = \mathrm{softmax}_k(w^\top h_L^m(\mathrm{start}, \mathrm{context}, \mathrm{delimiter}, a_k,
    \mathrm{extract}))$$

    Train it as `GPTClassifier`.

    Args:
        decoder: a `GPT`, usually pretrained.
        special_ids: as in `GPTClassifier`.
        dropout: dropout rate before the head, by default the decoder's.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the decoder's.

    Call arguments:
        inputs: ids (B, K, T) of K answers, padded on the right; or {"token_ids": these ids, "padding_mask": booleans
            (B, K, T)}. A sequence without extract token is not an answer: its logit is −10⁹.

    Shapes:
        output: {"classes": (B, K), "tokens": (B, K, T, vocabulary_size)}, float32 logits

    References:
        Radford et al. (2018), section 3.3 and figure 1.
    """

    def __init__(
        self,
        decoder: GPT,
        special_ids: Sequence[int] | None = None,
        dropout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(decoder, 1, special_ids, dropout, **kwargs)

    def _classes(self, ids: Tensor, hidden: Tensor, training: bool | None) -> Tensor:
        logits = super()._classes(ids, hidden, training)
        present = ops.any(ops.equal(ids, self.special_ids[-1]), axis=-1)
        return ops.where(present, logits, -1e9)

    def _logits(self, ends: Tensor, training: bool | None) -> Tensor:
        return ops.squeeze(self.head(self.drop(ends, training=training)), axis=-1)

    def _classes_shape(self, shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return shape[:2]

    @property
    def _axes(self) -> tuple[str, ...]:
        return ("B", "K", "T")


def _check_special_ids(special_ids: Sequence[int] | None, decoder: GPT) -> tuple[int, ...]:
    size = decoder.vocabulary_size
    checked = tuple(range(size - NUM_SPECIAL_IDS, size)) if special_ids is None else tuple(special_ids)
    reserved = {decoder.pad_id, decoder.end_id} if special_ids is None else {decoder.pad_id}
    is_valid = len(set(checked)) == len(checked) == NUM_SPECIAL_IDS and all(
        0 <= id_ < size for id_ in checked
    )
    if not is_valid or reserved & set(checked):
        raise ValueError(
            f"`special_ids` must be {NUM_SPECIAL_IDS} different ids in [0, {size}), for the start, delimiter and "
            "extract tokens, such as the ids that decoder.resize_token_embeddings adds. "
            f"Received: special_ids={special_ids} with pad_id={decoder.pad_id}, end_id={decoder.end_id}"
        )
    return checked
