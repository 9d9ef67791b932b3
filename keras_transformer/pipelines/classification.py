"""The base class of pipelines of classifiers and regression models."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.pipelines.arguments import as_list
from keras_transformer.pipelines.pipeline import Pipeline
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import ArgumentError, check, is_number
from keras_transformer_serving.pipelines.classification import Classifier


class ClassifierPipeline(Classifier, Pipeline):
    """Base class of pipelines whose model predicts one label, several labels or numbers for each input.

    Attributes:
        labels: a name for each class.
        problem_type: the model's `problem_type`, by default "single_label_classification".
        threshold: the probability above which a label is returned, for multi-label classification.
    """

    labels: list[Any]
    problem_type: str
    threshold: float

    def _set_classes(self, labels: Sequence[Any] | None, threshold: float) -> None:
        check(is_number(threshold) and 0 <= threshold <= 1, "be in [0, 1]", threshold=threshold)
        self.labels = check_labels(labels, self.model.num_classes)
        self.problem_type = getattr(self.model, "problem_type", "single_label_classification")
        self.threshold = threshold

    @property
    def _is_regression(self) -> bool:
        return self.problem_type == "regression"

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the logits and, for a classifier, the probabilities (R, C)."""
        logits = getattr(self.model, "classify", self.model)(inputs, training=False)
        if self._is_regression:
            return {"logits": logits}
        several = self.problem_type == "multi_label_classification"
        return {
            "logits": logits,
            "probabilities": (keras.ops.sigmoid if several else keras.ops.softmax)(logits),
        }

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the names of the classes."""
        return {} if "labels" in settings else {"labels": labels_of(config)}

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the names of the classes."""
        return config_of_labels(self.labels)

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        return {**super().export_config(), "problem_type": self.problem_type}

    def scores_of(self, outputs: dict[str, Tensor]) -> Tensor:
        """Return the probabilities, or the numbers of a regression, from the outputs of `forward`."""
        return outputs["logits" if self._is_regression else "probabilities"]

    def answers_of(self, scores: Tensor) -> dict[str, Tensor]:
        """Convert scores (B, C) to answers, as TensorFlow operations.

        Returns:
            "label" (B,) and "probabilities" (B, C); for multi-label classification "labels" (B, L) above the threshold,
            padded with "" or −1, in place of "label"; for a regression only "values" (B, C).
        """
        if self._is_regression:
            return {"values": scores}
        names = labels_tensor(self.labels)
        if self.problem_type != "multi_label_classification":
            return {"label": tf.gather(names, tf.argmax(scores, axis=-1)), "probabilities": scores}
        classes = tf.broadcast_to(tf.range(tf.shape(scores)[1]), tf.shape(scores))
        chosen = tf.ragged.boolean_mask(classes, scores > self.threshold)
        padding_value = "" if names.dtype == tf.string else -1
        labels = chosen.with_values(tf.gather(names, chosen.values)).to_tensor(padding_value)
        return {"labels": labels, "probabilities": scores}


def check_labels(labels: Sequence[Any] | None, num_classes: int) -> list[Any]:
    """Return `labels` as a list of strings and integers, by default the indices of the classes.

    Args:
        labels: a name for each class, or None.
        num_classes: the number of classes.
    """
    if labels is None:
        labels = range(num_classes)
    # Published folders may have an empty one.
    labels = plain_labels("labels", as_list("labels", labels), may_be_empty=True)
    if len(labels) != num_classes:
        raise ValueError(
            f"`labels` must have a name for each of the model's {num_classes} classes. Received: {len(labels)} labels"
        )
    return labels


def plain_labels(argument: str, labels: Iterable[Any], *, may_be_empty: bool = False) -> list[str | int]:
    """Return labels as strings and integers, which JSON has; True and False as 1 and 0, and 2.0 as 2.

    Args:
        argument: the name of the argument with the labels, for the error.
        labels: strings, integers and booleans, also of NumPy.
        may_be_empty: whether a string may be empty, or of spaces only.
    """
    plain: list[str | int] = []
    for number, label in enumerate(labels):
        if isinstance(label, str):
            if not label.strip() and not may_be_empty:
                raise ArgumentError(
                    "{} must have labels that are not empty. Received: {label!r} in row {number!s}",
                    argument,
                    label=label,
                    number=number,
                )
            plain.append(str(label))
        elif isinstance(label, numbers.Real | np.bool_) and float(label).is_integer():
            plain.append(int(label))
        else:
            raise ArgumentError(
                "{} must have labels that are strings or integers. Received: {label!r} in row {number!s}",
                argument,
                label=label,
                number=number,
            )
    return plain


def labels_of(config: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the classes in a `config.json` of `transformers`, in the order of their ids."""
    names = config.get("id2label")
    if names is None:
        return None
    matched = [re.fullmatch(r"(?:LABEL_)?(\d+)", str(key)) for key in names]
    ids = [int(match[1]) for match in matched if match]
    if sorted(ids) != [*range(len(names))]:
        raise ValueError(
            f"`config.json` must name the classes 0 to {len(names) - 1} in id2label, unless `labels` is given. "
            f"Received: id2label={names!r}"
        )
    return [name for _, name in sorted(zip(ids, names.values(), strict=True))]


def config_of_labels(labels: Sequence[Any]) -> dict[str, Any]:
    """Return the entries of a `config.json` of `transformers` that name the classes; none for their indices."""
    if list(labels) == list(range(len(labels))):
        return {}
    names = [str(label) for label in labels]
    return {
        "id2label": {str(id_): name for id_, name in enumerate(names)},
        "label2id": {name: id_ for id_, name in enumerate(names)},
    }


def labels_tensor(labels: Sequence[Any]) -> tf.Tensor:
    """Return labels as int64 if all are integers, otherwise as strings."""
    if all(isinstance(label, int) for label in labels):
        return tf.constant(labels, tf.int64)
    return tf.constant([str(label) for label in labels])
