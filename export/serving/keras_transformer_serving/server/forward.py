"""The signatures of exported pipelines that run their model once."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from keras_transformer_serving.jobs import Method, Steps, compute
from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines.classification import ArrayPipeline
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.texts import TextPipeline
from keras_transformer_serving.server.signatures import TRUNCATE, Signature, text_of
from keras_transformer_serving.tasks import DEFAULT, ERROR, ERROR_OUTPUT, FORWARD, Row

_WINDOWS = "windows"


class Rows:
    """The engine of the rows of a pipeline that runs its model once: on arrays and, for texts, on windows of ids.

    Args:
        pipeline: the pipeline.
        max_batch_size: the number of rows that the model runs on at once.
    """

    def __init__(self, pipeline: Model, max_batch_size: int) -> None:
        methods: dict[str, Method] = {FORWARD: functools.partial(_run, pipeline)}
        if isinstance(pipeline, TextPipeline):
            methods[_WINDOWS] = functools.partial(pipeline.run_windows, batch_size=max_batch_size)
        self.methods: Mapping[str, Method] = methods
        self.map = pipeline.engine.map


def signatures(pipeline: Model) -> dict[str, Signature]:
    """Return the signatures of a pipeline that runs its model once, by name: the signatures of the SavedModel."""
    engine = pipeline.engine
    result = {FORWARD: Signature(engine.inputs, engine.outputs, functools.partial(_arrays, pipeline))}
    if isinstance(pipeline, ArrayPipeline):
        outputs = (*pipeline.outputs(pipeline.config), ERROR_OUTPUT)
        steps = functools.partial(_answer_arrays, pipeline)
        result[DEFAULT] = Signature(pipeline.graph_inputs(pipeline.config), outputs, steps)
    if isinstance(pipeline, TextPipeline):
        for name, (tensors, outputs) in pipeline.tensors(pipeline.config).items():
            steps = functools.partial(_answer_texts, pipeline, [tensor.name for tensor in tensors])
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


def _arrays(pipeline: Model, row: Row, index: int) -> Steps[Row]:
    """Return the outputs of a row of arrays; rows of the same shapes can be in one batch."""
    try:
        feed = pipeline.feed(**{name: np.asarray(values)[None] for name, values in row.items()})
    except ValueError as error:
        raise InvalidInputError(next(iter(row)), str(error)) from None
    outputs: Row = yield from compute(FORWARD, feed, tuple(values.shape for values in feed.values()))
    return outputs


def _answer_arrays(pipeline: ArrayPipeline, row: Row, index: int) -> Steps[Row]:
    outputs = yield from _arrays(pipeline, row, index)
    return {**pipeline.postprocess(outputs), ERROR: ""}


def _answer_texts(pipeline: TextPipeline, names: Sequence[str], row: Row, index: int) -> Steps[Row]:
    windows, state = pipeline.preprocess(*(text_of(row, name) for name in names), truncate=row.get(TRUNCATE))
    length = max(map(len, windows.ids)) + len(windows.before or ())
    outputs = yield from compute(_WINDOWS, windows, length)
    return {**pipeline.postprocess(outputs, windows, state), ERROR: ""}


def _run(pipeline: Model, batch: Sequence[dict[str, np.ndarray]]) -> list[Row]:
    feed = {name: np.concatenate([values[name] for values in batch]) for name in batch[0]}
    outputs = pipeline.engine.run(feed)
    return [{name: values[row] for name, values in outputs.items()} for row in range(len(batch))]
