"""Recipe of extractive question answering."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from keras_transformer import data, models, pipelines
from keras_transformer.recipes import scores
from keras_transformer.recipes.language_model import BERT_ARGUMENTS, new_encoder
from keras_transformer.recipes.pretrained import encoder_of
from keras_transformer.recipes.recipe import Recipe
from keras_transformer_options.tasks import AnswerOptions
from keras_transformer_serving.pipelines.question_answering import ALWAYS_ANSWER


class Answer(AnswerOptions, Recipe):
    """Train a model to find the answers to questions in a context, on files in the format of SQuAD 1.1 or 2.0.

    If questions for training are without an answer, the pipeline has `no_answer_threshold=0.0`: it answers with ""
    where no answer is more probable than the best span. The metrics of such questions have the best threshold.

    Examples are `data.Question`s.

    The options are the fields of `keras_transformer_options.task_options.TaskOptions`.

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
        threshold = None if all(question.answers for question in train) else 0.0
        return pipelines.QuestionAnswering(
            model, tokenizer, long_texts="window", no_answer_threshold=threshold
        )

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
        """Return exact match, F1 of words, and examples; of questions without an answer also SQuAD 2.0's metrics."""
        questions, contexts = (
            [getattr(example, name) for example in examples] for name in ("question", "context")
        )
        references = [example.answers for example in examples]
        threshold = None if all(references) else pipeline.config.get("no_answer_threshold")
        if threshold is None:
            texts = [answer.text for answer in pipeline(questions, contexts)]
            metrics = scores.spans(references, texts)
        else:
            # The best answer to each question, also where the score of no answer is above the threshold.
            answers = pipeline(questions, contexts, no_answer_threshold=ALWAYS_ANSWER)
            no_answer = [answer.no_answer_score for answer in answers]
            best = [answer.text for answer in answers]
            texts = ["" if score > threshold else text for score, text in zip(no_answer, best, strict=True)]
            metrics = {**scores.spans(references, texts), **scores.thresholds(references, best, no_answer)}
        rows = [
            {
                "input": f"{example.question}  —  {example.context}",
                "reference": " / ".join(example.answers),
                "answer": text,
            }
            for example, text in zip(examples, texts, strict=True)
        ]
        return {**metrics, "num_examples": len(texts), "examples": scores.wrong_first(rows)}
