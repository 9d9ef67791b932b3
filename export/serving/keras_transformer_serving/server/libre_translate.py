"""LibreTranslate's protocol: translate, languages, and files."""

import dataclasses
import functools
import html
import itertools
import re
import secrets
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.text_to_text import TextToText
from keras_transformer_serving.server import fields, openapi, requests
from keras_transformer_serving.server.api import (
    Api,
    Json,
    Server,
    encoded_response,
    health,
    json_response,
    specification,
)
from keras_transformer_serving.server.fields import ANYTHING, STRINGS, Field, Kind, integer, one_of
from keras_transformer_serving.server.generating import LONG_TEXTS, TAGS
from keras_transformer_serving.server.keys import key_of
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row, shown

NAME = "libretranslate"
_MOST_FILES = 64
_NO_NUMBER = "Invalid request: alternatives parameter is not a number"
_LINE = 25  # characters of a line of verse, which is a part of a text; sentences of prose have about twice as many
_CUES = 64  # of subtitles that are translated at the same time
_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d+\s*-->")
_LINE_END = r"(?>\r\n?|\n)"  # atomic, since "\r\n" is one line end
_EMPTY_LINES = re.compile(rf"({_LINE_END}(?:[ \t]*{_LINE_END})+)")


class _Translation(NamedTuple):
    """The name of a model that translates from one language to another, and the options of its rows."""

    model: str
    options: Row


_Known = Mapping[str, Mapping[str, _Translation]]


class _Request(NamedTuple):
    """A request: its fields, an uploaded file, and the size of its body."""

    fields: Json
    file: tuple[str, bytes] | None
    size: int


class _Format(NamedTuple):
    """A format of files.

    Attributes:
        style: the "format" of its texts.
        kind: its type of content.
        read: a function from the content to its texts, and a function from their translations to the new content.
    """

    style: str
    kind: str
    read: Callable[[str], tuple[list[str], Callable[[list[str]], str]]]


def _whole(content: str) -> tuple[list[str], Callable[[list[str]], str]]:
    return [content], "".join


def _subtitles(content: str) -> tuple[list[str], Callable[[list[str]], str]]:
    """Return the texts of subtitles, without their numbers and times, which the new content has, too."""
    texts: list[str] = []
    heads = []  # of each cue, and the strings between
    for block in _EMPTY_LINES.split(content):
        lines = block.splitlines()
        times = next((place for place, line in enumerate(lines) if _TIMES.match(line)), None)
        if times is None or times + 1 == len(lines):
            heads.append((block, False))
            continue
        heads.append(("".join(f"{line}\n" for line in lines[: times + 1]), True))
        texts.append(" ".join(line.strip() for line in lines[times + 1 :]))

    def join(translations: list[str]) -> str:
        rest = map(html.unescape, translations)  # subtitles have tags, but no character references
        return "".join(head + (next(rest) if is_cue else "") for head, is_cue in heads)

    return texts, join


_FILES = {
    ".txt": _Format("text", "text/plain", _whole),
    ".html": _Format("html", "text/html", _whole),
    ".srt": _Format("html", "application/x-subrip", _subtitles),
}


def _translations(server: Server) -> _Known:
    """Return the translations of all models, by the language of the text and that of the output."""
    return _of_models(
        tuple(
            (name, tuple(pipeline.languages))
            for name, pipeline in server.pipelines().items()
            if isinstance(pipeline, TextToText) and pipeline.tokenizer is not None
        )
    )


@functools.lru_cache(maxsize=8)  # a model of 200 languages has 40,000 translations
def _of_models(models: tuple[tuple[str, tuple[str, ...]], ...]) -> _Known:
    """Return the translations of models, of which there are the name and the languages.

    A model of many languages has its codes, without their second part if the first is enough, such as "es" for "es_XX".
    Another model is named after its languages, such as "es-en" or "opus-mt-es-en".
    """
    found: dict[str, dict[str, _Translation]] = {}

    def add(source: str, target: str, *translation: Any) -> None:
        found.setdefault(source, {}).setdefault(target, _Translation(*translation))

    for name, known in models:
        codes = {code.split("_")[0]: code for code in known}
        if len(codes) < len(known):
            codes = {code: code for code in known}
        for source, target in itertools.permutations(codes, 2):
            options = {languages.SOURCE: codes[source], languages.TARGET: codes[target]}
            add(source, target, name, options)
        if not codes and (pair := languages.pair_of(name)):
            add(*pair, name, {})
    return found


