"""The signatures of exported pipelines that run their model once."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines.classification import ArrayPipeline
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.texts import TextPipeline, Windows
from keras_transformer_serving.server.signatures import TRUNCATE, Job, Signature, bucket, text_of
from keras_transformer_serving.tasks import DEFAULT, ERROR, ERROR_OUTPUT, FORWARD, Row, Tensor

_DTYPES = {
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float)": "float32",
    "tensor(float16)": "float32",
}


def signatures(pipeline: Model, max_batch_size: int) -> dict[str, Signature]:
    """Return the signatures of a pipeline that runs its model once, by name: the signatures of the SavedModel.

    Args:
        pipeline: the pipeline.
        max_batch_size: the number of rows that the model runs on at once.
    """
    session = pipeline.session
    inputs = tuple(
        Tensor(entry.name, _DTYPES[entry.type], _sizes(entry), optional=entry.name in _OPTIONAL)
        for entry in session.get_inputs()
    )
    results = tuple(Tensor(entry.name, _DTYPES[entry.type], _sizes(entry)) for entry in session.get_outputs())
    prepare_arrays = functools.partial(_prepare_arrays, pipeline, functools.partial(_run, pipeline))
    result = {FORWARD: Signature(inputs, results, prepare_arrays)}
    if isinstance(pipeline, ArrayPipeline):
        outputs = (*pipeline.outputs(pipeline.config), ERROR_OUTPUT)
        prepare = functools.partial(prepare_arrays, finish=functools.partial(_finish_arrays, pipeline))
        result[DEFAULT] = Signature(pipeline.graph_inputs(pipeline.config), outputs, prepare)
    if isinstance(pipeline, TextPipeline):
        run = functools.partial(pipeline.run_windows, batch_size=max_batch_size)
        for name, (tensors, outputs) in pipeline.tensors(pipeline.config).items():
            prepare = functools.partial(_prepare_texts, pipeline, run, [tensor.name for tensor in tensors])
            result[name] = Signature(tensors, outputs, prepare)
    return result


def warm_up(pipeline: Model, max_batch_size: int) -> Iterator[Job]:
    """Yield a job for each bucket of lengths, or one of an image."""
    run = functools.partial(_run, pipeline)
    limit = pipeline.config.get("max_length") or 1
    length = 1
    while length < 2 * limit:
        try:
            arrays = {
                entry.name: np.full(
                    [1, *(min(length, limit) if size is None else size for size in _sizes(entry))],
                    pipeline.config["value_range"][0] if entry.name == "pixel_values" else 0,
                )
                for entry in pipeline.session.get_inputs()
            }
            yield Job(run, length, pipeline.feed(**arrays), lambda outputs: outputs)
        except ValueError:  # a length that the model does not take
            return
        length *= 2


_OPTIONAL = ("attention_mask", "token_type_ids")


def _sizes(entry: Any) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in entry.shape[1:])


def _prepare_arrays(pipeline: Model, run: Any, row: Row, index: int, finish: Any = None) -> Job:
    """Return a job of a row of arrays; rows of the same shapes can be in one batch."""
    try:
        feed = pipeline.feed(**{name: np.asarray(values)[None] for name, values in row.items()})
    except ValueError as error:
        raise InvalidInputError(next(iter(row)), str(error)) from None
    shapes = tuple(values.shape for values in feed.values())
    return Job(run, shapes, feed, _identity if finish is None else finish)


def _run(pipeline: Model, batch: Sequence[dict[str, np.ndarray]]) -> list[Row]:
    feed = {name: np.concatenate([values[name] for values in batch]) for name in batch[0]}
    outputs = pipeline.run_checked(feed)
    return [{name: values[row] for name, values in outputs.items()} for row in range(len(batch))]


def _finish_arrays(pipeline: ArrayPipeline, outputs: Row) -> Row:
    return {**pipeline.postprocess(outputs), ERROR: ""}


def _identity(outputs: Row) -> Row:
    return outputs


def _prepare_texts(pipeline: TextPipeline, run: Any, names: Sequence[str], row: Row, index: int) -> Job:
    windows, state = pipeline.preprocess(*(text_of(row, name) for name in names), truncate=TRUNCATE in row)
    length = max(map(len, windows.ids)) + len(windows.before or ())
    return Job(run, bucket(length), windows, functools.partial(_finish_text, pipeline, windows, state))


def _finish_text(pipeline: TextPipeline, windows: Windows, state: Any, outputs: dict[str, np.ndarray]) -> Row:
    return {**pipeline.postprocess(outputs, windows, state), ERROR: ""}
