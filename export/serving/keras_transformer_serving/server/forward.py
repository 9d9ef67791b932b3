"""The signatures of exported pipelines that run their model once."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.model import Model, postprocess
from keras_transformer_serving.pipelines import (
    Embedding,
    FillMask,
    QuestionAnswering,
    TextClassification,
    TokenClassification,
)
from keras_transformer_serving.pipelines.errors import RefusedError
from keras_transformer_serving.pipelines.texts import TextPipeline, Windows, softmax
from keras_transformer_serving.server.signatures import (
    DEFAULT,
    ERROR,
    Job,
    Row,
    Signature,
    Tensor,
    bucket,
    text_of,
)

FORWARD = "forward"
_ERROR = Tensor(ERROR, "string")
_DTYPES = {"tensor(int64)": "int64", "tensor(float)": "float32", "tensor(float16)": "float32"}


def signatures(pipeline: Model, max_batch_size: int) -> dict[str, Signature]:
    """Return the signatures of a pipeline that runs its model once, by name: those of the SavedModel.

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
    found = {
        FORWARD: Signature(
            inputs, results, functools.partial(_prepare_arrays, pipeline, functools.partial(_run, pipeline))
        )
    }
    if isinstance(pipeline, TextPipeline):
        outputs = (*_text_outputs(pipeline), _ERROR)
        run = functools.partial(pipeline.run_windows, batch_size=max_batch_size)
        for name, texts in _text_inputs(pipeline).items():
            prepare = functools.partial(_prepare_texts, pipeline, run, texts)
            found[name] = Signature(tuple(Tensor(each, "string") for each in texts), outputs, prepare)
    elif pipeline.config["pipeline"] in ("ImageClassification", "NodeClassification"):
        prepare = functools.partial(
            _prepare_arrays,
            pipeline,
            functools.partial(_run, pipeline),
            finish=functools.partial(_classified, pipeline.config),
        )
        nodes = pipeline.config["pipeline"] == "NodeClassification"
        classes = _class_outputs(pipeline.config, nodes=nodes)
        found[DEFAULT] = Signature(inputs, (*classes, _ERROR), prepare)
    return found


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
            yield Job(run, length, pipeline.feed(**arrays), lambda found: found)
        except ValueError:  # a length that the model does not take
            return
        length *= 2


_OPTIONAL = ("attention_mask", "token_type_ids")


def _sizes(entry: Any) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in entry.shape[1:])


def _prepare_arrays(pipeline: Model, run: Any, row: Row, index: int, finish: Any = None) -> Job:
    """Return a job of a row of arrays; rows of the same shapes share a batch."""
    try:
        feed = pipeline.feed(**{name: values[None] for name, values in row.items()})
    except ValueError as error:
        raise RefusedError(next(iter(row)), str(error)) from None
    shapes = tuple(values.shape for values in feed.values())
    return Job(run, shapes, feed, _identity if finish is None else finish)


def _run(pipeline: Model, batch: Sequence[dict[str, np.ndarray]]) -> list[Row]:
    feed = {name: np.concatenate([values[name] for values in batch]) for name in batch[0]}
    found = pipeline.run_checked(feed)
    return [{name: values[row] for name, values in found.items()} for row in range(len(batch))]


def _identity(found: Row) -> Row:
    return found


def _prepare_texts(pipeline: TextPipeline, run: Any, names: Sequence[str], row: Row, index: int) -> Job:
    windows, state = pipeline.preprocess(*(text_of(row, name) for name in names))
    length = max(map(len, windows.ids)) + len(windows.before or ())
    return Job(run, bucket(length), windows, functools.partial(_finish_text, pipeline, windows, state))


def _finish_text(pipeline: TextPipeline, windows: Windows, state: Any, outputs: dict[str, np.ndarray]) -> Row:
    found = pipeline.postprocess(outputs, windows, state)
    return {**_named(pipeline, found), ERROR: ""}


