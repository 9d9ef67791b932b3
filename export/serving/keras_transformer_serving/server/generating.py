"""The signatures of exported pipelines that generate."""

import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer_serving.generation import GENERATE, Generated, Source
from keras_transformer_serving.jobs import Steps
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.pipelines.options import tags_of
from keras_transformer_serving.pipelines.text_to_text import TextToText
from keras_transformer_serving.row_options import ROW_OPTIONS
from keras_transformer_serving.server.signatures import TRUNCATE, RequestError, Signature, text_of
from keras_transformer_serving.tasks import DEFAULT, ERROR, ERROR_OUTPUT, TEXT, Row, Tensor
from keras_transformer_serving.text import splitting
from keras_transformer_serving.text.glossary import GLOSSARY_MODES, Glossary, of_json
from keras_transformer_serving.text.markup import PLACEHOLDERS, TAG_HANDLING

LONG_TEXTS = "long_texts"
TAGS, _PLACEHOLDERS, _GLOSSARY, _MODE = "tag_handling", "placeholders", "glossary", "glossary_mode"
_SETTINGS = {
    **{name: f"Beam({name}=…)" for name in ("num_beams", "length_penalty", "num_return")},
    **{name: f"Sample({name}=…)" for name in ("temperature", "top_k", "top_p", "min_p")},
    "banned_words": "constraints=[BannedWords(…)]",
    "constraints": "constraints=[…]",
    "no_repeat_ngram_size": "constraints=[NoRepeatNGram(…)]",
    "repetition_penalty": "constraints=[RepetitionPenalty(…)]",
}


class _GlossaryTensor(Tensor):
    """A glossary: a JSON object, or a string of one."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of a glossary."""
        return {"type": "object", "additionalProperties": {"type": "string"}}

    def convert(self, value: Any, place: str) -> Any:
        """Return a JSON object as a string."""
        return super().convert(json.dumps(value) if isinstance(value, dict) else value, place)


class _PlaceholdersTensor(Tensor):
    """Kinds of placeholders: a list of names, or a string of names and spaces."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the names."""
        return {"type": "array", "items": {"type": "string", "enum": [*PLACEHOLDERS]}}

    def convert(self, value: Any, place: str) -> Any:
        """Return a list of names as a string."""
        is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return super().convert(" ".join(value) if is_list else value, place)


