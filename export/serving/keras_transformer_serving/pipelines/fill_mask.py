"""Masked language models."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.decoding import largest
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.texts import (
    Arrays,
    TextPipeline,
    TextTask,
    Truncate,
    Windows,
    softmax,
)
from keras_transformer_serving.tasks import Row, Tensor
from keras_transformer_serving.text.tokenizer import WHITE_SPACE


class MaskPrediction(NamedTuple):
    """A predicted piece for a mask token.

    Attributes:
        piece: the piece, as the tokenizer writes it.
        probability: its probability, in [0, 1].
    """

    piece: str
    probability: float


class FillMaskTask(TextTask):
    """The prediction of masked tokens.

    The answer to a text, which must have one mask token or more, is a list with one list of `MaskPrediction`, the best
    first, for each. With truncate=True, mask tokens that are cut are not predicted.
    """

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: the pieces of each mask token and their probabilities."""
        shape = (None, config["top"])
        return Tensor("pieces", "string", shape), Tensor("probabilities", "float32", shape)

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.choices` of pieces at all positions."""
        expected, found = closeness.real_values(pairs, "logits", closeness.softmax)
        return {**closeness.choices("pieces", expected, found), **closeness.logits(pairs)}

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> list[list[MaskPrediction]]:
        """Return the predictions of the outputs of a text; outputs of texts with fewer mask tokens are padded."""
        pieces, probabilities = (np.asarray(row[name]).tolist() for name in ("pieces", "probabilities"))
        return [
            list(map(MaskPrediction, *mask))
            for mask in zip(pieces, probabilities, strict=True)
            if mask[1][0] > 0
        ]

    @staticmethod
    def text(answer: list[list[MaskPrediction]]) -> str:
        """Return pieces and probabilities; several mask tokens are separated by tabs."""
        return "\t".join(
            " ".join(f"{prediction.piece} {prediction.probability:.2f}" for prediction in mask)
            for mask in answer
        )


class FillMask(FillMaskTask, TextPipeline):
    """An exported masked language model; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, None]:
        """Convert a text to ids."""
        mask, text = self.config["mask"], texts[0]
        if self.tokenizer.lstrip_mask:
            text = re.sub(f"{WHITE_SPACE}+{re.escape(mask)}", lambda _: mask, text)
        first, *others = map(self.tokenizer.tokenize, text.split(mask))
        if not others:
            raise InvalidInputError("text", f"`text` must contain the mask token {mask!r}. Received: none")
        ids = [*first, *(id_ for part in others for id_ in (self.tokenizer.mask_id, *part))]
        windows = self._windows(ids, "text", truncate)
        if self.tokenizer.mask_id not in windows.ids[0]:
            raise InvalidInputError(
                "text",
                f"`text` must contain the mask token {mask!r} in the {len(windows.ids[0])} tokens that truncate=True "
                "keeps. Received: none",
            )
        return windows, None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> Row:
        """Return the most probable pieces for each mask token."""
        (ids,), pieces, top = windows.ids, self.tokenizer.pieces, self.config["top"]
        places = 1 + np.flatnonzero(np.equal(ids, self.tokenizer.mask_id))  # after the start id
        probabilities = softmax(outputs["logits"][0, places])
        best = [largest(row, top) for row in probabilities]
        return {
            "pieces": [[pieces[id_] for id_ in chosen] for chosen in best],
            "probabilities": np.take_along_axis(probabilities, np.array(best), axis=-1),
        }
