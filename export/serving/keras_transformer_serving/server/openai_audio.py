"""Transcriptions and translations of speech, of OpenAI's protocol."""

import contextlib
import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.speech_segments import Segment, subtitles
from keras_transformer_serving.pipelines.speech_to_text import SpeechToText
from keras_transformer_serving.pipelines.speech_windows import SEQUENTIAL, SPLIT
from keras_transformer_serving.server import fields, requests
from keras_transformer_serving.server.api import Json, Server, encoded_response
from keras_transformer_serving.server.fields import STRING, Field, one_of
from keras_transformer_serving.server.forward import SEGMENTS
from keras_transformer_serving.server.openai_forms import model_of
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row, shown

TASKS = {"transcriptions": "transcribe", "translations": "translate"}
"""The task of each route below `/v1/audio/`."""
_NO_OPTION = "as the model's graph has no such option"
_NO_TIMES = "as the model's graph has no times of segments"
_NO_LANGUAGES = "as the model has no languages"
_VERBOSE = "verbose_json"
_SUBTITLES = {"srt": False, "vtt": True}
"""The formats of subtitles, and whether they are WebVTT."""
_MEDIA_TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
"""Those of formats other than JSON."""


def has_task(pipeline: Any, task: str) -> bool:
    """Return whether a pipeline does a task; one without tasks transcribes."""
    return isinstance(pipeline, SpeechToText) and task in (pipeline.tasks or ("transcribe",))


def audio_fields(task: str, name: str, pipeline: SpeechToText) -> tuple[Field, ...]:
    """Return the fields of a form with audio for a model, beside its file."""
    known, has_times = [*pipeline.languages], pipeline.no_timestamps_id is not None
    formats = [
        "json",
        "text",
        *([_VERBOSE] if known or has_times else []),  # which has the language, or segments
        *(_SUBTITLES if has_times else ()),
    ]
    reason = "" if has_times else _NO_TIMES if known else f"{_NO_LANGUAGES}, and no times of segments"
    language = one_of(*known, any_case=True) if known else one_of("", reason=_NO_LANGUAGES)
    words = "as the model's graph has no times of words"
    granularities = one_of("segment", reason=words) if has_times else one_of("", reason=_NO_TIMES)
    has_context = pipeline.previous_text_id is not None
    return (
        Field("model", one_of(name), required=True),
        *([Field("language", language)] if task == "transcribe" else []),
        Field("response_format", one_of(*formats, reason=reason), "json"),
        Field("prompt", STRING if has_context else one_of("", reason=_NO_OPTION)),
        Field("timestamp_granularities[]", granularities),
        *(
            Field(field, one_of(value, reason=reason))
            for field, value, reason in (
                ("temperature", 0, _NO_OPTION),
                ("stream", False, "as a text is complete when its audio is"),
                ("include[]", "", _NO_OPTION),
            )
        ),
    )


