"""The signatures of exported pipelines that generate."""

import dataclasses
import functools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer_serving.decoding import CONSTRAINTS, TokenChooser
from keras_transformer_serving.graphs import uniform_noise
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.generating import NEW_SEED, Generating, stacked, stream_text
from keras_transformer_serving.server import documents, long_texts
from keras_transformer_serving.server.signatures import (
    TRUNCATE,
    Job,
    RequestError,
    Signature,
    SplitRow,
    bucket,
    text_of,
)
from keras_transformer_serving.tasks import DEFAULT, ERROR, ERROR_OUTPUT, TEXT, Row, Tensor
from keras_transformer_serving.text import splitting
from keras_transformer_serving.text.documents import Document

_SHORT = 32  # source tokens; shorter texts are in one batch, as the decoder takes most of the time
_MOST_ALIGNED = 64  # tokens of a source text: each is hidden once
_SETTINGS = {
    **{name: f"Beam({name}=…)" for name in ("num_beams", "length_penalty", "num_return")},
    **{name: f"Sample({name}=…)" for name in ("temperature", "top_k", "top_p", "min_p")},
    "banned_words": "constraints=[BannedWords(…)]",
    "constraints": "constraints=[…]",
    "no_repeat_ngram_size": "constraints=[NoRepeatNGram(…)]",
    "repetition_penalty": "constraints=[RepetitionPenalty(…)]",
}


class Values(NamedTuple):
    """The inputs of the generation of a row.

    Attributes:
        ids: the source ids.
        options: "max_new_tokens", "min_new_tokens", and of sampling "temperature".
        noise: of sampling, (1, N, M).
        targets: of `target_inputs`.
    """

    ids: list[int]
    options: Row
    noise: np.ndarray | None
    targets: Row


def signatures(pipeline: Generating, scores_targets: bool = False) -> dict[str, Signature]:
    """Return the signatures of a pipeline that generates, by name.

    Args:
        pipeline: the pipeline.
        scores_targets: whether its export has the graphs of `score`.

    The signatures of the SavedModel, and `align` where there is `score`: texts to texts, or without a tokenizer for its
    texts `generate_ids` of `input_ids`. `score` needs graphs of single steps of an encoder–decoder, with which it takes
    targets of at most `max_new_tokens`. Without `noise`, the index of a row in its request seeds the noise of sampling,
    so that a sample depends on no other request. `serving_default` and `generate` of an encoder–decoder take
    `long_texts`, `tag_handling` and `glossary`, too.
    """
    declared = pipeline.tensors(pipeline.config)
    options = (*long_texts.option(pipeline), *documents.options(pipeline))
    run = functools.partial(_generate, pipeline)
    prepare = functools.partial(_prepare, pipeline, run)
    if pipeline.tokenizer is None:
        (_, *of_rows), (_, *noise) = (declared[name][0] for name in ("generate", "generate_ids"))
        arrays = (Tensor("input_ids", "int64", (None,)), *of_rows, *noise)
        outputs = declared["generate_ids"][1]
        prepare_ids = functools.partial(prepare, outputs)
        return {"generate_ids": Signature(arrays, outputs, prepare_ids, _SETTINGS)}
    result = {}
    for name in (DEFAULT, "generate", "generate_ids"):
        inputs, outputs = declared[name]
        if options:  # the ids of the parts of a text together
            outputs = tuple(
                dataclasses.replace(tensor, shape=(*tensor.shape[:-1], None))
                if tensor.name == "ids"
                else tensor
                for tensor in outputs
            )
        of_texts = () if name == "generate_ids" else options
        prepare_texts = functools.partial(prepare, outputs)
        result[name] = Signature((*inputs, *of_texts), outputs, prepare_texts, _SETTINGS)
    result["encode"] = Signature(*declared["encode"], functools.partial(_prepare_encoding, pipeline))
    if scores_targets:
        run_scores = functools.partial(_score, pipeline)
        prepare_scoring = functools.partial(_prepare_scoring, pipeline, run_scores)
        result["score"] = Signature(*declared["score"], prepare_scoring)
        aligned = (
            Tensor("text", "string"),
            Tensor("source_pieces", "string", (None,)),
            Tensor("pieces", "string", (None,)),
            Tensor("alignment", "float32", (None, None)),
            ERROR_OUTPUT,
        )
        run_alignment = functools.partial(_align, pipeline)
        result["align"] = Signature(
            declared[DEFAULT][0], aligned, functools.partial(_prepare_alignment, pipeline, run_alignment)
        )
    return result


