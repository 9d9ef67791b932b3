"""Exported pipelines of sentence embeddings."""

from collections.abc import Iterable

import numpy as np

from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, Windows


class Embedding(TextPipeline):
    """An exported encoder of sentences; `load` creates it."""

    def __call__(self, text: str | Iterable[str], batch_size: int = 32) -> np.ndarray:
        """Embed texts.

        Args:
            text: a list of texts, or one string.
            batch_size: the number of rows in a batch.

        Returns:
            float32 (n, D), or (D,) for one string.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is too long.
        """
        rows = np.array(self._answers(batch_size, text=text), np.float32)
        return rows if rows.size else rows.reshape(0, self.config["model_dim"])

    def preprocess(self, *texts: str) -> tuple[Windows, None]:
        """Convert a text to windows of ids."""
        return self._windows(self.tokenizer.tokenize(texts[0]), "text"), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> np.ndarray:
        """Average the vectors (W, D) of the windows of a text, weighted by their numbers of tokens."""
        weights = np.array([len(ids) + 2 for ids in windows.ids], np.float32)[:, None]
        mean: np.ndarray = (weights * outputs["pooled"]).sum(axis=0) / weights.sum()
        if self.config["normalize"]:
            mean = mean / np.sqrt(np.maximum(np.square(mean).sum(), 1e-12))
        return mean