def _text_inputs(pipeline: TextPipeline) -> dict[str, tuple[str, ...]]:
    """Return the names of the inputs of each signature of texts."""
    if isinstance(pipeline, QuestionAnswering):
        return {DEFAULT: ("question", "context")}
    if not isinstance(pipeline, TextClassification):
        return {DEFAULT: ("text",)}
    if pipeline.config["symmetric"]:
        return {DEFAULT: ("text", "text_pair")}
    if pipeline.config.get("num_segments", 2) < 2:
        return {DEFAULT: ("text",)}
    return {DEFAULT: ("text",), "classify_pairs": ("text", "text_pair")}


def _text_outputs(pipeline: TextPipeline) -> tuple[Tensor, ...]:
    """Return the outputs of the signatures of texts."""
    config = pipeline.config
    match pipeline:
        case TextClassification():
            return _class_outputs(config)
        case TokenClassification():
            return (
                Tensor("words", "string", (None,)),
                Tensor("labels", _label_dtype(config), (None,)),
                Tensor("probabilities", "float32", (None,)),
                Tensor("starts", "int32", (None,)),
                Tensor("ends", "int32", (None,)),
            )
        case QuestionAnswering():
            return (
                Tensor("answer", "string"),
                Tensor("start", "int32"),
                Tensor("end", "int32"),
                Tensor("probability", "float32"),
            )
        case FillMask():
            top = config["top"]
            return (
                Tensor("pieces", "string", (None, top)),
                Tensor("probabilities", "float32", (None, top)),
            )
        case Embedding():
            return (Tensor("embedding", "float32", (config["model_dim"],)),)
    raise TypeError(f"`pipeline` must be a pipeline of texts. Received: {type(pipeline).__name__}")


def _named(pipeline: TextPipeline, found: Any) -> Row:
    """Return the result of `postprocess` as outputs, by name."""
    match pipeline:
        case TextClassification():
            return _classes(pipeline.config, found)
        case TokenClassification():
            names = {"words": "word", "labels": "label", "probabilities": "probability", "starts": "start"}
            return {
                output: [getattr(word, field) for word in found]
                for output, field in {**names, "ends": "end"}.items()
            }
        case QuestionAnswering():
            return {
                "answer": found.text,
                "start": found.start,
                "end": found.end,
                "probability": found.probability,
            }
        case FillMask():
            return {
                "pieces": [[each.piece for each in mask] for mask in found],
                "probabilities": [[each.probability for each in mask] for mask in found],
            }
    return {"embedding": found}


def _class_outputs(config: Row, nodes: bool = False) -> tuple[Tensor, ...]:
    """Return the outputs of a classifier or regression; of `nodes` with an axis of them."""
    axes = (None,) if nodes else ()
    count = len(config["labels"])
    problem_type = "single_label_classification" if nodes else config["problem_type"]
    if problem_type == "regression":
        return (Tensor("values", "float32", (count,)),)
    probabilities = Tensor("probabilities", "float32", (*axes, count))
    if problem_type == "multi_label_classification":
        return (Tensor("labels", _label_dtype(config), (None,)), probabilities)
    return (Tensor("label", _label_dtype(config), axes), probabilities)


def _classes(config: Row, scores: np.ndarray) -> Row:
    """Return the outputs of a classifier or regression for scores (C,)."""
    problem_type = config["problem_type"]
    if problem_type == "regression":
        return {"values": scores}
    (answer,) = postprocess(scores[None], config["labels"], problem_type, config["threshold"])
    name = "labels" if problem_type == "multi_label_classification" else "label"
    strings = _label_dtype(config) == "string"
    if isinstance(answer, list):
        return {name: [str(each) if strings else each for each in answer], "probabilities": scores}
    return {name: str(answer) if strings else answer, "probabilities": scores}


def _classified(config: Row, found: Row) -> Row:
    """Return the outputs for the graph's outputs for an image, or for the nodes of a graph."""
    if config["pipeline"] == "ImageClassification":
        return {
            **_classes(config, found["probabilities" if "probabilities" in found else "logits"]),
            ERROR: "",
        }
    probabilities = softmax(found["logits"])
    labels = [config["labels"][each] for each in probabilities.argmax(-1).tolist()]
    return {"label": labels, "probabilities": probabilities, ERROR: ""}


def _label_dtype(config: Row) -> str:
    """Return "int64" if all labels are integers, else "string"."""
    return "int64" if all(isinstance(label, int) for label in config["labels"]) else "string"
