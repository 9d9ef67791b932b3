"""Masked-token prediction."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.pipelines import class_labels, texts


class MaskPrediction(NamedTuple):
    """A predicted piece for a mask token.

    Attributes:
        piece: the piece, as the tokenizer writes it.
        probability: its probability, in [0, 1].
    """

    piece: str
    probability: float


class FillMask(texts.TextPipeline):
    """A pipeline of a masked language model and its tokenizer.

    Args:
        model: such as `models.MaskedLanguageModel`.
        tokenizer: with the model's vocabulary and a mask id.
        mask: the mask token in texts.
        top: the number of predictions for each mask token.

    Raises:
        ValueError: if model and tokenizer do not match, or `top` is out of range.

    Example:
        >>> FillMask(model, tokenizer, top=1)("the [MASK] barks")
        [[MaskPrediction(piece='dog', probability=0.93)]]
    """

    def __init__(self, model: Any, tokenizer: Any, mask: str = "[MASK]", top: int = 5) -> None:
        super().__init__(model, tokenizer)
        if getattr(tokenizer, "mask_id", -1) < 0:
            raise ValueError("`tokenizer` must have a mask id. Received: one without")
        if not mask:
            raise ValueError("`mask` must not be empty. Received: mask=''")
        if not 1 <= top <= tokenizer.vocabulary_size:
            raise ValueError(
                f"`top` must be in [1, {tokenizer.vocabulary_size}], the vocabulary. Received: top={top}"
            )
        self.mask = mask
        self.top = top

    def __call__(self, given: str | Iterable[str], batch_size: int = 32) -> Any:
        """Predict the most probable pieces for each mask token, the best first.

        Args:
            given: a list of texts, or one string, each with one mask token or more.
            batch_size: the number of rows in a batch.

        Returns:
            For each text a list with one list of `MaskPrediction` for each mask token; for one string only its list.

        Raises:
            ValueError: if a text has no mask token, or is too long.
        """
        listed, one = texts.as_list(given)
        rows = []
        for i, text in enumerate(listed):
            parts = self._ids(text.split(self.mask))
            if len(parts) < 2:
                raise ValueError(
                    f"`given` must hold {self.mask!r} in each text. Received: given[{i}]={text!r}"
                )
            ids = parts[0]
            for part in parts[1:]:
                ids = [*ids, self.tokenizer.mask_id, *part]
            self._windows(ids, self.encoder.max_length - 2, i, "given")
            rows.append(self._row(ids))
        found = []
        for row, logits in zip(rows, self._run(rows, batch_size), strict=True):
            gaps = np.flatnonzero(np.array(row["token_ids"]) == self.tokenizer.mask_id)
            found.append([self._best(class_labels.softmax(logits[gap])) for gap in gaps])
        return found[0] if one else found

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {"mask": self.mask, "top": self.top}

    def _best(self, probabilities: np.ndarray) -> list[MaskPrediction]:
        best = np.argsort(-probabilities, kind="stable")[: self.top]
        return [MaskPrediction(self.tokenizer.id_to_piece(int(i)), float(probabilities[i])) for i in best]
