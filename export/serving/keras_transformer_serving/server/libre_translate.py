"""LibreTranslate's protocol: translate, languages, and files."""

import email.parser
import email.policy
import functools
import secrets
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.text_to_text import TextToText
from keras_transformer_serving.server import openapi, requests
from keras_transformer_serving.server.api import Api, Json, Server, encoded_response, json_response
from keras_transformer_serving.server.generating import LONG_TEXTS
from keras_transformer_serving.server.keys import key_of
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.server.versions import ServedModel
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row, shown

NAME = "libretranslate"
_TAG_HANDLING = "tag_handling"  # the option of a row that keeps tags
_FORMATS = ("text", "html")
_FILES = {".txt": "text", ".html": "html"}
_MOST_FILES = 64


class _Translation(NamedTuple):
    """A model that translates from one language to another, and the options of its rows."""

    model: ServedModel
    options: Row


class _Request(NamedTuple):
    """A request: its fields, an uploaded file, and the size of its body."""

    fields: Json
    file: tuple[str, bytes] | None
    size: int


def _translations(server: Server) -> dict[tuple[str, str], _Translation]:
    """Return the translations of all models, by the languages of the text and of the output.

    A model of many languages has its codes, without their second part if the first is enough, such as "es" for "es_XX".
    Another model is named after its languages, such as "es-en" or "opus-mt-es-en".
    """
    found: dict[tuple[str, str], _Translation] = {}
    for name, pipeline in server.pipelines().items():
        if not isinstance(pipeline, TextToText) or pipeline.tokenizer is None:
            continue
        model = server.models[name]
        codes = {code.split("_")[0]: code for code in pipeline.languages}
        if len(codes) < len(pipeline.languages):
            codes = {code: code for code in pipeline.languages}
        for source, source_code in codes.items():
            for target, target_code in codes.items():
                if source != target:
                    options = {languages.SOURCE: source_code, languages.TARGET: target_code}
                    found.setdefault((source, target), _Translation(model, options))
        if not codes and (pair := languages.pair_of(name)):
            found.setdefault(pair, _Translation(model, {}))
    return found


async def _read(server: Server, request: Request) -> _Request:
    """Return a request, whose body is JSON, a form, or a form with a file."""
    received: _Request | None = getattr(request.state, "received", None)  # to find its key
    if received is None:
        body = await server.body(request)
        parse = functools.partial(_parsed, request.headers.get("content-type", ""), body)
        try:
            received = await requests.in_thread(parse, len(body), server.limits.timeout)
        except TimeoutError:
            raise RequestError(408, f"The request must be read within {server.limits.timeout:g} s") from None
        request.state.received = received
    return received


async def _key(server: Server, request: Request) -> str | None:
    """Return the key of a request, in its headers or its field "api_key"."""
    if key := key_of(request.headers):
        return key
    key = (await _read(server, request)).fields.get("api_key")
    return key if isinstance(key, str) else None


def _parsed(kind: str, body: bytes) -> _Request:
    if kind.startswith("application/x-www-form-urlencoded"):
        try:
            fields = urllib.parse.parse_qs(body.decode(), keep_blank_values=True, max_num_fields=100)
        except ValueError as error:
            raise RequestError(400, f"The request must be a form of UTF-8. Received: {error}") from None
        return _Request({name: values[-1] for name, values in fields.items()}, None, len(body))
    if kind.startswith("multipart/form-data"):
        return _form(kind, body)
    document = requests.document(body) if body else {}
    if not isinstance(document, dict):
        raise RequestError(400, f"The request must be a JSON object or a form. Received: {shown(document)}")
    return _Request(document, None, len(body))


def _form(kind: str, body: bytes) -> _Request:
    """Return the fields and the file of a form of several parts."""
    head = f"Content-Type: {kind}\r\n\r\n".encode("latin-1")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise RequestError(400, f"The request must be a form of several parts. Received: {shown(kind)}")
    fields: Json = {}
    file = None
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes):
            continue
        if (filename := part.get_filename()) is not None:
            file = (filename, content)
            continue
        try:
            fields[name] = content.decode()
        except UnicodeDecodeError:
            raise RequestError(400, f"`{name}` must be UTF-8. Received: other bytes") from None
    return _Request(fields, file, len(body))


