"""Transcriptions and translations of speech, of OpenAI's protocol."""

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.speech_to_text import SpeechToText
from keras_transformer_serving.pipelines.speech_windows import SPLIT
from keras_transformer_serving.server import fields, requests
from keras_transformer_serving.server.api import Json, Server, encoded_response
from keras_transformer_serving.server.fields import Field, one_of
from keras_transformer_serving.server.openai_forms import model_of
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row, shown

TASKS = {"transcriptions": "transcribe", "translations": "translate"}
"""The task of each route below `/v1/audio/`."""
_NO_OPTION = "as the model's graph has no such option"
_NO_TIMES = "as the model's graph has no times of segments"
_NO_LANGUAGES = "as the model has no languages"
_VERBOSE = "verbose_json"


def has_task(pipeline: Any, task: str) -> bool:
    """Return whether a pipeline does a task; one without tasks transcribes."""
    return isinstance(pipeline, SpeechToText) and task in (pipeline.tasks or ("transcribe",))


def audio_fields(task: str, name: str, pipeline: SpeechToText) -> tuple[Field, ...]:
    """Return the fields of a form with audio for a model, beside its file."""
    known = [*pipeline.languages]
    formats = ["json", "text", *([_VERBOSE] if known else [])]  # which has the language
    reason = _NO_TIMES if known else f"{_NO_LANGUAGES}, and no times of segments"
    language = one_of(*known, any_case=True) if known else one_of("", reason=_NO_LANGUAGES)
    return (
        Field("model", one_of(name), required=True),
        *([Field("language", language)] if task == "transcribe" else []),
        Field("response_format", one_of(*formats, reason=reason), "json"),
        *(
            Field(field, one_of(value, reason=reason))
            for field, value, reason in (
                ("prompt", "", _NO_OPTION),
                ("temperature", 0, _NO_OPTION),
                ("stream", False, "as a text is complete when its audio is"),
                ("timestamp_granularities[]", "", _NO_TIMES),
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
            row |= {"long_audio": SPLIT} if pipeline.long_audio is not None else {}
            row |= {"language": values["language"]} if values.get("language") else {}
            return DEFAULT, [row], len(row["audio"])

        def respond(_: Signature, outputs: Mapping[str, np.ndarray], count: int) -> Json:
            if error := outputs[ERROR][0]:
                raise RequestError(400, str(error).replace("`audio`", "`file`"), param="file")
            answer: Json = {"text": str(outputs["text"][0])}
            if values["response_format"] != _VERBOSE:
                return answer
            spoken = str(outputs["language"][0])
            language = languages.name_of("en" if task == "translate" else spoken).lower()  # of the text
            duration = count / pipeline.config["sample_rate"]
            return {"task": task, "language": language, "duration": duration, **answer}

        content = await requests.compute(
            request, len(body), rows, respond, loaded.signatures, batcher, server.limits
        )
    if values["response_format"] == "text":
        return PlainTextResponse(json.loads(content)["text"] + "\n")
    return encoded_response(content)


def _of_form(given: Mapping[str, str], table: Sequence[Field]) -> Json:
    """Return the strings of a form as JSON: booleans and numbers where a field of the table has such values."""
    document: Json = {**given}
    for field in table:
        value, known = given.get(field.name), field.kind.schema["enum"]
        if value is None or any(isinstance(each, str) for each in known):
            continue
        if isinstance(known[0], bool):
            document[field.name] = {"true": True, "false": False}.get(value, value)
        else:
            with contextlib.suppress(ValueError):
                document[field.name] = float(value)
    return document


TEXT = {
    "anyOf": [
        fields.exact_object({"text": fields.TEXT}),
        fields.exact_object(
            {
                "task": {"enum": [*TASKS.values()]},
                "language": fields.TEXT,
                "duration": fields.NUMBER,
                "text": fields.TEXT,
            }
        ),
    ]
}
