"""Outputs and answers of classifiers and regressions, and the classification of images and graphs."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.jobs import Steps, compute
from keras_transformer_serving.model import Model, classes_of
from keras_transformer_serving.pipelines.errors import InvalidInputError, RowErrors, check_batch_size
from keras_transformer_serving.pipelines.texts import softmax
from keras_transformer_serving.tasks import DEFAULT, FORWARD, Row, Task, Tensor


class Classifier(Task):
    """A mixin of tasks that give one label, several labels or numbers for each input."""

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs: a label or labels and the probabilities, or the numbers of a regression."""
        count, problem_type = len(config["labels"]), config["problem_type"]
        if problem_type == "regression":
            return (Tensor("values", "float32", (count,)),)
        several = problem_type == "multi_label_classification"
        name, shape = ("labels", (None,)) if several else ("label", ())
        return Tensor(name, label_dtype(config), shape), Tensor("probabilities", "float32", (count,))

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> Any:
        """Return the label, the labels, the number or the numbers of the outputs of a row."""
        return classes_of(cls.row_scores(row, config)[None], config)[0]

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.choices` of labels, or of a regression those of `closeness.tensors`."""
        if config["problem_type"] == "regression":
            return closeness.tensors(pairs)
        expected, found = closeness.real_values(pairs, "probabilities")
        if (
            config["problem_type"] == "multi_label_classification"
        ):  # of two candidates: whether it has the label
            expected, found = (
                [_choices(each, config["threshold"]) for each in side] for side in (expected, found)
            )
        return {**closeness.choices("labels", expected, found), **closeness.logits(pairs)}

    @classmethod
    def row_scores(cls, row: Row, config: dict[str, Any]) -> np.ndarray:
        """Return the probabilities, or the numbers of a regression (C,), of the outputs of a row."""
        scores: np.ndarray = row["values" if config["problem_type"] == "regression" else "probabilities"]
        return scores

    def _check_has_probabilities(self) -> None:
        if self.config["problem_type"] == "regression":
            raise ValueError(
                "`probabilities` needs a classifier; `scores` are the numbers of a regression. "
                "Received: problem_type='regression'"
            )


def forward(model: Model, row: Row) -> Steps[Row]:
    """Return the outputs of a model for a row of its inputs; rows of equal shapes can be in one batch."""
    try:
        feed = model.feed(**{name: np.asarray(values)[None] for name, values in row.items()})
    except ValueError as error:
        raise InvalidInputError(next(iter(row)), str(error)) from None
    values = {name: array[0] for name, array in feed.items()}
    outputs: Row = yield from compute(FORWARD, values, tuple(array.shape for array in values.values()))
    return outputs


class ArrayPipeline(Model, abc.ABC):
    """Base class of exported pipelines of arrays, whose inputs are those of the graph."""

    @property
    def row_inputs(self) -> tuple[Tensor, ...]:
        """The inputs of `steps`, by default those of the graph."""
        return self.graph_inputs(self.config)

    def steps(self, row: Row) -> Steps[Row]:
        """Return the outputs of the task for the inputs of a row."""
        return self.postprocess((yield from forward(self, row)))

    @abc.abstractmethod
    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> Row:
        """Convert the model's outputs for a row to the outputs of the task."""

    def rows(
        self, columns: Sequence[Sequence[Any]], batch_size: int, order: Sequence[int], errors: RowErrors
    ) -> dict[int, Row]:
        """Return the outputs of each valid row, by index, computed in batches; arrays of several sizes are padded.

        Args:
            columns: the values of n rows for each input of the graph.
            batch_size: the number of rows in a batch.
            order: the indices of rows, with rows of similar length next to each other.
            errors: the errors of rows, to which the errors of these rows are added.
        """
        tensors, found = self.graph_inputs(self.config), dict[int, Row]()

        def stacked(rows: Sequence[int]) -> dict[str, np.ndarray]:
            return {
                tensor.name: tensor.stack([column[row] for row in rows])
                for tensor, column in zip(tensors, columns, strict=True)
            }

        for begin in range(0, len(order), batch_size):
            accepted = list[int]()
            for row in order[begin : begin + batch_size]:
                with errors.catching(row):
                    self.feed(**stacked([row]))
                    accepted.append(row)
            outputs = self.run(**stacked(accepted)) if accepted else {}
            for place, row in enumerate(accepted):
                found[row] = self.postprocess({name: values[place] for name, values in outputs.items()})
        return found


class ImageTask(Classifier):
    """The classification of images, or a regression."""

    reads: ClassVar[str] = "images"

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the input "pixel_values", of any size if images are resized."""
        size = (None, None) if config["resize"] else config["image_size"]
        return {DEFAULT: (Tensor("pixel_values", "float32", (*size, config["num_channels"])),)}

    @classmethod
    def graph_inputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the input "pixel_values" of the model's size."""
        return cls.columns({**config, "resize": False})[DEFAULT]


class ImageClassification(ImageTask, ArrayPipeline):
    """An exported image classifier, or regression; `load` creates it."""

    def __call__(self, images: Any, batch_size: int = 64) -> Any:
        """Return the label, the labels or the number of each image; see `answers`.

        Args:
            images: (n, height, width, channels) in the model's size, or one image without the first axis.
            batch_size: the number of images in a batch.
        """
        check_batch_size(batch_size)
        shape = (*self.config["image_size"], self.config["num_channels"])
        try:
            pixels = np.asarray(images, "float32")
        except (TypeError, ValueError) as error:  # of images of several sizes, or no numbers
            raise ValueError(f"`images` must each have the shape {shape}. Received: {error}") from None
        if pixels.ndim not in (3, 4) and pixels.shape != (0,):
            raise ValueError(
                f"`images` must each have the shape {shape}. Received: images.shape={pixels.shape}"
            )
        if pixels.ndim == 3:
            return self.answers(pixel_values=pixels[None])[0]
        starts = range(0, len(pixels), batch_size)
        batches = (self.answers(pixel_values=pixels[start : start + batch_size]) for start in starts)
        return [answer for answers in batches for answer in answers]

    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> Row:
        """Return the outputs for the scores (C,)."""
        return outputs_of(outputs.get("probabilities", outputs["logits"]), self.config)


class NodeTask(Task):
    """The classification of the nodes of a graph."""

    reads: ClassVar[str] = ""

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: the features of nodes, and edges, padded with −1."""
        nodes = Tensor("nodes", "float32", (None, config["num_features"]), axis="num_nodes")
        return {DEFAULT: (nodes, Tensor("edges", "int64", (None, 2), axis="num_edges"))}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs for each node."""
        probabilities = Tensor("probabilities", "float32", (None, len(config["labels"])))
        return Tensor("label", label_dtype(config), (None,)), probabilities

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> list[Any]:
        """Return the labels of the nodes."""
        return [config["labels"][index] for index in row["probabilities"].argmax(-1).tolist()]

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the figures of `closeness.choices` of the labels of nodes."""
        expected, found = closeness.real_values(pairs, "logits", closeness.softmax)
        return {**closeness.choices("labels", expected, found), **closeness.logits(pairs)}


class NodeClassification(NodeTask, ArrayPipeline):
    """An exported classifier of the nodes of a graph; `load` creates it."""

    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> Row:
        """Return the labels of the T nodes and the probabilities (T, C)."""
        probabilities = softmax(outputs["logits"])
        labels = [self.config["labels"][index] for index in probabilities.argmax(-1).tolist()]
        return {
            "label": [label_output(label, self.config) for label in labels],
            "probabilities": probabilities,
        }


def outputs_of(scores: np.ndarray, config: Mapping[str, Any]) -> Row:
    """Return the outputs of a classifier for the scores (C,) of a row."""
    if config["problem_type"] == "regression":
        return {"values": scores}
    (classes,) = classes_of(scores[None], config)
    if config["problem_type"] == "multi_label_classification":
        return {"labels": [label_output(label, config) for label in classes], "probabilities": scores}
    return {"label": label_output(classes, config), "probabilities": scores}


def _choices(probabilities: np.ndarray, threshold: float) -> np.ndarray:
    """Return the margins (…, 2) by which labels are below and above a threshold."""
    return np.stack([threshold - probabilities, probabilities - threshold], axis=-1) / 2


def label_dtype(config: Mapping[str, Any]) -> str:
    """Return "int64" if all labels are integers, else "string"."""
    return "int64" if all(isinstance(label, int) for label in config["labels"]) else "string"


def label_output(label: Any, config: Mapping[str, Any]) -> Any:
    """Return a label as a value of an output of `label_dtype`."""
    return label if label_dtype(config) == "int64" else str(label)