def _translation(server: Server, fields: Json) -> _Translation:
    """Return the translation that the fields "source" and "target" name."""
    known = _translations(server)
    if not known:
        raise RequestError(
            404,
            "A model must translate languages that are known: serve it under a name such as es-en, as in "
            "`keras-transformer-serve es-en=FOLDER`. Received: other models",
        )
    source, target = fields.get("source"), fields.get("target")
    sources = [*dict.fromkeys(pair[0] for pair in known)]
    if source not in sources:
        hint = ", as the server does not detect languages" if source == "auto" else ""
        raise RequestError(400, f"`source` must be {' or '.join(sources)}{hint}. Received: {shown(source)}")
    targets = [pair[1] for pair in known if pair[0] == source]
    if target not in targets:
        raise RequestError(400, f"`target` must be {' or '.join(targets)}. Received: {shown(target)}")
    return known[source, target]


async def _translated(
    server: Server,
    request: Request,
    received: _Request,
    texts: list[Any],
    style: str,
    respond: Any,
) -> bytes:
    """Return the answer of `respond`, a function from the texts (B, N) of B inputs and N hypotheses, to a request."""
    model, options = _translation(server, received.fields)
    with model.use() as (_, loaded, batcher):
        inputs = {tensor.name: tensor for tensor in loaded.signatures[DEFAULT].inputs}
        if style == "html":
            if _TAG_HANDLING not in inputs:
                raise RequestError(
                    400,
                    f"`format` must be text, as {model.name} cannot keep the tags of HTML. Received: html",
                )
            options = {**options, _TAG_HANDLING: "html"}
        if LONG_TEXTS in inputs:
            options = {**options, LONG_TEXTS: "split"}

        def rows() -> tuple[str, list[Row], None]:
            return DEFAULT, [{**options, "text": text} for text in texts], None

        def answer(_: Signature, outputs: Mapping[str, np.ndarray], __: None) -> Any:
            for error in outputs[ERROR]:
                if error:
                    raise RequestError(400, error.replace("`texts`", "`q`").replace("`text`", "`q`"))
            return respond(outputs["text"].reshape(len(texts), -1).tolist())

        return await requests.compute(
            request, received.size, rows, answer, loaded.signatures, batcher, server.limits
        )


async def _translate(server: Server, request: Request) -> Response:
    """Translate texts."""
    received = await _read(server, request)
    fields = received.fields
    given = fields.get("q")
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise RequestError(400, f"`q` must be a string or a list of strings. Received: {shown(given)}")
    style = fields.get("format") or "text"
    if style not in _FORMATS:
        raise RequestError(400, f"`format` must be text or html. Received: {shown(style)}")
    count = _num_candidates(fields)

    def respond(outputs: list[list[str]]) -> Json:
        most = len(outputs[0]) - 1
        if count > most:
            raise RequestError(
                400, f"`alternatives` must be at most {most}, as the export has no others. Received: {count}"
            )
        best, others = [row[0] for row in outputs], [row[1 : count + 1] for row in outputs]
        one = not isinstance(given, list)
        answer: Json = {"translatedText": best[0] if one else best}
        return {**answer, "alternatives": others[0] if one else others} if count else answer

    return encoded_response(await _translated(server, request, received, texts, style, respond))


def _num_candidates(fields: Json) -> int:
    value = fields.get("alternatives") or 0
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) < 9):
        raise RequestError(400, f"`alternatives` must be a number. Received: {shown(value)}")
    return int(text)


