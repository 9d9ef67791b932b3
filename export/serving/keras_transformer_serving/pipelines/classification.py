"""Outputs of exported classifiers and regressions, and exports that read arrays: images and graphs."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from keras_transformer_serving.model import Model, postprocess
from keras_transformer_serving.pipelines.texts import softmax
from keras_transformer_serving.tasks import Row, Task, Tensor


class Classifier(Task):
    """A mixin of exported pipelines that give one label, several labels or numbers for each input."""

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: a label or labels and the probabilities, or the numbers of a regression."""
        count, problem_type = len(config["labels"]), config["problem_type"]
        if problem_type == "regression":
            return (Tensor("values", "float32", (count,)),)
        several = problem_type == "multi_label_classification"
        name, shape = ("labels", (None,)) if several else ("label", ())
        return Tensor(name, label_dtype(config), shape), Tensor("probabilities", "float32", (count,))

    def row(self, answer: np.ndarray) -> Row:
        """Return the outputs for scores (C,)."""
        config, problem_type = self.config, self.config["problem_type"]
        if problem_type == "regression":
            return {"values": answer}
        (found,) = postprocess(answer[None], config["labels"], problem_type, config["threshold"])
        strings = label_dtype(config) == "string"
        if isinstance(found, list):
            return {"labels": [str(each) if strings else each for each in found], "probabilities": answer}
        return {"label": str(found) if strings else found, "probabilities": answer}


class ArrayPipeline(Model, abc.ABC):
    """Base class of exported pipelines of arrays, whose inputs are those of the graph."""

    @abc.abstractmethod
    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> Any:
        """Convert the model's outputs for a row to its answer."""


class ImageClassification(Classifier, ArrayPipeline):
    """An exported image classifier, or regression; `load` creates it."""

    reads: ClassVar[str] = "images"

    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the scores (C,)."""
        return outputs["probabilities" if "probabilities" in outputs else "logits"]


class NodeClassification(ArrayPipeline):
    """An exported classifier of the nodes of a graph; `load` creates it."""

    reads: ClassVar[str] = ""

    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> tuple[list[Any], np.ndarray]:
        """Return the labels of the T nodes and the probabilities (T, C)."""
        probabilities = softmax(outputs["logits"])
        labels = [self.config["labels"][each] for each in probabilities.argmax(-1).tolist()]
        return labels, probabilities

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs for each node."""
        probabilities = Tensor("probabilities", "float32", (None, len(config["labels"])))
        return Tensor("label", label_dtype(config), (None,)), probabilities


def label_dtype(config: Mapping[str, Any]) -> str:
    """Return "int64" if all labels are integers, else "string"."""
    return "int64" if all(isinstance(label, int) for label in config["labels"]) else "string"
