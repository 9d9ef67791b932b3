"""Exports of pipelines that do not generate: token ids, images or graphs in, the model's outputs out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer_serving.forward import ForwardEngine
from keras_transformer_serving.tasks import ExportedPipeline, Tensor


class Model(ExportedPipeline):
    """An exported pipeline that does not generate, such as a classifier; `load` creates it.

    Args:
        engine: what runs the model.
        config: the export's settings.

    Attributes:
        config: the export's settings: `labels`, special token ids, sizes.
        inputs: the names of the arguments of `run`.

    Example:
        >>> model = load("export/reviews")
        >>> model.run(input_ids=ids, attention_mask=ids != 0, token_type_ids=0 * ids)["probabilities"]
        array([[0.1, 0.9]], dtype=float32)
        >>> model.answers(input_ids=ids)
        ['positive']
    """

    def __init__(self, engine: ForwardEngine, config: dict[str, Any]) -> None:
        self.engine, self.config = engine, config
        self.inputs = [tensor.name for tensor in engine.inputs]

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raise a ValueError: only the export's SavedModel takes texts."""
        raise ValueError(
            f"`run` must be called, with arrays {', '.join(self.inputs)}: texts are for the export's SavedModel. "
            f"Received: a call of an exported {self.config['pipeline']}"
        )

    def run(self, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the model's outputs.

        Args:
            **arrays: the graph's inputs. `attention_mask` is by default 1 where `input_ids` are not the padding id
                (everywhere, if the model has none), `token_type_ids` are by default 0.

        Returns:
            By name, such as "logits"; `export/README.md` lists them.
        """
        return self.engine.run(self.feed(**arrays))

    def feed(self, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the graph's inputs for the arguments of `run`, after checking them."""
        if "input_ids" in arrays:
            ids = np.asarray(arrays["input_ids"])
            pad_id = self.config["pad_id"]
            real = np.ones_like(ids) if pad_id is None else ids != pad_id
            defaults = {"attention_mask": real, "token_type_ids": np.zeros_like(ids)}
            arrays = {**{name: defaults[name] for name in self.inputs if name in defaults}, **arrays}
        if set(arrays) != set(self.inputs):
            raise ValueError(
                f"`arrays` must be {', '.join(self.inputs)}. Received: {', '.join(arrays) or 'none'}"
            )
        feed = {tensor.name: _checked(tensor, arrays[tensor.name]) for tensor in self.engine.inputs}
        self._check(feed)
        return feed

    def answers(self, **arrays: Any) -> list[Any]:
        """Return the classifier's labels, or numbers if `config["problem_type"]` is "regression".

        Args:
            **arrays: as for `run`.

        Returns:
            As `classes_of`.

        Raises:
            ValueError: as `run`, or if the pipeline does not classify texts or images.
        """
        if "problem_type" not in self.config:
            raise ValueError(
                f"`answers` needs an export of a classifier of texts or images. Received: {self.config['pipeline']}"
            )
        outputs = self.run(**arrays)
        return classes_of(outputs.get("probabilities", outputs["logits"]), self.config)

    def _check(self, feed: dict[str, np.ndarray]) -> None:
        """Raise if values are out of range."""
        config = self.config
        ranges: dict[str, tuple[float, float]] = {}
        if "input_ids" in feed:
            ranges["input_ids"] = (0, config["vocabulary_size"] - 1)
            shape = feed["input_ids"].shape
            length = shape[-1]
            if not length:
                raise ValueError(f"`input_ids` must have at least one column. Received: shape {shape}")
            for name in ("attention_mask", "token_type_ids"):
                if name in feed and feed[name].shape != shape:
                    raise ValueError(
                        f"`{name}` must have the shape {shape} of `input_ids`. Received: {feed[name].shape}"
                    )
            if config["max_length"] is not None and length > config["max_length"]:
                raise ValueError(
                    f"`input_ids` must have at most {config['max_length']} columns. Received: {length}"
                )
            if "token_type_ids" in feed:
                ranges["token_type_ids"] = (0, config["num_segments"] - 1)
        if "pixel_values" in feed:
            ranges["pixel_values"] = tuple(config["value_range"])
        if "nodes" in feed:
            ranges["edges"] = (-1, feed["nodes"].shape[1] - 1)
            ranges["nodes"] = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))
        for name, (low, high) in ranges.items():
            values = feed[name]
            if not ((values >= low) & (values <= high)).all():  # false for NaN
                raise ValueError(
                    f"`{name}` must be from {low} to {high}. Received: from {values.min()} to {values.max()}"
                )


def classes_of(scores: np.ndarray, config: Mapping[str, Any]) -> list[Any]:
    """Return the answers of a classifier.

    Args:
        scores: (B, C), the probability of each class, or the numbers of a regression.
        config: the settings: the "labels" of the C classes, the "problem_type", and the "threshold" of a label in a
            multi-label classification.

    Returns:
        A list of B answers: the most probable label; the list of all labels above the threshold in a multi-label
        classification; the number, or a list of C > 1 numbers, in a regression.
    """
    labels, problem_type = config["labels"], config["problem_type"]
    if problem_type == "regression":
        return [row[0] if len(row) == 1 else row for row in scores.tolist()]
    if problem_type == "multi_label_classification":
        return [[labels[i] for i in np.flatnonzero(row > config["threshold"]).tolist()] for row in scores]
    return [labels[i] for i in scores.argmax(-1).tolist()]


def _checked(tensor: Tensor, values: Any) -> np.ndarray:
    """Return values as an array (B, …) of the type of an input."""
    array = np.asarray(values)
    fits = array.ndim == 1 + len(tensor.shape) and all(
        size in (None, length) for size, length in zip(tensor.shape, array.shape[1:], strict=True)
    )
    if not fits or array.dtype.kind not in ("biuf" if tensor.dtype == "float32" else "biu"):
        sizes = ("batch_size", *("any" if size is None else size for size in tensor.shape))
        raise ValueError(
            f"`{tensor.name}` must be {tensor.dtype} of shape ({', '.join(map(str, sizes))}). "
            f"Received: {array.dtype} of shape {array.shape}"
        )
    return array.astype(tensor.names.numpy)