async def _read(server: Server, request: Request) -> _Request:
    """Return a request, whose body is JSON, a form, or a form with a file."""
    received: _Request | None = getattr(request.state, "received", None)  # to find its key
    if received is None:
        body = await server.body(request)
        parse = functools.partial(_parsed, request.headers.get("content-type", ""), body)
        received = await requests.in_time("read", parse, len(body), server.limits)
        received = received._replace(fields={**request.query_params, **received.fields})
        request.state.received = received
    return received


async def _key(server: Server, request: Request) -> str | None:
    """Return the key of a request, in its headers or its field "api_key"."""
    if key := key_of(request.headers):
        return key
    key = (await _read(server, request)).fields.get("api_key")
    return key if isinstance(key, str) else None


def _parsed(kind: str, body: bytes) -> _Request:
    is_json = body.startswith(b"{")  # of whatever type: curl -d '{"q": …}' says that it is a form
    if kind.startswith("application/x-www-form-urlencoded") and not is_json:
        try:
            fields = urllib.parse.parse_qs(body.decode(), keep_blank_values=True, max_num_fields=100)
        except ValueError as error:
            raise RequestError(400, f"The request must be a form of UTF-8. Received: {error}") from None
        for name, values in fields.items():
            if len(values) > 1:
                raise requests.given_twice(name)
        return _Request({name: value for name, (value,) in fields.items()}, None, len(body))
    if kind.startswith("multipart/form-data"):
        return _Request(*requests.form(kind, body), len(body))
    document = requests.parse_json(body) if body else {}
    if not isinstance(document, dict):
        raise RequestError(400, "Invalid JSON format")
    return _Request(document, None, len(body))


def _of_source(known: _Known, source: Any) -> list[Mapping[str, _Translation]]:
    return [known.get(source, {})] if isinstance(source, str) else [*known.values()]


def _worded(kind: Kind, wrong: str = "") -> Kind:
    """Return a kind with LibreTranslate's words for a missing value and, if any, a wrong string, `{}`."""

    def wording(name: str, value: Any) -> str:
        if value is None or value == []:
            return f"Invalid request: missing {name} parameter"
        if wrong and isinstance(value, str):
            return wrong.format(value if len(value) < 80 else shown(value))
        return str(fields.wrong(name, kind.expected, value))

    return dataclasses.replace(kind, wording=wording)


def _languages_of(known: _Known, source: Any = None) -> tuple[Field, ...]:
    """Return the fields of a request to translate a file; the targets are those of a source, by default of any."""
    hint = ", as the server does not detect languages" if source == "auto" else ""
    targets = {target for targets in _of_source(known, source) for target in targets}
    return (
        Field("source", _worded(one_of(*sorted(known)), f"{{}} is not supported{hint}"), required=True),
        Field("target", _worded(one_of(*sorted(targets)), "{} is not supported"), required=True),
        Field("api_key", ANYTHING),
        Field("secret", ANYTHING),
    )


def _text_fields(known: _Known, source: Any = None) -> tuple[Field, ...]:
    """Return the fields of a request to translate texts; an answer has as many alternatives as there are."""
    return (
        Field("q", _worded(STRINGS), required=True),
        *_languages_of(known, source),
        Field("format", _worded(one_of("text", "html"), "{} format is not supported"), "text"),
        Field("alternatives", _worded(integer(0, 2**31 - 1), _NO_NUMBER), 0),
    )


