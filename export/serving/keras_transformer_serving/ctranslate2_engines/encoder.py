"""Encoders such as BERT, run by CTranslate2, and their heads in NumPy."""

import concurrent.futures
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer_serving.ctranslate2_engines.arrays import Arrays
from keras_transformer_serving.ctranslate2_engines.heads import head_outputs
from keras_transformer_serving.ctranslate2_engines.loading import ctranslate2_package, load
from keras_transformer_serving.forward import Batch, Result
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.targets import EngineOptions

HEAD = "head"
"""The files of the head, without their suffixes."""


def mapped(workers: int, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
    """Return the results of a function for batches, as many at the same time as there are workers."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return [*pool.map(function, batches)]


def array_of(values: Any) -> np.ndarray:
    """Return a `StorageView` of any device as an array of float32."""
    return np.array(values.to_device(ctranslate2_package().Device.cpu), np.float32)


class EncoderModel:
    """An encoder of CTranslate2 with its head: a `ForwardEngine`.

    Outputs at padding are 0, and of a row without tokens those of zeros. The arguments are those of
    `ServedTarget.engine`.
    """

    needed_to_hide_tokens = (
        "an engine that hides tokens between others, such as 'onnx'. Received: CTranslate2"
    )

    def __init__(self, files: PartFiles, config: Mapping[str, Any], options: EngineOptions) -> None:
        self._head, self._pad_id, self._workers = Arrays.read(files, HEAD), config["pad_id"], options.workers
        tokens = [str(id_) for id_ in range(config["vocabulary_size"])]
        self.inputs, self.outputs = (self._head.tensors(side) for side in ("inputs", "outputs"))
        self._has_segments = len(self.inputs) > 2
        self._model, self.device = load(
            "Encoder",
            files,
            options,
            {"vocabulary.json": tokens},
            {"unk_token": "0", "bos_token": "0", "eos_token": "0"},
            lambda model: model.forward_batch(
                [[0]], **({"token_type_ids": [[0]]} if self._has_segments else {})
            ),
        )

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the model.

        Raises:
            ValueError: if padding is not at the end of each row.
        """
        ids = inputs["input_ids"]
        mask = inputs["attention_mask"] != 0
        if self._pad_id is not None:
            mask = mask & (ids != self._pad_id)
        lengths = mask.sum(axis=1)
        wrong = (mask != (np.arange(mask.shape[1]) < lengths[:, None])).any(axis=1)
        if wrong.any():
            raise ValueError(
                "`attention_mask` must be 1 for the first tokens of a row and 0 after them, and `input_ids` with 1 not "
                f"the padding id: others need {self.needed_to_hide_tokens}, and others in the rows "
                f"{np.flatnonzero(wrong).tolist()}"
            )
        hidden = np.zeros((*ids.shape, self._head.settings["model_dim"]), np.float32)
        places = np.flatnonzero(lengths)  # a row without tokens has no hidden states

        def rows(values: np.ndarray) -> list[list[int]]:
            return [values[place, : lengths[place]].tolist() for place in places]

        if len(places):
            segments = {"token_type_ids": rows(inputs["token_type_ids"])} if self._has_segments else {}
            found = array_of(self._model.forward_batch(rows(ids), **segments).last_hidden_state)
            hidden[places, : found.shape[1]] = found
        hidden[~mask] = 0
        return head_outputs(self._head, hidden, mask)

    def map(self, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
        """Return the results of a function for batches, some of which are computed at the same time."""
        return mapped(self._workers, function, batches)
