"""Recipe of a tagger of words, for tasks such as named entity recognition."""

import collections
from collections.abc import Sequence
from typing import Any, ClassVar

from keras_transformer import data, models, pipelines, training
from keras_transformer.pipelines.classification import plain_labels
from keras_transformer.recipes import scores
from keras_transformer.recipes.language_model import BERT_ARGUMENTS, new_encoder
from keras_transformer.recipes.pretrained import encoder_of
from keras_transformer.recipes.recipe import Recipe
from keras_transformer_options.tasks import TagOptions

Sentences = Sequence[tuple[Sequence[str], Sequence[str]]]


class Tag(TagOptions, Recipe):
    """Train a tagger of words on sentences (words, tags), such as files in CoNLL's format.

    The options are the fields of `keras_transformer_options.task_options.TaskOptions`.

    Example:
        >>> tagger, history = Tag("train.conll", validation="valid.conll").train()  # doctest: +SKIP
        >>> tagger("said Ada")  # doctest: +SKIP
        [TaggedWord(word='said', label='O', …), TaggedWord(word='Ada', label='B-PER', …)]
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = BERT_ARGUMENTS

    def read(self, paths: Any) -> Sentences:
        """Read words and tags: by default the first and the last column."""
        return data.read_conll(paths, self.columns or (0, -1), encoding=self.encoding, on_error=self.on_error)

    def examples(self, field: str) -> Any:
        """Return the sentences of a field, with tags that are strings."""
        examples = super().examples(field)
        if examples is None:
            return None
        return [
            (tuple(words), tuple(map(str, plain_labels(f"{field}[{row}]", tags))))
            for row, (words, tags) in enumerate(examples)
        ]

    def split(self, examples: Sentences) -> tuple[Any, Any]:
        """Hold out a fraction of the sentences of each tag; every tag keeps a training sentence."""
        counts = collections.Counter(tag for _, tags in examples for tag in {*tags})

        def rarest(sentence: tuple[Sequence[str], Sequence[str]]) -> str:
            return min({*sentence[1]}, key=lambda tag: (counts[tag], tag))

        splits = data.split(examples, self.validation, self.seed, strata=rarest)
        if not splits[1]:  # each tag is the rarest of one sentence
            splits = super().split(examples)
        return scores.keep_every_label(*splits, lambda sentence: sentence[1])

    def new_pipeline(self, train: Sentences) -> pipelines.TokenClassification:
        """Create a BERT encoder with a head that classifies tokens."""
        if self.from_ is not None:
            pipeline = self.pretrained()
            encoder, tokenizer = encoder_of(pipeline), pipeline.tokenizer
        else:
            tokenizer = self.new_tokenizer(" ".join(words) for words, _ in train)
            encoder = new_encoder(self, tokenizer)
        labels = sorted({tag for _, tags in train for tag in tags}, key=scores.label_order)
        model = models.TokenClassifier(encoder, len(labels), dtype=self.precision)
        return pipelines.TokenClassification(model, tokenizer, labels, long_texts="window")

    def batches(self, examples: Sentences, pipeline: Any, shuffle: bool) -> Any:
        """Return batches of sentences in which the first token of each word is labelled."""
        tags = [scores.class_ids(tags, pipeline.labels) for _, tags in examples]
        return data.tagging(
            [words for words, _ in examples],
            tags,
            pipeline.tokenizer,
            max_length=min(self.max_length, pipeline.encoder.max_length),
            **self.batching(shuffle),
        )

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return cross-entropy and accuracy of the labelled tokens; other tokens have negative labels."""
        del pipeline
        return training.LabelSmoothedCrossentropy(0.0, pad_id=None), [training.TokenAccuracy(pad_id=None)]

    def check_requirements(self) -> None:
        """Raise an ImportError if seqeval is not installed."""
        scores.entities([["O"]], [["O"]])

    def evaluate(self, pipeline: Any, examples: Sentences) -> dict[str, Any]:
        """Return the accuracy of words, the F1 of entities if there are B- tags, and examples."""
        texts = [" ".join(words) for words, _ in examples]
        references = [list(tags) for _, tags in examples]
        answers = [_tags(words, tagged) for (words, _), tagged in zip(examples, pipeline(texts), strict=True)]
        flat = [[tag for tags in sentences for tag in tags] for sentences in (references, answers)]
        metrics = scores.classification(*([(tag,) for tag in tags] for tags in flat))
        if any(tag.startswith("B-") for tag in flat[0]):
            metrics |= scores.entities(references, answers)
        rows = [
            {"input": text, "reference": " ".join(reference), "answer": " ".join(answer)}
            for text, reference, answer in zip(texts, references, answers, strict=True)
        ]
        return {**metrics, "examples": scores.wrong_first(rows)}


def _tags(words: Sequence[str], tagged: Sequence[pipelines.TaggedWord]) -> list[str]:
    """Return a tag for each word, "O" for a word without tokens, which the pipeline omits."""
    tag_at, start, tags = {word.start: str(word.label) for word in tagged}, 0, []
    for word in words:
        tags.append(tag_at.get(start, "O"))
        start += len(word) + 1
    return tags