def _values(
    server: Server, given: Json, table: Callable[..., tuple[Field, ...]]
) -> tuple[Json, _Translation]:
    """Return the values of the fields of a request, and the translation that they name."""
    known = _translations(server)
    if not known:
        raise RequestError(
            404,
            "A model must translate languages that are known: serve it under a name such as es-en, as in "
            "`keras-transformer-serve es-en=FOLDER`. Received: other models",
        )
    document = {name: _of_form(name, value) for name, value in given.items()}
    document["source"] = source = _code(document.get("source"), known)
    document["target"] = _code(
        document.get("target"), known.get(source, {}) if isinstance(source, str) else {}
    )
    values = fields.read(document, table(known, source))
    return values, known[values["source"]][values["target"]]


def _code(given: Any, codes: Iterable[str]) -> Any:
    """Return the code of a language that a request has in any case, such as "ES"; other values as they are."""
    same = (code for code in codes if isinstance(given, str) and code.lower() == given.lower())
    return next(same, given)


def _of_form(name: str, value: Any) -> Any:
    """Return a value of a form as one of JSON: an empty option as null, and a number as an integer."""
    if name == "alternatives" and re.fullmatch("[0-9]{1,8}", str(value)):
        return int(value)
    return None if value == "" and name != "q" else value


async def _translated(
    server: Server,
    request: Request,
    size: int,
    translation: _Translation,
    texts: list[str],
    style: str,
    respond: Callable[[list[list[str]]], Any],
) -> bytes:
    """Return the answer of `respond`, a function from the texts (B, N) of B inputs and N hypotheses, to a request."""
    options = {**translation.options, LONG_TEXTS: "split", **({TAGS: "html"} if style == "html" else {})}
    with server.models[translation.model].use() as (_, loaded, batcher):

        def rows() -> tuple[str, list[Row], None]:
            return DEFAULT, [{**options, "text": text} for text in texts], None

        def answer(_: Signature, outputs: Mapping[str, np.ndarray], __: None) -> Any:
            for error in outputs[ERROR]:
                if error:
                    raise RequestError(400, error.replace("`texts`", "`q`").replace("`text`", "`q`"))
            return respond(outputs["text"].reshape(len(texts), -1).tolist())

        return await requests.compute(request, size, rows, answer, loaded.signatures, batcher, server.limits)


async def _translate(server: Server, request: Request) -> Response:
    """Translate texts."""
    received = await _read(server, request)
    values, translation = _values(server, received.fields, _text_fields)
    one, count = isinstance(received.fields["q"], str), values["alternatives"]

    def respond(outputs: list[list[str]]) -> Json:
        best, others = [row[0] for row in outputs], [row[1 : count + 1] for row in outputs]
        answer: Json = {"translatedText": best[0] if one else best}
        return {**answer, "alternatives": others[0] if one else others} if count else answer

    content = await _translated(
        server, request, received.size, translation, values["q"], values["format"], respond
    )
    return encoded_response(content)


async def _languages(server: Server, _: Request) -> Response:
    """The languages of the models."""
    return json_response(
        [
            {"code": code, "name": languages.name_of(code), "targets": sorted(targets)}
            for code, targets in sorted(_translations(server).items())
        ]
    )


async def _detect(_: Server, __: Request) -> Response:
    """An error: the server does not detect languages."""
    raise RequestError(
        400, "The server does not detect languages: name that of the text as `source` of /translate"
    )


def _first_hypotheses(outputs: list[list[str]]) -> list[str]:
    return [row[0] for row in outputs]


