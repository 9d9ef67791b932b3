"""Masked-token prediction."""

import re
from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import MaskedLanguageModel, Pretraining
from keras_transformer.pipelines.arguments import LENGTH, check_output
from keras_transformer.pipelines.pipeline import Preprocessed
from keras_transformer.pipelines.ragged_rows import first_error, utf8_error, valid_utf8
from keras_transformer.pipelines.texts import TextPipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, is_integer
from keras_transformer_serving.pipelines.fill_mask import FillMaskTask
from keras_transformer_serving.pipelines.fill_mask import MaskPrediction as MaskPrediction
from keras_transformer_serving.pipelines.texts import RIGHT
from keras_transformer_serving.text.tokenizer import WHITE_SPACE


class FillMask(FillMaskTask, TextPipeline):
    """A pipeline of a masked language model and its tokenizer.

    A text must have at least one mask token. Its answer is a list with one list of `MaskPrediction`, the best first,
    for each mask token. With truncate=True, mask tokens that are truncated are not predicted.

    Args:
        model: such as `models.MaskedLanguageModel`.
        tokenizer: with the model's vocabulary and a mask id.
        mask: the mask token in texts, by default the tokenizer's.
        top: the number of predictions for each mask token.
        max_length: the maximum number of tokens, including special ones; by default the model's.
        truncation_side: what truncate=True keeps of a text that is too long: "right" its first tokens, "left" its last.

    Example:
        >>> FillMask(model, tokenizer, top=1)("the [MASK] barks")
        [[MaskPrediction(piece='dog', probability=0.93)]]
    """

    summary: ClassVar[str] = "It finds the words that mask tokens stand for."
    sequence_outputs: ClassVar[tuple[str, ...]] = ("logits",)
    hub_task: ClassVar[str | None] = "fill-mask"
    model_classes: ClassVar[tuple[type, ...]] = (MaskedLanguageModel, Pretraining)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        mask: str | None = None,
        top: int = 5,
        *,
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        super().__init__(model, tokenizer, max_length=max_length, truncation_side=truncation_side)
        shape = (None, LENGTH, self.encoder.vocabulary_size)
        check_output(model, "a masked language model, such as `models.MaskedLanguageModel`", shape)
        if getattr(tokenizer, "mask_id", -1) < 0:
            raise ValueError("`tokenizer` must have a mask id. Received: a tokenizer without a mask id")
        mask = tokenizer.id_to_piece(tokenizer.mask_id) if mask is None else mask
        if not mask:
            raise ValueError("`mask` must not be empty. Received: mask=''")
        is_valid = is_integer(top) and 1 <= top <= tokenizer.vocabulary_size
        check(is_valid, f"be in [1, {tokenizer.vocabulary_size}], the vocabulary", top=top)
        self.mask = mask
        self.top = top

    def preprocess(self, text: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert strings (B,) to the model's inputs, as TensorFlow operations."""
        valid = valid_utf8(text)
        if self.tokenizer.lstrip_mask:
            replacement = self.mask.replace("\\", "\\\\")
            valid = tf.strings.regex_replace(valid, f"{WHITE_SPACE}+{re.escape(self.mask)}", replacement)
        parts = tf.strings.split(valid, self.mask)  # (B, None)
        ids = self.tokenizer.tokenize(parts.values)
        mask_ids = tf.fill([ids.nrows(), 1], self.tokenizer.mask_id)
        ids = parts.with_values(tf.concat([ids, mask_ids], axis=1)).merge_dims(1, 2)[:, :-1]
        missing = f"`text` must contain the mask token {self.mask!r}. Received: none"
        error = first_error(utf8_error(text=text), tf.where(parts.row_lengths() > 1, "", missing))
        windows = self._windows(ids, "text", error, truncate)
        inputs = self._inputs(windows.ids)
        error = windows.error
        if truncate:
            length = tf.strings.as_string(windows.ids.row_lengths())
            kept = tf.reduce_any(
                windows.ids.with_values(windows.ids.values == self.tokenizer.mask_id), axis=1
            )
            truncated = tf.strings.join(
                [
                    f"`text` must contain the mask token {self.mask!r} in the ",
                    length,
                    " tokens that truncate=True keeps. Received: none",
                ]
            )
            error = first_error(error, tf.where(kept, "", truncated))
        return Preprocessed(inputs, error, {"token_ids": inputs["token_ids"]})

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return the `top` most probable "pieces" of each mask token, and their "probabilities".

        Both are (B, G, top) for up to G mask tokens in a text; rows with fewer are padded with "" and 0.
        """
        tokenizer = self.tokenizer
        masks = tf.where(batch.state["token_ids"] == tokenizer.mask_id)  # (N, 2)
        best, index = tf.math.top_k(tf.nn.softmax(tf.gather_nd(outputs["logits"], masks)), self.top)
        pieces = tf.constant([tokenizer.id_to_piece(id_) for id_ in range(tokenizer.vocabulary_size)])
        rows, count = masks[:, 0], tf.size(batch.error, tf.int64)
        return {
            "pieces": tf.RaggedTensor.from_value_rowids(tf.gather(pieces, index), rows, count).to_tensor(""),
            "probabilities": tf.RaggedTensor.from_value_rowids(best, rows, count).to_tensor(0.0),
        }

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the masked language model; with the two heads of pre-training, without next-sentence prediction."""
        return {"model": getattr(model, "masked_language_model", model)}

    @classmethod
    def keras_hub_arguments(cls, model: Any, tokenizer: Any, converted: Any) -> dict[str, Any]:
        """Return the mask token."""
        return {"mask": tokenizer.mask_token}

    def example_texts(self) -> list[str]:
        """Return texts made from the vocabulary, each with a mask token."""
        first, *texts = super().example_texts()
        *words, last = first.split() or [""]
        pairs = zip(texts, texts[::-1], strict=True)
        return [
            " ".join([*words, self.mask, last]),
            *(f"{text} {self.mask} {other}" for text, other in pairs),
        ]
