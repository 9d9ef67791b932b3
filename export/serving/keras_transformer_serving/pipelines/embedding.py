"""Exported pipelines of sentence embeddings."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines.errors import Errors
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, Windows, as_floats


class Embedding(TextPipeline):
    """An exported encoder of sentences; `load` creates it."""

    def __call__(
        self,
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Embed texts.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of a text, or "return" it in place of the answer.
            truncate: whether to cut a text that is too long, keeping its first tokens.

        Returns:
            float32 (n, D), or (D,) for one string; with errors="return" a list of vectors and errors.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is too long.
        """
        found = self._answers(batch_size, errors=errors, truncate=truncate, text=text)
        return found if errors == "return" else as_floats(found, self.config["model_dim"])

    def preprocess(self, *texts: str, truncate: bool = False) -> tuple[Windows, None]:
        """Convert a text to windows of ids."""
        return self._windows(self.tokenizer.tokenize(texts[0]), "text", truncate), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> np.ndarray:
        """Average the vectors (W, D) of the windows of a text, weighted by their numbers of tokens."""
        weights = np.array([len(ids) + 2 for ids in windows.ids], np.float32)[:, None]
        mean: np.ndarray = (weights * outputs["pooled"]).sum(axis=0) / weights.sum()
        if self.config["normalize"]:
            mean = mean / np.sqrt(np.maximum(np.square(mean).sum(), 1e-12))
        return mean
