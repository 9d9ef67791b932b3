"""Recipe of a cross-encoder, which scores texts for queries."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer import data, models, pipelines
from keras_transformer.recipes import scores
from keras_transformer.recipes.language_model import BERT_ARGUMENTS, new_encoder
from keras_transformer.recipes.pretrained import encoder_of
from keras_transformer.recipes.recipe import Recipe, read_rows
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.tasks import RerankOptions

Example = tuple[str, str, float]
_RELEVANT = 0.5


class Rerank(RerankOptions, Recipe):
    """Train a cross-encoder to score texts for queries, with binary cross-entropy.

    Examples are (query, text, relevance), from 0 for a text that does not answer the query to 1 for one that does.

    The options are the fields of `keras_transformer_options.task_options.TableOptions`.

    Example:
        >>> reranker, history = Rerank("judgements.tsv").train()  # doctest: +SKIP
        >>> reranker.rank("who barks?", ["a cat", "a dog barks"], top_k=1)  # doctest: +SKIP
        [RankedText(text_index=1, score=0.93)]
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = BERT_ARGUMENTS

    def read(self, paths: Any) -> Sequence[tuple[str, ...]]:
        """Read queries, texts and their relevance."""
        return read_rows(self, paths)

    def examples(self, field: str) -> Any:
        """Return the examples of a field, with their relevance as a number."""
        examples = super().examples(field)
        if examples is None:
            return None
        return [
            (query, text, _relevance(field, value, row)) for row, (query, text, value) in enumerate(examples)
        ]

    def split(self, examples: Any) -> tuple[Any, Any]:
        """Hold out a fraction of the queries with their texts."""
        if len({query for query, *_ in examples}) < 2:
            return super().split(examples)
        return data.split(examples, self.validation, self.seed, key=lambda example: example[0])

    def new_pipeline(self, train: Sequence[Example]) -> pipelines.Reranking:
        """Create a BERT encoder with one logit, or take the model of a `Reranking`."""
        if self.from_ is None:
            tokenizer = self.new_tokenizer(text for example in train for text in example[:2])
            encoder = new_encoder(self, tokenizer)
        else:
            pipeline = self.pretrained()
            if isinstance(pipeline, pipelines.Reranking):
                return pipeline
            encoder, tokenizer = encoder_of(pipeline), pipeline.tokenizer
        pooling = "mean" if encoder.pooler is None else "pooler"
        model = models.SequenceClassifier(encoder, 1, pooling, dtype=self.precision)
        return pipelines.Reranking(model, tokenizer, long_texts="truncate")

    def batches(self, examples: Sequence[Example], pipeline: Any, shuffle: bool) -> Any:
        """Return batches of pairs of a query and a text, and their relevance."""
        return data.classification(
            [(query, text) for query, text, _ in examples],
            [float(relevance) for *_, relevance in examples],
            pipeline.tokenizer,
            max_length=min(self.max_length, pipeline.encoder.max_length),
            **self.batching(shuffle),
        )

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return binary cross-entropy."""
        del pipeline
        return keras.losses.BinaryCrossentropy(from_logits=True), []

    def evaluate(self, pipeline: Any, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the mean reciprocal rank, the accuracy of scores rounded to 0 or 1, and examples."""
        queries, texts, relevance = map(list, zip(*examples, strict=True))
        predicted = pipeline(queries, texts, truncate=True)
        if pipeline.config["activation"] == "linear":
            predicted = 1 / (1 + np.exp(-predicted))
        rows = [
            {
                "input": f"{query} ⇥ {text}",
                "reference": expected >= _RELEVANT,
                "answer": bool(score >= _RELEVANT),
            }
            for query, text, expected, score in zip(queries, texts, relevance, predicted, strict=True)
        ]
        return {
            **scores.ranking(queries, [row["reference"] for row in rows], predicted),
            "accuracy": sum(row["reference"] == row["answer"] for row in rows) / len(rows),
            "num_examples": len(rows),
            "examples": scores.wrong_first(rows),
        }


def _relevance(field: str, value: Any, row: int) -> float:
    """Return a relevance as a number, or raise a ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1:
        raise ArgumentError(
            "{} must have a relevance from 0 to 1 in the last column: divide grades by the highest. Received: "
            f"{{value!r}} in example {row}",
            field,
            value=value,
        )
    return number