async def _translate_file(server: Server, request: Request) -> Response:
    """Translate a file, which waits in memory to be downloaded, with the latest of other requests."""
    received = await _read(server, request)
    if received.file is None:
        raise RequestError(400, "`file` must be a file in a form of several parts. Received: none")
    filename, content = received.file
    _, dot, extension = filename.rpartition(".")
    format_ = _FILES.get(dot + extension.lower())
    if format_ is None:
        raise RequestError(400, f"`file` must be one of {', '.join(_FILES)}. Received: {shown(filename)}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"`file` must be UTF-8. Received: another byte at {error.start}") from None

    _, translation = _values(server, received.fields, _languages_of)
    name = f"{secrets.token_urlsafe(16)}.{extension.lower()}"

    if len(text) > (limit := server.limits.max_characters):
        raise RequestError(400, f"`file` must have at most {limit} characters. Received: {len(text)}")
    texts, join = format_.read(text)
    translations: list[str] = []
    for begin in range(0, len(texts), _CUES):
        part = texts[begin : begin + _CUES]
        translated = await _translated(
            server, request, received.size, translation, part, format_.style, _first_hypotheses
        )
        translations += requests.parse_json(translated)
    while len(server.files) >= _MOST_FILES:
        del server.files[next(iter(server.files))]
    server.files[name] = join(translations).encode()
    return json_response({"translatedFileUrl": f"{request.base_url}download_file/{name}"})


async def _download_file(server: Server, request: Request) -> Response:
    """Download a translated file."""
    name = request.path_params["file"]
    if name not in server.files:
        raise RequestError(404, "The file must be one that was just translated; it is no longer kept")
    kind = _FILES[f".{name.rpartition('.')[2]}"].kind
    # As an attachment, so that a browser does not run scripts of a page that someone else uploaded.
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(server.files[name], headers=headers, media_type=kind)


def _most_characters(server: Server) -> int:
    """Return the length of a text of ordinary sentences or short lines that fits into the rows of a request.

    A line, or a sentence of one, is a part of a text. One that does not fit the model is halved.
    """
    limits, pipelines = server.limits, server.pipelines()
    models = {each.model for targets in _translations(server).values() for each in targets.values()}
    tokens = min((pipelines[name].max_source_tokens for name in models), default=limits.max_characters)
    return min(limits.max_characters, limits.max_rows * min(_LINE, max(tokens // 2, 1)))


async def _settings(server: Server, _: Request) -> Response:
    """The settings that LibreTranslate's clients ask for."""
    source, targets = next(iter(_translations(server).items()), ("", [""]))
    pair = [{"code": code, "name": languages.name_of(code)} for code in (source, next(iter(targets)))]
    return json_response(
        {
            "apiKeys": server.keys is not None,
            "charLimit": _most_characters(server),
            "filesTranslation": True,
            "frontendTimeout": 500,
            "keyRequired": server.keys is not None,
            "language": dict(zip(("source", "target"), pair, strict=True)),
            "suggestions": False,
            "supportedFilesFormat": [*_FILES],
        }
    )


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes, if a model translates."""
    known = _translations(server)
    if not known:
        return {}
    body, file = (fields.schema([table(known)]) for table in (_text_fields, _languages_of))
    texts = {"anyOf": [fields.TEXT, fields.list_of(fields.TEXT)]}
    translated = {"translatedText": texts, "alternatives": {"type": "array"}}
    answer = fields.object_of(translated, ["translatedText"], others=False)
    url = fields.exact_object({"translatedFileUrl": fields.TEXT})
    known_language = {"code": fields.TEXT, "name": fields.TEXT, "targets": fields.list_of(fields.TEXT)}
    of_file = openapi.operation("Translate a file (LibreTranslate)", url, file, api=NAME, has_file=True)
    return {
        "/translate": {"post": openapi.operation("Translate (LibreTranslate)", answer, body, api=NAME)},
        "/translate_file": {"post": of_file},
        "/languages": {
            "get": openapi.operation(
                "The languages", fields.list_of(fields.exact_object(known_language)), api=NAME
            )
        },
        **{
            path: {"get": openapi.operation(summary, {"type": "object"}, api=NAME)}
            for path, summary in {
                "/frontend/settings": "The settings for pages",
                "/health": "Whether every model is loaded",
                "/spec": "This document",
            }.items()
        },
    }


API = Api(
    NAME,
    (
        ("POST", "/translate", _translate),
        ("POST", "/translate_file", _translate_file),
        ("GET", "/download_file/{file}", _download_file),
        ("GET", "/languages", _languages),
        ("GET", "/health", health),
        ("GET", "/spec", specification),
        ("POST", "/detect", _detect),
        ("GET", "/frontend/settings", _settings),
    ),
    _paths,
    key=_key,
    public=("/health",),
)
