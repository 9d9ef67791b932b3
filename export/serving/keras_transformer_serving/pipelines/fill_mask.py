"""Exported masked language models."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving.pipelines.errors import Errors, RefusedError
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, Windows, softmax
from keras_transformer_serving.tasks import Row, Tensor


class MaskPrediction(NamedTuple):
    """A predicted piece for a mask token.

    Attributes:
        piece: the piece, as the tokenizer writes it.
        probability: its probability, in [0, 1].
    """

    piece: str
    probability: float


class FillMask(TextPipeline):
    """An exported masked language model; `load` creates it."""

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Predict the most probable pieces for each mask token, the best first.

        Args:
            text: a list of texts, or one string, each with one mask token or more.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens: mask tokens that are cut are
                not predicted.

        Returns:
            For each text a list with one list of `MaskPrediction` for each mask token; for one string only its list.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text has no mask token, or is too long.
        """
        return self._answers(batch_size, errors=errors, truncate=truncate, text=text)

    def preprocess(self, *texts: str, truncate: bool = False) -> tuple[Windows, None]:
        """Convert a text to ids."""
        mask = self.config["mask"]
        first, *others = map(self.tokenizer.tokenize, texts[0].split(mask))
        if not others:
            raise RefusedError("text", f"`text` must contain the mask token {mask!r}. Received: none")
        ids = [*first, *(id_ for part in others for id_ in (self.tokenizer.mask_id, *part))]
        windows = self._windows(ids, "text", truncate)
        if self.tokenizer.mask_id not in windows.ids[0]:
            raise RefusedError(
                "text",
                f"`text` must contain the mask token {mask!r} in its first {len(windows.ids[0])} tokens "
                "(truncate=True). Received: none",
            )
        return windows, None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> list[list[MaskPrediction]]:
        """Return the most probable pieces for each mask token."""
        (ids,), pieces, top = windows.ids, self.tokenizer.pieces, self.config["top"]
        places = 1 + np.flatnonzero(np.equal(ids, self.tokenizer.mask_id))  # after the start id
        probabilities = softmax(outputs["logits"][0, places])
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
        return [
            [MaskPrediction(pieces[id_], float(row[id_])) for id_ in chosen.tolist()]
            for row, chosen in zip(probabilities, best, strict=True)
        ]

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: the pieces of each mask token and their probabilities."""
        shape = (None, config["top"])
        return Tensor("pieces", "string", shape), Tensor("probabilities", "float32", shape)

    def row(self, answer: list[list[MaskPrediction]]) -> Row:
        """Return the predictions as outputs."""
        return {
            "pieces": [[each.piece for each in mask] for mask in answer],
            "probabilities": [[each.probability for each in mask] for mask in answer],
        }

    @staticmethod
    def text(answer: list[list[MaskPrediction]]) -> str:
        """Return pieces and probabilities; those of several mask tokens are separated by tabs."""
        return "\t".join(" ".join(f"{each.piece} {each.probability:.2f}" for each in mask) for mask in answer)