def warm_up(pipeline: Generating) -> Iterator[Job]:
    """Yield a job for each bucket of lengths, which generates one token."""
    run = functools.partial(_generate, pipeline)
    targets = pipeline.target_inputs(next(iter(pipeline.languages), ""))
    length = 1
    while length < 2 * pipeline.graphs.max_source_tokens:
        ids = [pipeline.graphs.end_id] * min(length, pipeline.graphs.max_source_tokens)
        first = Values(ids, {"max_new_tokens": 1}, _noise(pipeline, {}, 0), targets)
        yield Job(run, length, first, lambda result: result)
        length *= 2


def warm_up_steps(pipeline: Generating) -> None:
    """Generate one token by the graphs of single steps."""
    targets = pipeline.target_inputs(next(iter(pipeline.languages), ""))
    first = Values([pipeline.graphs.end_id], {"max_new_tokens": 1}, _noise(pipeline, {}, 0), targets)
    next(tokens(pipeline, first), None)


def streams(pipeline: Generating) -> str:
    """Return the reason why an export cannot generate token by token, or "" if it can."""
    if pipeline.tokenizer is None:
        return "a tokenizer that runs without TensorFlow"
    sampler = pipeline.graphs.sampler["sampler"]
    if sampler not in ("greedy", "sample") or pipeline.graphs.num_return > 1:
        received = f"Received: the sampler {sampler!r} with {pipeline.graphs.num_return} hypotheses"
        return f"greedy search or sampling of one hypothesis. {received}"
    others = {each["constraint"] for each in pipeline.config.get("constraints", [])} - CONSTRAINTS.keys()
    if others:
        return f"constraints among {', '.join(CONSTRAINTS)}. Received: {', '.join(sorted(others))}"
    if not pipeline.graphs.has_steps:
        return "the graphs of single steps, which this export or precision lacks"
    return ""


class Token(NamedTuple):
    """A generated token.

    Attributes:
        id: its id.
        logits: the model's logits (V,), before constraints and temperature; None if the loop has generated it.
    """

    id: int
    logits: np.ndarray | None = None


def pieces(pipeline: Generating, row: Row, truncate: bool = False) -> Iterator[str]:
    """Return an iterator of the pieces of a text while it is generated; joined, they are the text.

    Args:
        pipeline: one for which `streams` returns "".
        row: the inputs, of `stream_inputs`.
        truncate: whether to cut a text that is too long.

    Raises:
        InvalidInputError: if the text is invalid, or a language is unknown.
    """
    text, chosen = text_of(row, "text"), {**_default_languages(pipeline), **row}
    split = long_texts.split(pipeline, text, row.get(long_texts.NAME))
    rows = [pipeline.preprocess(content, truncate, _source_language(chosen)) for content in split.parts]
    parts = [values(pipeline, ids, chosen, 0, part) for part, ids in enumerate(rows)]
    return split.stream(
        stream_text((token.id for token in tokens(pipeline, each)), pipeline.decode) for each in parts
    )