def signatures(pipeline: Generating) -> dict[str, Signature]:
    """Return the signatures of a pipeline that generates, by name.

    The signatures of the SavedModel, and `attributions` if the engine hides source ids: texts to texts, or without a
    tokenizer for its texts `generate_ids` of `input_ids`. `score` needs graphs of single steps, with which it takes
    targets of at most `max_new_tokens`. Without `noise`, the index of a row in its request seeds the noise of sampling,
    so that a sample depends on no other request. `serving_default` and `generate` of an encoder–decoder take
    `long_texts`, `tag_handling` and `glossary`, too.
    """
    declared = pipeline.tensors(pipeline.config)
    options, refused = _text_options(pipeline), ROW_OPTIONS.keys() - pipeline.row_options

    def generates(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Signature:
        names = [tensor.name for tensor in outputs]
        taken = tuple(tensor for tensor in inputs if tensor.name not in refused)
        return Signature(taken, (*outputs,), functools.partial(_generate, pipeline, names), _SETTINGS)

    if pipeline.text_methods is None:
        (_, *of_rows), (_, *noise) = (declared[name][0] for name in ("generate", "generate_ids"))
        arrays = (Tensor("input_ids", "int64", (None,)), *of_rows, *noise)
        return {"generate_ids": generates(arrays, declared["generate_ids"][1])}
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
        result[name] = generates((*inputs, *(() if name == "generate_ids" else options)), outputs)
    result["encode"] = Signature(*declared["encode"], functools.partial(_encode, pipeline))
    if not pipeline.engine.needed_to_score:
        result["score"] = Signature(*declared["score"], functools.partial(_score, pipeline))
    if not pipeline.engine.needed_to_attribute:
        attributed = (
            Tensor("text", "string"),
            Tensor("source_pieces", "string", (None,)),
            Tensor("pieces", "string", (None,)),
            Tensor("alignment", "float32", (None, None)),
            ERROR_OUTPUT,
        )
        result["attributions"] = Signature(
            declared[DEFAULT][0], attributed, functools.partial(_attributions, pipeline)
        )
    return result


def _text_options(pipeline: Generating) -> tuple[Tensor, ...]:
    """Return the options of texts that are split or have tags, inputs of signatures, if the pipeline has them."""
    if not isinstance(pipeline, TextToText) or pipeline.text_methods is None:
        return ()
    return (
        Tensor(LONG_TEXTS, "string", default=pipeline.long_texts, choices=splitting.LONG_TEXTS),
        Tensor(TAGS, "string", optional=True, choices=TAG_HANDLING),
        _PlaceholdersTensor(_PLACEHOLDERS, "string", optional=True),
        _GlossaryTensor(_GLOSSARY, "string", optional=True),
        Tensor(_MODE, "string", optional=True, choices=GLOSSARY_MODES),
    )


def stream_inputs(pipeline: Generating) -> tuple[Tensor, ...]:
    """Return the inputs of a stream."""
    options = (
        dataclasses.replace(option, default=None, optional=True) for option in pipeline.row_options.values()
    )
    return (TEXT, *languages.options(pipeline.config), *options, *_text_options(pipeline)[:1])


def warm_up(pipeline: Generating) -> None:
    """Generate one token in each bucket of lengths and, where there are graphs of single steps, by these."""
    language = next(iter(pipeline.languages), None)
    row = dict.fromkeys(languages.NAMES, language) if language else {}
    limit = pipeline.max_source_tokens
    length = 1
    while length < 2 * limit:
        ids = [pipeline.engine.end_id] * min(length, limit)
        source = pipeline.now(pipeline.source_of(ids, {**row, "max_new_tokens": 1}, 0))
        pipeline.engine.methods[GENERATE]([source])
        length *= 2
    if not pipeline.engine.needed_to_stream:
        next(pipeline.engine.tokens(source), None)


def source_of(pipeline: Generating, ids: Sequence[int], row: Row, index: int) -> Source:
    """Return the inputs of the generation for token ids; the inputs of the row are those of "generate"."""
    return pipeline.now(pipeline.source_of(ids, _options(pipeline, row), index))


def pieces(pipeline: Generating, row: Row) -> Iterator[str]:
    """Return an iterator of the pieces of a text while it is generated; joined, they are the text.

    Args:
        pipeline: one that streams.
        row: the inputs, of `stream_inputs`, and `TRUNCATE`.
    """
    return pipeline.pieces(text_of(row, "text"), _options(pipeline, row))


def _options(pipeline: Generating, row: Row) -> Row:
    """Return the options of a row as the pipeline takes them."""
    options: Row = {name: row[name] for name in (*pipeline.row_options, "noise") if name in row}
    pipeline.check_numbers(options)
    if "noise" in row and not ((row["noise"] >= 0) & (row["noise"] <= 1)).all():
        received = f"from {row['noise'].min()} to {row['noise'].max()}"
        raise InvalidInputError("noise", f"`noise` must be in [0, 1]. Received: {received}")
    options |= {name: text_of(row, name) for name in (*languages.NAMES, LONG_TEXTS, TAGS) if name in row}
    options[TRUNCATE] = row.get(TRUNCATE, False)
    if LONG_TEXTS in row and row[LONG_TEXTS] not in splitting.LONG_TEXTS:
        expected = f"one of {splitting.LONG_TEXTS}"
        raise InvalidInputError(
            LONG_TEXTS, f"`{LONG_TEXTS}` must be {expected}. Received: {LONG_TEXTS}={row[LONG_TEXTS]!r}"
        )
    if not {TAGS, _PLACEHOLDERS, _GLOSSARY} & row.keys():
        return options
    try:
        given = {name: row[name] for name in (TAGS, _PLACEHOLDERS, _GLOSSARY) if name in row}
        pipeline.check_options(given, options[TRUNCATE])
        if _GLOSSARY in row:
            mode = text_of(row, _MODE) if _MODE in row else GLOSSARY_MODES[0]
            options[_GLOSSARY] = Glossary(of_json(text_of(row, _GLOSSARY)), mode)
        names = text_of(row, _PLACEHOLDERS).split() if _PLACEHOLDERS in row else None
        options[TAGS], options[_PLACEHOLDERS] = tags_of(options.get(TAGS), names)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("texts", str(error)) from None
    return {name: value for name, value in options.items() if value is not None}


def _generate(pipeline: Generating, names: Sequence[str], row: Row, index: int) -> Steps[Row]:
    """Return the named outputs of a row."""
    # In signatures without the option, long texts are errors.
    options = {LONG_TEXTS: "refuse", **_options(pipeline, row)}
    given = row["input_ids"] if "input_ids" in row else text_of(row, "text", "texts")
    count = pipeline.engine.num_return if "text" in names else 0
    try:
        output = yield from pipeline.output(given, options, index, count)
    except InvalidInputError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInputError("input_ids" if "input_ids" in row else "texts", str(error)) from None
    outputs = {name: values for name, values in _outputs(output.generated).items() if name in names}
    if "text" in names:
        outputs["text"] = output.texts if count > 1 else output.texts[0]
    return {**outputs, ERROR: ""}


def _outputs(generated: Generated) -> Row:
    """Return "ids", "lengths" and "scores", without an axis of hypotheses if there is one only."""
    values = {"ids": generated.ids, "lengths": generated.lengths, "scores": generated.scores}
    return {name: array[0] if len(array) == 1 else array for name, array in values.items()}


def _encode(pipeline: Generating, row: Row, index: int) -> Steps[Row]:
    ids = yield from pipeline.source_ids(text_of(row, "text", "texts"), _options(pipeline, row), index)
    return {"source_ids": ids, "padding_mask": [True] * len(ids), ERROR: ""}


def _score(pipeline: Generating, row: Row, index: int) -> Steps[Row]:
    text, target = text_of(row, "text", "texts"), text_of(row, "target", "targets")
    scores, ids = yield from pipeline.scored(text, target, _options(pipeline, row), index)
    return {"scores": float(scores.sum()), "token_scores": scores, "lengths": len(ids), ERROR: ""}


def _attributions(pipeline: Generating, row: Row, index: int) -> Steps[Row]:
    text, options = text_of(row, "text", "texts"), _options(pipeline, row)
    found = yield from pipeline.attributed(text, None, options, index)
    return {
        "text": found.text,
        "source_pieces": found.source,
        "pieces": found.target,
        "alignment": found.weights,
        ERROR: "",
    }


def check_stream(pipeline: Any) -> Generating:
    """Return a pipeline that streams."""
    needed = "a pipeline that generates"
    if isinstance(pipeline, Generating):
        needed = streams(pipeline)
    if needed:
        raise RequestError(400, f"Streaming needs {needed}")
    assert isinstance(pipeline, Generating)
    return pipeline


def streams(pipeline: Generating) -> str:
    """Return the reason why an export cannot generate token by token, or "" if it can."""
    if pipeline.text_methods is None:
        return "a tokenizer that runs without TensorFlow"
    return pipeline.engine.needed_to_stream