async def _languages(server: Server, _: Request) -> Response:
    """The languages of the models."""
    targets: dict[str, list[str]] = {}
    for source, target in _translations(server):
        targets.setdefault(source, []).append(target)
    listed = [
        {"code": code, "name": languages.name_of(code), "targets": sorted(targets[code])}
        for code in sorted(targets)
    ]
    return json_response(listed)


async def _detect(_: Server, __: Request) -> Response:
    """An error: the server does not detect languages."""
    raise RequestError(
        400, "The server does not detect languages: name that of the text as `source` of /translate"
    )


async def _translate_file(server: Server, request: Request) -> Response:
    """Translate a file, which waits in memory to be downloaded, with the latest of other requests."""
    received = await _read(server, request)
    if received.file is None:
        raise RequestError(400, "`file` must be a file in a form of several parts. Received: none")
    filename, content = received.file
    _, dot, extension = filename.rpartition(".")
    style = _FILES.get(dot + extension.lower())
    if style is None:
        raise RequestError(400, f"`file` must be one of {', '.join(_FILES)}. Received: {shown(filename)}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"`file` must be UTF-8. Received: another byte at {error.start}") from None

    name = f"{secrets.token_urlsafe(16)}.{extension.lower()}"

    def respond(outputs: list[list[str]]) -> Json:
        return {"translatedFileUrl": f"{request.base_url}download_file/{name}", "text": outputs[0][0]}

    answer = requests.document(await _translated(server, request, received, [text], style, respond))
    while len(server.files) >= _MOST_FILES:
        del server.files[next(iter(server.files))]
    server.files[name] = answer.pop("text").encode()
    return json_response(answer)


async def _download_file(server: Server, request: Request) -> Response:
    """Download a translated file."""
    name = request.path_params["file"]
    if name not in server.files:
        raise RequestError(404, "The file must be one that was just translated; it is no longer kept")
    kind = "text/html" if name.endswith(".html") else "text/plain"
    # As an attachment, so that a browser does not run scripts of a page that someone else uploaded.
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(server.files[name], headers=headers, media_type=kind)


async def _settings(server: Server, _: Request) -> Response:
    """The settings that LibreTranslate's clients ask for."""
    pair = next(iter(_translations(server)), ("", ""))
    source, target = ({"code": code, "name": languages.name_of(code)} for code in pair)
    return json_response(
        {
            "apiKeys": server.keys is not None,
            "charLimit": server.limits.max_characters,
            "frontendTimeout": 500,
            "keyRequired": server.keys is not None,
            "language": {"source": source, "target": target},
            "suggestions": False,
            "supportedFilesFormat": [*_FILES],
        }
    )


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes, if a model translates."""
    known = _translations(server)
    if not known:
        return {}
    text: Json = {"type": "string"}
    sources, targets = ({"enum": sorted({pair[side] for pair in known})} for side in (0, 1))
    fields: Json = {"source": sources, "target": targets}
    body = {
        "type": "object",
        "properties": {
            "q": {"anyOf": [text, {"type": "array", "items": text}]},
            **fields,
            "format": {"enum": [*_FORMATS], "default": "text"},
            "alternatives": {"type": "integer", "default": 0},
        },
        "required": ["q", "source", "target"],
    }
    file = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}, **fields}}
    of_file = openapi.operation("Translate a file (LibreTranslate)", {"type": "object"}, file, api=NAME)
    of_file["requestBody"]["content"] = {"multipart/form-data": {"schema": file}}
    return {
        "/translate": {
            "post": openapi.operation("Translate (LibreTranslate)", {"type": "object"}, body, api=NAME)
        },
        "/translate_file": {"post": of_file},
        "/languages": {"get": openapi.operation("The languages", {"type": "array"}, api=NAME)},
    }


API = Api(
    NAME,
    (
        ("POST", "/translate", _translate),
        ("POST", "/translate_file", _translate_file),
        ("GET", "/download_file/{file}", _download_file),
        ("GET", "/languages", _languages),
        ("POST", "/detect", _detect),
        ("GET", "/frontend/settings", _settings),
    ),
    _paths,
    key=_key,
)