def values(pipeline: Generating, ids: list[int], row: Row, index: int, part: int = 0) -> Values:
    """Return the inputs of the generation of a row.

    Args:
        pipeline: the pipeline.
        ids: the source ids of the row, or of a part of its text.
        row: its other inputs.
        index: its index in the request, which seeds the noise of sampling.
        part: the index of the part.

    Raises:
        InvalidInputError: if an input is out of range.
    """
    check_options(pipeline, row)
    options: Row = {
        name: row[name] for name in ("max_new_tokens", "min_new_tokens", "temperature") if name in row
    }
    if options.keys() >= {"max_new_tokens", "min_new_tokens"}:
        options["min_new_tokens"] = min(options["min_new_tokens"], options["max_new_tokens"])
    return Values(ids, options, _noise(pipeline, row, index, part), _target_inputs(pipeline, row))


def tokens(pipeline: Generating, values: Values) -> Iterator[Token]:
    """Generate token by token, up to an end token, the tokens that the graph of the loop generates.

    Args:
        pipeline: one for which `streams` returns "".
        values: the inputs.
    """
    graphs, options, ids = pipeline.graphs, values.options, list[int]()
    limit = options.get("max_new_tokens", graphs.max_new_tokens)
    chooser = TokenChooser(
        graphs.sampler,
        pipeline.config.get("constraints", []),
        pipeline.end_ids,
        graphs.never - pipeline.end_ids,
        limit,
        options.get("min_new_tokens", 0),
        options.get("temperature", graphs.sampler.get("temperature", 1.0)),
        None if values.noise is None else values.noise[0, 0],
    )
    next_logits = graphs.next_logits(*pipeline.padded([values.ids]), **stacked([values.targets]))
    while values.ids and len(ids) < limit and not (ids and ids[-1] in pipeline.end_ids):
        (logits,) = next_logits(np.array([ids[-1:]]) if ids else None)
        token = chooser(logits, ids)
        if token is None:
            return
        ids.append(token)
        yield Token(token, logits)


def stream_inputs(pipeline: Generating) -> tuple[Tensor, ...]:
    """Return the inputs of a stream."""
    options = (
        dataclasses.replace(option, default=None, optional=True)
        for option in pipeline.options(pipeline.config)
    )
    return (TEXT, *languages.options(pipeline.config), *options, *long_texts.option(pipeline))


def check_options(pipeline: Generating, options: Row) -> None:
    """Raise a InvalidInputError if an option is out of range."""
    for name, (low, high) in pipeline.ranges(pipeline.config).items():
        if name in options and not low <= options[name] <= high:
            raise InvalidInputError(name, f"`{name}` must be in [{low}, {high}]. Received: {options[name]}")


def _prepare(
    pipeline: Generating, run: Any, outputs: Sequence[Tensor], row: Row, index: int
) -> Job | SplitRow:
    split: splitting.Split | Document | None = None
    if "input_ids" in row:
        try:
            rows = pipeline.encode([row["input_ids"]])
        except ValueError as error:
            raise InvalidInputError("input_ids", str(error)) from None
    else:
        # In signatures without the option, long texts are errors.
        text, setting = text_of(row, "text", "texts"), row.get(long_texts.NAME, "refuse")
        split = documents.document(pipeline, row, text, setting) or long_texts.split(pipeline, text, setting)
        rows = [pipeline.preprocess(part, TRUNCATE in row, _source_language(row)) for part in split.parts]
    finish = functools.partial(_finish, pipeline, [tensor.name for tensor in outputs])
    jobs = []
    for part, ids in enumerate(rows):
        of_part = values(pipeline, ids, row, index, part)
        if isinstance(split, Document) and split.of_parts[part].is_marked:
            # Other rows are computed between two of these, whose alignment takes longer.
            aligned = (of_part, split.of_parts[part], documents.score_function(pipeline, row))
            jobs.append(Job(functools.partial(documents.finish_parts, pipeline, run), None, aligned, finish))
        else:
            jobs.append(Job(run, bucket(max(len(ids), _SHORT)), of_part, finish))
    if split is None or (isinstance(split, splitting.Split) and split.is_whole):
        return jobs[0]
    return SplitRow(jobs, functools.partial(long_texts.join, pipeline, split))


