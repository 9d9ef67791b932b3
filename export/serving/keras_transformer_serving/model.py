"""What runs once: ids, images or graphs in, the model's outputs out."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.serving import classes
from keras_transformer.serving.graphs import MODEL, new_session


class Model:
    """An exported pipeline that runs its model once.

    Args:
        path: the file of a graph, by its name.
        config: the export's settings.
        providers: ONNX Runtime's execution providers, by default those of this machine, GPUs first.

    Attributes:
        config: the settings: `labels`, special ids, sizes.
        inputs: the names of what `run` takes.

    Example:
        >>> model = load("export/reviews")
        >>> model.run(input_ids=ids, attention_mask=ids != 0, token_type_ids=0 * ids)["probabilities"]
        array([[0.1, 0.9]], dtype=float32)
        >>> model.answers(input_ids=ids)
        ['positive']
    """

    def __init__(
        self,
        path: Callable[[str], str | os.PathLike[str]],
        config: dict[str, Any],
        providers: Sequence[Any] | None = None,
    ) -> None:
        self.config = config
        self._session = new_session(path(MODEL), providers)
        self.inputs = [entry.name for entry in self._session.get_inputs()]

    def __call__(self, *_: Any) -> Any:
        """Refuses texts, which are for the export's SavedModel."""
        raise ValueError(
            f"`run` must be called, with arrays {', '.join(self.inputs)}: texts are for the export's SavedModel. "
            f"Received: a call of what `keras_transformer.serving` loads from a {self.config['pipeline']}"
        )

    def run(self, **arrays: Any) -> dict[str, np.ndarray]:
        """The model's outputs.

        Args:
            **arrays: the graph's inputs. Of ids, `attention_mask` may be left out, which is then 1 where there is no
                padding (everywhere, if the model has no padding id), and `token_type_ids`, which are then 0.

        Returns:
            Such as "logits"; `export/README.md` lists them.

        Raises:
            ValueError: where an input is missing or unknown, has another shape, or values that the model does not take.
        """
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
        feed = {entry.name: _checked(entry, arrays[entry.name]) for entry in self._session.get_inputs()}
        self._check(feed)
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, feed), strict=True))

    def answers(self, **arrays: Any) -> list[Any]:
        """Return what the pipeline answers: labels, or numbers where `config["problem_type"]` is "regression".

        Args:
            **arrays: as for `run`.

        Returns:
            For each input the most probable label; of a multi-label classification the list of all labels above
            `config["threshold"]`; of a regression the number, or a list of several.

        Raises:
            ValueError: as `run`, or where the pipeline does not classify texts or images.
        """
        if "problem_type" not in self.config:
            raise ValueError(
                f"`answers` needs an export of a classifier of texts or images. Received: {self.config['pipeline']}"
            )
        found, config = self.run(**arrays), self.config
        scores = found.get("probabilities", found["logits"])
        return classes.answers(scores, config["labels"], config["problem_type"], config["threshold"])

    def _check(self, feed: dict[str, np.ndarray]) -> None:
        """Raise where values are outside of what the model knows."""
        config = self.config
        ranges: dict[str, tuple[float, float]] = {}
        if "input_ids" in feed:
            ranges["input_ids"] = (0, config["vocabulary_size"] - 1)
            length = feed["input_ids"].shape[-1]
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
            ranges["nodes"] = (np.finfo(np.float32).min, np.finfo(np.float32).max)
        for name, (low, high) in ranges.items():
            values = feed[name]
            if not ((values >= low) & (values <= high)).all():  # NaN is neither
                raise ValueError(
                    f"`{name}` must be from {low} to {high}. Received: from {values.min()} to {values.max()}"
                )


def _checked(entry: Any, values: Any) -> np.ndarray:
    """Values as the array that an input takes."""
    array = np.asarray(values)
    wanted = np.int64 if entry.type == "tensor(int64)" else np.float32
    shape = [size if isinstance(size, int) else None for size in entry.shape]
    fits = len(shape) == array.ndim and all(
        size in (None, found) for size, found in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in ("biu" if wanted is np.int64 else "biuf"):
        raise ValueError(
            f"`{entry.name}` must be {np.dtype(wanted).name} of shape ({', '.join(map(str, entry.shape))}). "
            f"Received: {array.dtype} of shape {array.shape}"
        )
    return array.astype(wanted)
