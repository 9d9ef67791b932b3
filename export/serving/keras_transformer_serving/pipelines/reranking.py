"""Reranking: the scores of texts for a query."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.pipelines.errors import Errors, as_list, check_positive_integer
from keras_transformer_serving.pipelines.texts import Arrays, TextPipeline, TextTask, Truncate, Windows
from keras_transformer_serving.tasks import DEFAULT, TEXT, Row, Tensor


class RankedText(NamedTuple):
    """A text in a ranking.

    Attributes:
        text_index: the index of the text among those that were ranked.
        score: its score.
    """

    text_index: int
    score: float


class RerankingTask(TextTask):
    """The scoring of texts for a query."""

    def __call__(  # type: ignore[override]
        self,
        query: str | Iterable[str],
        text: str | Iterable[str],
        batch_size: int = 32,
        *,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        """Return the score of each text for the query.

        Args:
            query: the query of all texts, or a list with one for each text.
            text: a list of texts, or one string.
            batch_size: the number of pairs of a query and a text in a batch.
            errors: "raise" the error of a query or text, or "return" it in place of the score.
            truncate: whether to cut pairs that are too long, the longer text first, as `sentence-transformers` does.

        Returns:
            float32 (n,), in the order of the texts, or a number for one query and one string; with errors="return" a
            list of numbers and errors.

        Raises:
            ValueError: if a text is too long with its query, or there are not as many queries as texts.
        """
        texts = text if isinstance(text, str) else as_list("text", text)
        queries = [query] * len(texts) if isinstance(query, str) and isinstance(texts, list) else query
        columns: dict[str, str | Iterable[str]] = {"query": queries, "text": texts}
        answers = self._answers(columns, batch_size, errors=errors, truncate=truncate)
        is_array = isinstance(answers, list) and errors != "return"
        return np.array(answers, np.float32) if is_array else answers

    def rank(
        self,
        query: str,
        text: Iterable[str],
        top_k: int | None = None,
        batch_size: int = 32,
        *,
        truncate: bool = False,
    ) -> list[RankedText]:
        """Return the texts with the highest scores for a query, the highest first.

        Args:
            query: the query.
            text: a list of texts.
            top_k: the maximum number of texts; by default all.
            batch_size: as in a call.
            truncate: as in a call.

        Returns:
            The index and the score of each text; texts with the same score are in their order.
        """
        if top_k is not None:
            check_positive_integer("top_k", top_k)
        if not isinstance(query, str):
            raise TypeError(f"`query` must be a string. Received: query={query!r}")
        texts = as_list("text", text)
        scores = self(query, texts, batch_size, truncate=truncate)
        return [
            RankedText(int(index), float(scores[index]))
            for index in np.argsort(-scores, kind="stable")[:top_k]
        ]

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: a query and a text."""
        return {DEFAULT: (Tensor("query", "string"), TEXT)}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the output "score"."""
        return (Tensor("score", "float32"),)

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figure of `closeness.ranking`, and the error of the logits."""
        return {**closeness.ranking(pairs, "scores"), **closeness.logits(pairs)}

    @staticmethod
    def text(answer: float) -> str:
        """Return the score with six digits."""
        return f"{answer:.6g}"


class Reranking(RerankingTask, TextPipeline):
    """An exported cross-encoder; `load` creates it."""

    def preprocess(self, *texts: str, truncate: Truncate = None) -> tuple[Windows, None]:
        """Convert a query and a text to windows of ids."""
        return self._pair_windows(truncate, **dict(zip(("query", "text"), texts, strict=True))), None

    def postprocess(self, outputs: Arrays, windows: Windows, state: None) -> Row:
        """Return the largest score of the windows of a text."""
        return {"score": float(outputs["scores"].max())}