def _source_ids(pipeline: Generating, row: Row) -> list[int]:
    return pipeline.preprocess(text_of(row, "text", "texts"), TRUNCATE in row, _source_language(row))


def _source_language(row: Row) -> str:
    """Return the language of the text of a row, "" without languages."""
    return text_of(row, languages.SOURCE) if languages.SOURCE in row else ""


def _target_inputs(pipeline: Generating, row: Row) -> Row:
    """Return the inputs of the generation loop for the language of the output of a row."""
    return pipeline.target_inputs(text_of(row, languages.TARGET)) if languages.TARGET in row else {}


def _default_languages(pipeline: Generating) -> Row:
    return {option.name: option.default for option in languages.options(pipeline.config)}


def _noise(pipeline: Generating, row: Row, index: int, part: int = 0) -> np.ndarray | None:
    """Return the noise of sampling (1, N, M) of a part of a text; None for other samplers.

    The noise is an input of the row, or is sampled with its seed and index.
    """
    graphs = pipeline.graphs
    if graphs.sampler["sampler"] != "sample":
        return None
    if "noise" in row:
        noise: np.ndarray = row["noise"]
        if not ((noise >= 0) & (noise <= 1)).all():
            received = f"from {noise.min()} to {noise.max()}"
            raise InvalidInputError("noise", f"`noise` must be in [0, 1]. Received: {received}")
        return noise[None]
    number, seed = row.get("rows", -1), row.get("seed")
    if seed is None:
        seed = graphs.seed()
    elif seed == NEW_SEED:
        seed = secrets.randbits(32)
    rows = np.array([(index if number < 0 else number) + part])
    return uniform_noise(seed, rows, graphs.num_return, graphs.max_new_tokens)


def _prepare_encoding(pipeline: Generating, row: Row, index: int) -> Job:
    ids = _source_ids(pipeline, row)
    outputs: Row = {"source_ids": ids, "padding_mask": [True] * len(ids), ERROR: ""}
    return Job(_identity, None, outputs, lambda result: result)


def _identity(batch: Sequence[Row]) -> Sequence[Row]:
    return batch


def _prepare_scoring(pipeline: Generating, run: Any, row: Row, index: int) -> Job:
    ids = _source_ids(pipeline, row)
    if not ids:
        raise InvalidInputError("texts", "`texts` must not be empty. Received: an empty text")
    assert pipeline.tokenizer is not None
    target = [*pipeline.tokenizer.tokenize(text_of(row, "target", "targets")), pipeline.graphs.end_id]
    if len(target) > pipeline.graphs.max_new_tokens:
        raise InvalidInputError(
            "targets",
            f"`targets` must have at most {pipeline.graphs.max_new_tokens} tokens each (max_new_tokens). "
            f"Received: {len(target)} tokens",
        )
    given = (ids, target, _target_inputs(pipeline, row))
    return Job(run, bucket(max(len(ids), _SHORT)), given, lambda result: result)


def _score(pipeline: Generating, batch: Sequence[tuple[list[int], list[int], Row]]) -> list[Row]:
    """Return the scores of the target ids of a batch of source ids, target ids and inputs of target languages."""
    source_rows, target_rows, first = zip(*batch, strict=True)
    sources, targets = (pipeline.padded(rows)[0] for rows in (source_rows, target_rows))
    token_scores = pipeline.graphs.score(sources, targets, **stacked(first))
    rows = [scores[: len(target)] for scores, target in zip(token_scores, target_rows, strict=True)]
    return [{"scores": float(row.sum()), "token_scores": row, "lengths": len(row), ERROR: ""} for row in rows]


