"""Recipe of extractive question answering."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from keras_transformer import data, models, pipelines
from keras_transformer.recipes import scores
from keras_transformer.recipes.base import Recipe
from keras_transformer.recipes.language_model import BERT_ARGUMENTS, new_encoder
from keras_transformer.recipes.pretrained import encoder_of
from keras_transformer_options.tasks import AnswerOptions


class Answer(AnswerOptions, Recipe):
    """Train a model to find the answers to questions in a context, on files in SQuAD's format.

    Examples are `data.Question`s.

    The options are the fields of `keras_transformer_options.base.TaskOptions`.

    Example:
        >>> answerer, history = Answer("train-v1.1.json").train()  # doctest: +SKIP
        >>> answerer("Who barks?", "A dog barks.").text  # doctest: +SKIP
        'dog'
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = BERT_ARGUMENTS

    def read(self, paths: Any) -> Sequence[Any]:
        """Read questions."""
        return data.read_squad(paths, encoding=self.encoding, on_error=self.on_error)

    def split(self, examples: Any) -> tuple[Any, Any]:
        """Hold out a fraction of the contexts with their questions."""
        if len({example.context for example in examples}) < 2:
            return super().split(examples)
        return data.split(examples, self.validation, self.seed, key=lambda question: question.context)

    def new_pipeline(self, train: Sequence[Any]) -> pipelines.QuestionAnswering:
        """Create a BERT encoder with a head for the start and the end of the answer."""
        if self.from_ is not None:
            pipeline = self.pretrained()
            encoder, tokenizer = encoder_of(pipeline), pipeline.tokenizer
        else:
            contexts = dict.fromkeys(question.context for question in train)
            tokenizer = self.new_tokenizer([*contexts, *(question.question for question in train)])
            encoder = new_encoder(self, tokenizer)
        model = models.SpanClassifier(encoder, dtype=self.precision)
        return pipelines.QuestionAnswering(model, tokenizer, long_texts="window")

    def batches(self, examples: Sequence[Any], pipeline: Any, shuffle: bool) -> Any:
        """Return batches of questions and windows of contexts, with the positions of the answers."""
        return data.questions(
            [example.question for example in examples],
            [example.context for example in examples],
            [example.answer for example in examples],
            pipeline.tokenizer,
            max_length=min(self.max_length, pipeline.encoder.max_length),
            **self.batching(shuffle),
        )

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return the mean cross-entropy of start and end, and their accuracy."""
        del pipeline
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]

    def evaluate(self, pipeline: Any, examples: Sequence[Any]) -> dict[str, Any]:
        """Return exact match, F1 of words, and examples."""
        answers = pipeline(
            [example.question for example in examples], [example.context for example in examples]
        )
        texts = [answer.text for answer in answers]
        rows = [
            {
                "input": f"{example.question}  —  {example.context}",
                "reference": " / ".join(example.answers),
                "answer": text,
            }
            for example, text in zip(examples, texts, strict=True)
        ]
        metrics = scores.spans([example.answers for example in examples], texts)
        return {**metrics, "num_examples": len(texts), "examples": scores.wrong_first(rows)}
