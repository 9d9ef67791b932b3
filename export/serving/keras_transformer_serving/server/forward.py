"""The signatures of exported pipelines that run their model once."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.forward import ForwardJobs
from keras_transformer_serving.jobs import Steps, compute
from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines.classification import ArrayPipeline, forward
from keras_transformer_serving.pipelines.speech_to_text import SpeechToText
from keras_transformer_serving.pipelines.texts import TextPipeline
from keras_transformer_serving.server.signatures import TRUNCATE, Signature, decoded
from keras_transformer_serving.tasks import DEFAULT, ERROR, ERROR_OUTPUT, FORWARD, Row, Tensor

SEGMENTS = "segments"
"""The signature of speech with timestamps."""
_WINDOWS = "windows"


class Rows(ForwardJobs):
    """The engine of the rows of a pipeline that runs its model once: on arrays and, for texts, on windows of ids.

    Args:
        pipeline: the pipeline.
        max_batch_size: the number of rows that the model runs on at once.
    """

    def __init__(self, pipeline: Model, max_batch_size: int) -> None:
        super().__init__(pipeline.engine)
        if isinstance(pipeline, TextPipeline):
            windows = functools.partial(pipeline.run_windows, batch_size=max_batch_size)
            self.methods = {**self.methods, _WINDOWS: windows}


def signatures(pipeline: Model) -> dict[str, Signature]:
    """Return the signatures of a pipeline that runs its model once, by name.

    They are those of the SavedModel and, for speech with timestamps, `SEGMENTS`.
    """
    engine = pipeline.engine
    result = {FORWARD: Signature(engine.inputs, engine.outputs, lambda row, _: forward(pipeline, row))}
    if isinstance(pipeline, ArrayPipeline):
        outputs = (*pipeline.outputs(pipeline.config), ERROR_OUTPUT)
        steps = functools.partial(_answer_arrays, pipeline.steps)
        result[DEFAULT] = Signature(pipeline.row_inputs, outputs, steps)
    if isinstance(pipeline, SpeechToText) and pipeline.no_timestamps_id is not None:
        outputs = (*pipeline.segment_outputs, ERROR_OUTPUT)
        steps = functools.partial(_answer_arrays, pipeline.segments)
        result[SEGMENTS] = Signature(pipeline.row_inputs, outputs, steps)
    if isinstance(pipeline, TextPipeline):
        for name, (tensors, outputs) in pipeline.tensors(pipeline.config).items():
            steps = functools.partial(_answer_texts, pipeline, tensors)
            result[name] = Signature(tensors, outputs, steps)
    return result


def warm_up(pipeline: Model) -> None:
    """Run the model on each bucket of lengths, or on an image."""
    limit = pipeline.config.get("max_length") or 1
    length = 1
    while length < 2 * limit:
        try:
            arrays = {
                tensor.name: np.full(
                    [1, *(min(length, limit) if size is None else size for size in tensor.shape)],
                    pipeline.config["value_range"][0] if tensor.name == "pixel_values" else 0,
                )
                for tensor in pipeline.engine.inputs
            }
            pipeline.run(**arrays)
        except ValueError:  # a length that the model does not take
            return
        length *= 2


def _answer_arrays(steps: Callable[[Row], Steps[Row]], row: Row, index: int) -> Steps[Row]:
    outputs = yield from steps(row)
    return {**outputs, ERROR: ""}


def _answer_texts(pipeline: TextPipeline, tensors: Sequence[Tensor], row: Row, index: int) -> Steps[Row]:
    values = (_value(row[tensor.name], tensor) for tensor in tensors)
    windows, state = pipeline.preprocess(*values, truncate=row.get(TRUNCATE))
    length = max(len(first or ()) + len(second) for first, second in windows.rows)
    outputs = yield from compute(_WINDOWS, windows, length)
    return {**pipeline.postprocess(outputs, windows, state), ERROR: ""}


def _value(value: Any, tensor: Tensor) -> Any:
    """Return the value of an input, whose strings are decoded."""
    if tensor.dtype != "string":
        return value
    return [decoded(each, tensor.name) for each in value] if tensor.shape else decoded(value, tensor.name)