def _prepare_alignment(pipeline: Generating, run: Any, row: Row, index: int) -> Job:
    ids = _source_ids(pipeline, row)
    if not 0 < len(ids) <= _MOST_ALIGNED:
        raise InvalidInputError(
            "texts",
            f"`texts` must have 1 to {_MOST_ALIGNED} tokens to be aligned. Received: {len(ids)} tokens",
        )
    given = Values(ids, {}, _noise(pipeline, {}, index), _target_inputs(pipeline, row))
    return Job(run, _MOST_ALIGNED, given, lambda result: result)


def _align(pipeline: Generating, batch: Sequence[Values]) -> list[Row]:
    """Generate, and return how much each token of the source contributes to each generated token.

    The contribution is the decrease of the log-probability of the token when the source token is masked, divided by
    the sum over the source.

    References:
        Li et al., Understanding Neural Networks through Representation Erasure, 2016, equation 2.
    """
    assert pipeline.tokenizer is not None
    pieces = pipeline.tokenizer.pieces
    rows = []
    for values, generated in zip(batch, _generate(pipeline, batch), strict=True):
        ids = generated["ids"] if generated["ids"].ndim == 1 else generated["ids"][0]
        target = ids[: int(np.ravel(generated["lengths"])[0])]
        mask = 1 - np.eye(len(values.ids) + 1, len(values.ids), -1, dtype=np.int64)
        source = np.tile(np.array(values.ids, np.int64), (len(mask), 1))
        first = stacked([values.targets] * len(mask))
        scores = pipeline.graphs.score(source, np.tile(target, (len(mask), 1)), mask, **first)
        decreases = np.maximum(scores[0] - scores[1:], 0).T  # (T, S)
        sums = decreases.sum(axis=1, keepdims=True)
        rows.append(
            {
                "text": pipeline.decode(ids.tolist()),
                "source_pieces": [pieces[id_] for id_ in values.ids],
                "pieces": [pieces[id_] for id_ in target.tolist()],
                "alignment": np.divide(decreases, sums, out=np.zeros_like(decreases), where=sums > 0),
                ERROR: "",
            }
        )
    return rows


def _generate(pipeline: Generating, batch: Sequence[Values]) -> list[dict[str, np.ndarray]]:
    graphs = pipeline.graphs
    ids, mask = pipeline.padded([values.ids for values in batch])
    defaults: Row = {"max_new_tokens": np.int64(graphs.max_new_tokens), "min_new_tokens": np.int64(0)}
    inputs: dict[str, np.ndarray] = {}
    if batch[0].noise is not None:
        defaults["temperature"] = np.float32(graphs.sampler["temperature"])
        inputs["noise"] = np.concatenate([values.noise for values in batch if values.noise is not None])
    for name, default in defaults.items():
        if any(name in values.options for values in batch):
            options = [values.options.get(name, default) for values in batch]
            inputs[name] = np.array(options, default.dtype)
    inputs |= stacked([values.targets for values in batch])
    outputs = graphs.run_loop(ids, mask, inputs)
    return [{name: values[row] for name, values in outputs.items()} for row in range(len(batch))]


def _finish(pipeline: Generating, names: Sequence[str], generated: dict[str, np.ndarray]) -> Row:
    """Return the named outputs of a row, with the texts of its ids."""
    outputs: Row = {name: generated[name] for name in names if name in generated}
    if "text" in names and "text" in generated:
        outputs["text"] = generated["text"] if generated["ids"].ndim > 1 else generated["text"][0]
    elif "text" in names:
        ids = generated["ids"]
        texts = [pipeline.decode(row) for row in ids.reshape(-1, ids.shape[-1]).tolist()]
        outputs["text"] = texts if ids.ndim > 1 else texts[0]
    return {**outputs, ERROR: ""}


def check_stream(pipeline: Any) -> Generating:
    """Return a pipeline that streams.

    Raises:
        RequestError: if it does not.
    """
    needed = streams(pipeline) if isinstance(pipeline, Generating) else "a pipeline that generates"
    if needed:
        raise RequestError(400, f"Streaming needs {needed}")
    assert isinstance(pipeline, Generating)
    return pipeline
