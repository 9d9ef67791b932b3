"""Recipe of a classifier of texts, pairs of texts or images."""

import collections
import logging
import os
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer import data, models, pipelines
from keras_transformer.datasets import mnist, sst2
from keras_transformer.pipelines.classification import plain_labels
from keras_transformer.recipes import images, scores
from keras_transformer.recipes.language_model import BERT_ARGUMENTS, new_encoder
from keras_transformer.recipes.pretrained import encoder_of
from keras_transformer.recipes.recipe import Recipe, read_rows
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.tasks import VIT_SIZES, ClassifyOptions

_UNEQUAL, _FEW = 1.5, 3
_SEVERAL = "multi_label_classification"
_MOST_SHOWN = 10  # labels in a warning
_LOGGER = logging.getLogger("keras_transformer")


class Classify(ClassifyOptions, Recipe):
    """Train a classifier of texts, pairs of texts, or images.

    Examples are (text, label), (text, second text, label) or (image, label). Images are read from a folder with one
    folder of images for each class. Labels are strings, whose surrounding spaces are removed, integers or booleans.
    With `label_separator`, a label is a string of several, such as "food, service".

    The options are the fields of `ClassifyOptions` and of its base classes in `keras_transformer_options`.

    Example:
        >>> classifier, history = Classify("reviews.csv", columns=("text", "label")).train()  # doctest: +SKIP
        >>> classifier("a fine film")  # doctest: +SKIP
        'positive'
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = {**BERT_ARGUMENTS, **images.VIT_ARGUMENTS}

    def read(self, paths: Any) -> Sequence[tuple[Any, ...]]:
        """Read labelled texts from files, or labelled images from a folder of folders."""
        if os.path.isdir(paths[0]):
            self.check_one_label_of_images(True)
            return images.read(pathlib.Path(paths[0]), self.image_size)
        return read_rows(self, paths)

    def examples(self, field: str) -> Any:
        """Return the examples of a field, with labels that are strings without spaces around them, or integers.

        With `label_separator`, each has a tuple of labels.
        """
        examples = super().examples(field)
        if examples is None:
            return None
        may_be_empty = self.label_separator is not None  # without a label
        labels: list[Any] = plain_labels(field, (each[-1] for each in examples), may_be_empty=may_be_empty)
        if may_be_empty or any(isinstance(label, str) for label in labels):
            labels = [str(label).strip() for label in labels]
        if self.label_separator is not None:
            self.check_one_label_of_images(any(not isinstance(example[0], str) for example in examples))
            parts = (map(str.strip, label.split(self.label_separator)) for label in labels)
            labels = [tuple(sorted(set(filter(None, each)), key=scores.label_order)) for each in parts]
        return [(*example[:-1], label) for example, label in zip(examples, labels, strict=True)]

    def _labels_of(self, example: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the label of an example, or its labels."""
        return example[-1:] if self.label_separator is None else example[-1]

    def load_dataset(self) -> tuple[Any, Any, Any]:
        """Load the train, validation and test examples of the public dataset."""
        if self.dataset == "mnist":
            return images.arrays(mnist.load_data())
        train, validation, test = (
            [(text, str(label)) for text, label in split] for split in sst2.load_data()
        )
        return train, validation, test

    def split(self, examples: Any) -> tuple[Any, Any]:
        """Hold out a fraction of the examples of each class; equal texts or images stay together."""
        key = None if isinstance(examples[0][0], str) else lambda example: example[0].tobytes()
        splits = data.split(examples, self.validation, self.seed, key=key, strata=lambda example: example[-1])
        return scores.keep_every_label(*splits, self._labels_of)

    def new_pipeline(self, train: Sequence[tuple[Any, ...]]) -> Any:
        """Create a classifier: a BERT encoder with mean pooling for texts, or a ViT for images."""
        labels = sorted(
            {label for example in train for label in self._labels_of(example)}, key=scores.label_order
        )
        if len(labels) < 2:
            raise ArgumentError(
                "{data} must have at least two classes. Received: the labels {labels!s}", labels=labels
            )
        if isinstance(train[0][0], np.ndarray):
            model = images.new_model(self, len(labels), train[0][0].shape)
            return pipelines.ImageClassification(model, labels, resize=True)
        if self.model_size in VIT_SIZES:
            raise ArgumentError(
                "{model_size} must not be a size of ViT for texts", model_size=self.model_size
            )
        if self.from_ is not None:
            pipeline = self.pretrained()
            encoder, tokenizer = encoder_of(pipeline), pipeline.tokenizer
        else:
            tokenizer = self.new_tokenizer(text for example in train for text in example[:-1])
            encoder = new_encoder(self, tokenizer)
        pooling = "mean" if encoder.pooler is None else "pooler"
        problem_type = None if self.label_separator is None else _SEVERAL
        model = models.SequenceClassifier(
            encoder, len(labels), pooling, problem_type=problem_type, dtype=self.precision
        )
        return pipelines.TextClassification(model, tokenizer, labels, long_texts="window")

    def batches(self, examples: Sequence[tuple[Any, ...]], pipeline: Any, shuffle: bool) -> Any:
        """Return batches of texts, pairs of texts or images, and labels."""
        labels = scores.class_ids(
            [label for each in examples for label in self._labels_of(each)], pipeline.labels
        )
        if self.label_separator is not None:
            rows = np.repeat(range(len(examples)), [len(example[-1]) for example in examples])
            several = np.zeros((len(examples), len(pipeline.labels)), "int32")
            several[rows, labels] = 1
            labels = several
        if isinstance(pipeline, pipelines.ImageClassification):
            return images.batches(self, examples, labels, shuffle)
        texts = [example[0] if len(example) == 2 else example[:2] for example in examples]
        return data.classification(
            texts,
            labels,
            pipeline.tokenizer,
            max_length=min(self.max_length, pipeline.encoder.max_length),
            **self.batching(shuffle),
        )

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return cross-entropy and accuracy, of several labels those of each."""
        if pipeline.model.problem_type == _SEVERAL:
            accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)  # of logits
            return keras.losses.BinaryCrossentropy(from_logits=True), [accuracy]
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]

    def class_counts(self, examples: Sequence[tuple[Any, ...]]) -> dict[str, int]:
        """Return the number of examples of each class."""
        counts = collections.Counter(label for example in examples for label in self._labels_of(example))
        return {str(label): counts[label] for label in sorted(counts, key=scores.label_order)}

    def class_weight(self, pipeline: Any) -> dict[int, float] | None:
        """Return the inverse frequency of each class, with a mean of 1 over the examples.

        Classes with one or two examples, often a header or a misspelt label, cause a warning and have the weight 1.
        Several labels of an example are not weighted.
        """
        if self.label_separator is not None:
            return None
        counts = collections.Counter(example[-1] for example in self.splits.train)
        rare = [label for label in pipeline.labels if counts[label] < _FEW]
        common = {label: count for label, count in counts.items() if label not in rare}
        if rare:
            _LOGGER.warning(
                "Classes with one or two training examples, which are too few to learn: %s",
                ", ".join(f"{label} {counts[label]}" for label in rare),
            )
        if (
            self.class_weights == "none"
            or not common
            or max(common.values()) <= _UNEQUAL * min(common.values())
        ):
            return None
        shown = ", ".join(f"{label} {counts[label]:,}" for label in pipeline.labels if label in common)
        _LOGGER.warning(
            "Classes are weighted by their inverse frequency, because they are unequal: %s", shown
        )
        mean = sum(common.values()) / len(common)
        return {
            number: mean / common[label] if label in common else 1.0
            for number, label in enumerate(pipeline.labels)
        }

    def evaluate(self, pipeline: Any, examples: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """Return accuracy, macro F1, the F1 of each class, and examples; several labels are right if all are."""
        references = [self._labels_of(example) for example in examples]
        if isinstance(examples[0][0], np.ndarray):
            pixels = np.stack([example[0] for example in examples])
            if pipeline.config["num_channels"] < pixels.shape[-1]:
                pixels = images.gray(pixels)
            answers = pipeline(pixels)
            inputs = [
                f"image {number}" if len(example) == 2 else example[1]
                for number, example in enumerate(examples)
            ]
        else:
            answers = pipeline(*map(list, zip(*(example[:-1] for example in examples), strict=True)))
            inputs = [" ⇥ ".join(example[:-1]) for example in examples]
        answers = [(answer,) if self.label_separator is None else tuple(answer) for answer in answers]
        known = pipeline.config["labels"]
        if all(isinstance(label, str) for reference in references for label in reference):  # of files
            answers, known = [tuple(map(str, answer)) for answer in answers], [*map(str, known)]
        rows = [
            {"input": input_, "reference": self._shown(reference), "answer": self._shown(answer)}
            for input_, reference, answer in zip(inputs, references, answers, strict=True)
        ]
        present = {label for reference in references for label in reference}
        if missing := [str(label) for label in known if label not in present]:
            _LOGGER.warning("Classes without an example to evaluate on: %s", ", ".join(missing))
        if unknown := sorted(map(str, present.difference(known))):
            _LOGGER.warning("Labels that the classifier does not have: %s", ", ".join(unknown[:_MOST_SHOWN]))
        metrics = scores.classification(references, answers, known)
        return {**metrics, "examples": scores.wrong_first(rows)}

    def _shown(self, labels: tuple[Any, ...]) -> Any:
        """Return a label, or several as in the examples."""
        if self.label_separator is None:
            return labels[0]
        return f"{self.label_separator} ".join(sorted(labels, key=scores.label_order))