async def audio(route: str, server: Server, request: Request) -> Response:
    """Answer a request for the text of an uploaded WAV file."""
    task, body = TASKS[route], await server.body(request)
    parse = functools.partial(requests.form, request.headers.get("content-type", ""), body)
    given, file = await requests.in_time("read", parse, len(body), server.limits)
    model = model_of(server, given)
    with model.use() as (_, loaded, batcher):
        pipeline = loaded.pipeline
        if not isinstance(pipeline, SpeechToText):
            raise fields.wrong("model", "one of speech", model.name)
        if not has_task(pipeline, task):
            raise fields.wrong("model", f"one that can {task}", model.name)
        table = audio_fields(task, model.name, pipeline)
        values = fields.read(_of_form(given, table), table)
        if file is None:
            raise fields.wrong("file", "a WAV file in a form of several parts", None)
        samples, *_ = pipeline.row_inputs
        style = values["response_format"]
        if values["timestamp_granularities[]"] and style != _VERBOSE:
            raise fields.wrong("response_format", f"{_VERBOSE} for timestamp_granularities", style)
        has_times = pipeline.no_timestamps_id is not None
        signature = SEGMENTS if has_times and style in (_VERBOSE, *_SUBTITLES) else DEFAULT

        def rows() -> tuple[str, list[Row], int]:
            row: Row = {tensor.name: tensor.default for tensor in pipeline.row_inputs}
            try:
                row["audio"] = samples.convert(file[1], "file")
            except (InvalidInputError, ValueError) as error:
                message = (
                    f"`file` must be a WAV file that the model reads. Received: {shown(file[0])}: {error}"
                )
                raise RequestError(400, message, param="file") from None
            row |= {"task": task} if pipeline.tasks else {}
            if pipeline.long_audio is not None:
                row["long_audio"] = SEQUENTIAL if has_times else SPLIT
            row |= {"prompt": values["prompt"]} if values["prompt"] else {}
            row |= {"language": values["language"]} if values.get("language") else {}
            return signature, [row], len(row["audio"])

        def respond(_: Signature, outputs: Mapping[str, np.ndarray], count: int) -> Json | bytes:
            if error := outputs[ERROR][0]:
                raise RequestError(400, str(error).replace("`audio`", "`file`"), param="file")
            text = str(outputs["text"][0])
            if style == "text":
                return f"{text}\n".encode()
            if style in _SUBTITLES:
                return subtitles(_segments(outputs), _SUBTITLES[style]).encode()
            answer: Json = {"text": text}
            if style != _VERBOSE:
                return answer
            spoken = str(outputs["language"][0]) if pipeline.languages else ""
            code = "en" if task == "translate" else spoken  # of the text
            answer |= {"language": languages.name_of(code).lower()} if code else {}
            answer |= {"task": task, "duration": count / pipeline.config["sample_rate"]}
            if has_times:
                answer["segments"] = [*map(_segment, range(count), _segments(outputs))]
            return answer

        content = await requests.compute(
            request, len(body), rows, respond, loaded.signatures, batcher, server.limits
        )
    if style in _MEDIA_TYPES:
        return Response(content, media_type=_MEDIA_TYPES[style])
    return encoded_response(content)


def _segments(outputs: Mapping[str, np.ndarray]) -> list[Segment]:
    """Return the segments of the first row of outputs."""
    names = ("starts", "ends", "texts", "windows")
    return [*map(Segment, *(outputs[f"segment_{name}"][0].tolist() for name in names))]


def _segment(number: int, segment: Segment) -> Json:
    """Return a segment of a verbose answer."""
    text = segment.text.encode()
    return {
        "id": number,
        "seek": round(100 * segment.window),
        **{name: round(getattr(segment, name), 2) for name in ("start", "end")},
        "text": segment.text,
        "temperature": 0.0,
        "compression_ratio": len(text) / len(zlib.compress(text)),
    }


def _of_form(given: Mapping[str, str], table: Sequence[Field]) -> Json:
    """Return the strings of a form as JSON: booleans and numbers where a field of the table has such values."""
    document: Json = {**given}
    for field in table:
        value, known = given.get(field.name), field.kind.schema.get("enum", [""])
        if value is None or any(isinstance(each, str) for each in known):
            continue
        if isinstance(known[0], bool):
            document[field.name] = {"true": True, "false": False}.get(value, value)
        else:
            with contextlib.suppress(ValueError):
                document[field.name] = float(value)
    return document


_VERBOSE_TEXT: Json = {
    "text": fields.TEXT,
    "language": fields.TEXT,
    "task": {"enum": [*TASKS.values()]},
    "duration": fields.NUMBER,
    "segments": {
        "type": "array",
        "items": fields.exact_object(
            {
                **dict.fromkeys(("id", "seek"), fields.COUNT),
                **dict.fromkeys(("start", "end"), fields.NUMBER),
                "text": fields.TEXT,
                **dict.fromkeys(("temperature", "compression_ratio"), fields.NUMBER),
            }
        ),
    },
}
TEXT = {
    "anyOf": [
        fields.exact_object({"text": fields.TEXT}),
        fields.object_of(_VERBOSE_TEXT, ("text", "task", "duration"), others=False),
    ]
}
