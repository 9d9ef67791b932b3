"""OpenAI's protocol: completions, chat completions, embeddings, and the models in `/v1/models`."""

import abc
import base64
import contextlib
import dataclasses
import functools
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer_serving.generation import Token
from keras_transformer_serving.graphs import TEMPERATURES
from keras_transformer_serving.pipelines.embedding import Embedding
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.server import generating, openapi, requests, streaming
from keras_transformer_serving.server.api import Api, Json, Server, encoded_response
from keras_transformer_serving.server.choices import Choice, Logprob
from keras_transformer_serving.server.signatures import RequestError, Signature, text_of
from keras_transformer_serving.server.versions import Loaded, ServedModel, Version
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row, shown
from keras_transformer_serving.text.chat import Chat

NAME = "openai"
# The only value, besides null, of what the graphs of an export cannot do, and the reason.
_FIXED: dict[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "echo": False,
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "function_call": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
}
# Fields that do not change an answer.
_UNUSED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "parallel_tool_calls",
)
_GENERATION = (
    "model",
    "n",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
)
_MOST_STOPS = 4
_MOST_CHOICES = 128


def error_document(error: RequestError) -> Json:
    """Return the JSON value of an error."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        error.status, "invalid_request_error" if error.status < 500 else "server_error"
    )
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def model_keys(model: ServedModel) -> Json:
    """Return OpenAI's description of a model."""
    created = int(model.current.created) if model.current else 0
    return {"id": model.name, "object": "model", "created": created, "owned_by": "keras-transformer-serve"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a generation, in the terms of the graphs.

    Attributes:
        options: the options of "generate".
        limit: the maximum number of new tokens.
        count: the number of choices for each prompt.
        stops: the stop strings.
        top: the number of the most probable tokens for each token; None for no log-probabilities.
        streams: whether the answer is streamed.
        usage: whether a stream ends with the numbers of tokens.
    """

    options: Row
    limit: int
    count: int
    stops: tuple[str, ...]
    top: int | None
    streams: bool
    usage: bool


class Form(abc.ABC):
    """The form of requests and answers, of completions or of chat completions.

    Attributes:
        fields: the fields of a request, besides those of `_GENERATION`.
        prefix: the beginning of an answer's id.
        whole: the type of an answer.
        part: the type of an event.
        most_top: the maximum number of the most probable tokens.
    """

    fields: tuple[str, ...]
    prefix: str
    whole: str
    part: str
    most_top: int

    @abc.abstractmethod
    def prompts(self, document: Json, pipeline: Generating) -> list[Any]:
        """Return the prompts of a request, as `Generating.encode` takes them."""

    @abc.abstractmethod
    def top(self, document: Json) -> int | None:
        """Return the number of the most probable tokens that a request asks for; None for no log-probabilities."""

    @abc.abstractmethod
    def choice(self, text: str, logprobs: list[Logprob] | None) -> Json:
        """Return the text and the log-probabilities of an answer."""

    @abc.abstractmethod
    def delta(self, text: str, logprobs: list[Logprob] | None, offset: int, is_first: bool) -> Json:
        """Return the text and the log-probabilities of an event; `offset` is the length of the text before."""


class Completions(Form):
    """Completions of prompts: the form of `/v1/completions`."""

    fields = ("prompt", "best_of")
    prefix, whole, part = "cmpl-", "text_completion", "text_completion"
    most_top = 5

    def prompts(self, document: Json, pipeline: Generating) -> list[Any]:
        """Return the prompts: strings, or lists of token ids."""
        prompt = document.get("prompt")
        if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _are_ids(prompt)):
            return [prompt]
        if (
            isinstance(prompt, list)
            and prompt
            and all(isinstance(each, str) or _are_ids(each) for each in prompt)
        ):
            return prompt
        expected = "a string, a list of token ids, or a list of these"
        raise RequestError(400, f"`prompt` must be {expected}. Received: {shown(prompt)}", param="prompt")

    def top(self, document: Json) -> int | None:
        """Return "logprobs"."""
        return _integer(document, "logprobs", 0, self.most_top)

    def choice(self, text: str, logprobs: list[Logprob] | None) -> Json:
        """Return the text and the log-probabilities of an answer."""
        return {"text": text, "logprobs": self._logprobs(logprobs, 0)}

    def delta(self, text: str, logprobs: list[Logprob] | None, offset: int, is_first: bool) -> Json:
        """Return the text and the log-probabilities of an event."""
        return {"text": text, "logprobs": self._logprobs(logprobs, offset)}

    def _logprobs(self, logprobs: list[Logprob] | None, offset: int) -> Json | None:
        if logprobs is None:
            return None
        lengths = [len(logprob.text) for logprob in logprobs]
        return {
            "tokens": [logprob.text for logprob in logprobs],
            "token_logprobs": [logprob.logprob for logprob in logprobs],
            "top_logprobs": [{logprob.text: logprob.logprob, **dict(logprob.top)} for logprob in logprobs],
            "text_offset": [offset + sum(lengths[:index]) for index in range(len(lengths))],
        }


class ChatCompletions(Form):
    """Answers to conversations: the form of `/v1/chat/completions`."""

    fields = ("messages", "max_completion_tokens", "top_logprobs")
    prefix, whole, part = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    most_top = 20

    def prompts(self, document: Json, pipeline: Generating) -> list[Any]:
        """Return the conversation."""
        if not isinstance(pipeline, Chat) or pipeline.chat_template is None:
            raise RequestError(
                400, "`model` must be one with a chat template. Received: one without", param="model"
            )
        messages = document.get("messages")
        if not (messages and isinstance(messages, list) and all(isinstance(each, dict) for each in messages)):
            expected = 'a list of messages such as {"role": "user", "content": "Hello"}'
            raise RequestError(
                400, f"`messages` must be {expected}. Received: {shown(messages)}", param="messages"
            )
        return [[_message(message, index) for index, message in enumerate(messages)]]

    def top(self, document: Json) -> int | None:
        """Return "top_logprobs", if "logprobs" is true."""
        top = _integer(document, "top_logprobs", 0, self.most_top)
        wanted = _boolean(document, "logprobs")
        if top is not None and not wanted:
            raise RequestError(
                400, "`top_logprobs` needs `logprobs` true. Received: logprobs=false", param="top_logprobs"
            )
        return (top or 0) if wanted else None

    def choice(self, text: str, logprobs: list[Logprob] | None) -> Json:
        """Return the message and the log-probabilities of an answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(logprobs)}

    def delta(self, text: str, logprobs: list[Logprob] | None, offset: int, is_first: bool) -> Json:
        """Return the text and the log-probabilities of an event, the first with the role."""
        delta = {"role": "assistant"} if is_first else {}
        if text or is_first:
            delta["content"] = text
        return {"delta": delta, "logprobs": self._logprobs(logprobs)}

    def _logprobs(self, logprobs: list[Logprob] | None) -> Json | None:
        def entry(text: str, logprob: float) -> Json:
            return {"token": text, "logprob": logprob, "bytes": [*text.encode(errors="replace")]}

        if logprobs is None:
            return None
        content = [
            {**entry(each.text, each.logprob), "top_logprobs": [entry(*top) for top in each.top]}
            for each in logprobs
        ]
        return {"content": content, "refusal": None}


def _are_ids(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _message(message: Json, index: int) -> Json:
    """Return a message whose content is a string; parts of text are joined."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        raise RequestError(
            400,
            f"`messages[{index}].content` must be a string or parts of the type text. Received: {shown(content)}",
            param="messages",
        )
    return {**message, "content": "".join(part["text"] for part in content)}


def _number(document: Json, name: str, low: float, high: float) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise RequestError(400, f"`{name}` must be in [{low}, {high}]. Received: {shown(value)}", param=name)
    return value


def _integer(document: Json, name: str, low: int, high: int) -> int | None:
    value = _number(document, name, low, high)
    if value is not None and not isinstance(value, int):
        raise RequestError(400, f"`{name}` must be an integer. Received: {shown(value)}", param=name)
    return value


def _boolean(document: Json, name: str) -> bool:
    value = document.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(400, f"`{name}` must be true or false. Received: {shown(value)}", param=name)
    return bool(value)


def _check_fields(document: Json, known: Sequence[str]) -> None:
    """Raise a RequestError for a field that is unknown, or asks for what the graphs cannot do."""
    for name, value in document.items():
        if name in _FIXED:
            if value is not None and value != _FIXED[name]:
                only = json.dumps(_FIXED[name])
                raise RequestError(
                    400,
                    f"`{name}` must be {only}, as the model's graph has no such option. Received: {shown(value)}",
                    param=name,
                    code="unsupported_parameter",
                )
        elif name not in known and name not in _UNUSED:
            fields = ", ".join((*known, *_UNUSED))
            raise RequestError(
                400,
                f"The fields of a request must be of {fields}. Received: {shown(name)}",
                param=name if len(name) < 80 else None,
                code="unknown_parameter",
            )


def _settings(document: Json, form: Form, pipeline: Generating) -> Settings:
    """Return the settings of a request.

    Raises:
        RequestError: if one is wrong, or the export's graph has no such option.
    """
    sampler, options = pipeline.engine.sampler, Row()
    samples = sampler["sampler"] == "sample"
    low, high = map(int, pipeline.ranges(pipeline.config)["max_new_tokens"])
    limits = [_integer(document, name, low, high) for name in ("max_tokens", "max_completion_tokens")]
    options["max_new_tokens"] = limit = next((each for each in limits if each is not None), high)
    temperature = _number(document, "temperature", 0, 2)
    if temperature is not None and samples:
        options["temperature"] = max(float(temperature), TEMPERATURES[0])
    elif temperature:
        _refuse("temperature", "0", temperature, sampler)
    top_p = _number(document, "top_p", 0, 1)
    if samples and top_p not in (None, sampler.get("top_p", 1.0)):
        _refuse("top_p", str(sampler.get("top_p", 1.0)), top_p, sampler)
    seed = _integer(document, "seed", -(2**63), 2**64)
    if seed is not None and samples:
        options["seed"] = seed % 2**32
    count = _integer(document, "n", 1, _MOST_CHOICES) or 1
    if count > 1 and not samples:
        _refuse("n", "1", count, sampler)
    best_of = document.get("best_of")
    if best_of not in (None, count):
        _refuse("best_of", str(count), best_of, sampler)
    stop = document.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    valid = isinstance(stops, list) and len(stops) <= _MOST_STOPS
    if not valid or not all(isinstance(each, str) and each for each in stops):
        expected = f"a string, or a list of at most {_MOST_STOPS} strings, which are not empty"
        raise RequestError(400, f"`stop` must be {expected}. Received: {shown(stop)}", param="stop")
    streams, stream_options = _boolean(document, "stream"), document.get("stream_options")
    if stream_options is not None and not (isinstance(stream_options, dict) and streams):
        raise RequestError(
            400,
            f"`stream_options` must be an object beside `stream` true. Received: {shown(stream_options)}",
            param="stream_options",
        )
    usage = _boolean(stream_options or {}, "include_usage")
    return Settings(options, limit, count, tuple(stops), form.top(document), streams, usage)


def _refuse(name: str, only: str, value: Any, sampler: Mapping[str, Any]) -> None:
    raise RequestError(
        400,
        f"`{name}` must be {only}, as the model's graph generates with the sampler {sampler['sampler']!r}. "
        f"Received: {shown(value)}",
        param=name,
        code="unsupported_parameter",
    )


async def _generate(form: Form, server: Server, request: Request) -> Response:
    """Answer a request to generate texts."""
    document, size = await server.document(request)
    model = server.find(document.get("model"))
    _check_fields(document, (*_GENERATION, *form.fields))
    with contextlib.ExitStack() as stack:
        version, loaded, batcher = stack.enter_context(model.use())
        pipeline = loaded.pipeline
        if not isinstance(pipeline, Generating) or pipeline.tokenizer is None:
            raise RequestError(
                400, f"`model` must be one that generates texts. Received: {model.name}", param="model"
            )
        settings = _settings(document, form, pipeline)
        prompts = form.prompts(document, pipeline)
        rows = len(prompts) * settings.count
        if rows > server.limits.max_rows:
            raise RequestError(
                400, f"A request must have at most {server.limits.max_rows} choices. Received: {rows}"
            )
        batcher.check_space(rows)
        try:
            encode = functools.partial(_encoded, form, pipeline, prompts, server.limits.max_characters)
            ids = await requests.in_thread(encode, size, server.limits.timeout)
        except TimeoutError:
            raise RequestError(
                504, f"The request must be computed within {server.limits.timeout:g} s"
            ) from None
        answer = _Answer(form, model, version, pipeline, loaded, settings, ids)
        if settings.streams or settings.top is not None:
            reason = generating.streams(pipeline)
            if reason:
                name = "stream" if settings.streams else "logprobs"
                raise RequestError(400, f"`{name}` needs {reason}", param=name, code="unsupported_parameter")
            first = server.metrics.first_token_seconds.labels(model.name)
            stepper = streaming.Stepper(batcher, server.limits, stack, first)
            if settings.streams:
                return streaming.EventStream(answer.events(stepper), stack.pop_all(), server.limits)
            return encoded_response(requests.encode(await answer.by_steps(stepper)))
        content = await requests.compute(
            request, size, answer.rows, answer.respond, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


def _encoded(form: Form, pipeline: Generating, prompts: list[Any], max_characters: int) -> list[list[int]]:
    """Return the token ids of prompts."""
    field = form.fields[0]
    sizes = [
        len(each) if isinstance(each, str) else len(str(each)) if field == "messages" else 0
        for each in prompts
    ]
    if max(sizes) > max_characters:
        message = f"`{field}` must have at most {max_characters} characters. Received: {max(sizes)}"
        raise RequestError(400, message, param=field, code="context_length_exceeded")
    try:
        return pipeline.encode(prompts)
    except ImportError as error:
        raise RequestError(501, str(error)) from None
    except (TypeError, ValueError) as error:
        raise RequestError(400, str(error).replace("`texts`", f"`{field}`"), param=field) from None


class _Answer:
    """The answer to a request to generate texts.

    Args:
        form: its form.
        model: the model.
        version: its version.
        pipeline: the pipeline.
        loaded: the version in memory.
        settings: the settings of the generation.
        prompts: the token ids of each prompt.
    """

    def __init__(
        self,
        form: Form,
        model: ServedModel,
        version: Version,
        pipeline: Generating,
        loaded: Loaded,
        settings: Settings,
        prompts: list[list[int]],
    ) -> None:
        self._form, self._model, self._pipeline, self._settings = form, model, pipeline, settings
        self._prompts = [ids for ids in prompts for _ in range(settings.count)]
        self._num_prompt_tokens = sum(map(len, prompts))
        self._signature = loaded.signatures["generate"]
        self._head = {
            "id": form.prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": f"version-{version.number}",
        }

    def rows(self) -> tuple[str, list[Row], None]:
        """Return the signature and the rows of the prompts."""
        defaults = {each.name: each.default for each in self._signature.inputs if each.default is not None}
        options = {**defaults, **self._settings.options}
        return "generate", [{**options, "input_ids": ids} for ids in self._prompts], None

    def respond(self, signature: Signature, outputs: Mapping[str, np.ndarray], _: None) -> Json:
        """Return the answer for the outputs of the loop."""
        for error in outputs[ERROR]:
            if error:
                raise RequestError(400, str(error), param=self._form.fields[0])
        choices = []
        for ids, lengths in zip(outputs["ids"], outputs["lengths"], strict=True):
            best, length = np.atleast_2d(ids)[0], np.atleast_1d(lengths)[0]
            choice = self._choice(Token(int(id_)) for id_ in best[:length])
            choices.append((choice, [*choice]))
        return self._whole(choices)

    async def by_steps(self, stepper: streaming.Stepper) -> Json:
        """Return the answer, generated token by token."""
        choices = []
        for index in range(len(self._prompts)):
            choice = self._choice(self._tokens(index))
            choices.append((choice, [piece async for piece in stepper.items(iter(choice))]))
        return self._whole(choices)

    async def events(self, stepper: streaming.Stepper) -> AsyncIterator[str]:
        """Yield the server-sent events of the answer."""
        count = 0
        try:
            for index in range(len(self._prompts)):
                choice, offset, is_first = self._choice(self._tokens(index)), 0, True
                async for text, logprob in stepper.items(iter(choice)):
                    if not (text or logprob or is_first):
                        continue
                    logprobs = None if self._settings.top is None else [logprob] if logprob else []
                    delta = self._form.delta(text, logprobs, offset, is_first)
                    yield self._event([{"index": index, **delta, "finish_reason": None}])
                    offset, is_first = offset + len(text), False
                last = {"index": index, **self._form.delta("", None, offset, False)}
                yield self._event([{**last, "finish_reason": choice.finish_reason}])
                count += choice.num_tokens
            if self._settings.usage:
                yield self._event([], self._usage(count))
        except RequestError as error:
            yield streaming.event(json.dumps(error_document(error)))
        yield streaming.event("[DONE]")

    def _choice(self, tokens: Iterable[Token]) -> Choice:
        settings = self._settings
        return Choice(self._pipeline, tokens, settings.stops, settings.limit, settings.top)

    def _tokens(self, index: int) -> Iterator[Token]:
        _, rows, _ = self.rows()
        source = generating.source_of(self._pipeline, self._prompts[index], rows[index], index)
        return self._pipeline.engine.tokens(source)

    def _whole(self, choices: Sequence[tuple[Choice, list[tuple[str, Logprob | None]]]]) -> Json:
        found = []
        for index, (choice, pieces) in enumerate(choices):
            text = "".join(piece for piece, _ in pieces)
            logprobs = (
                [logprob for _, logprob in pieces if logprob] if self._settings.top is not None else None
            )
            content = self._form.choice(text, logprobs)
            found.append({"index": index, **content, "finish_reason": choice.finish_reason})
        usage = self._usage(sum(choice.num_tokens for choice, _ in choices))
        return {**self._head, "object": self._form.whole, "choices": found, "usage": usage}

    def _event(self, choices: list[Json], usage: Json | None = None) -> str:
        document = {**self._head, "object": self._form.part, "choices": choices}
        return streaming.event(json.dumps({**document, "usage": usage} if self._settings.usage else document))

    def _usage(self, count: int) -> Json:
        prompt = self._num_prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


async def _embeddings(server: Server, request: Request) -> Response:
    """Answer a request for the vectors of texts."""
    document, size = await server.document(request)
    model = server.find(document.get("model"))
    _check_fields(document, ("model", "input", "encoding_format", "dimensions"))
    encoding = document.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise RequestError(
            400,
            f"`encoding_format` must be float or base64. Received: {shown(encoding)}",
            param="encoding_format",
        )
    with model.use() as (_, loaded, batcher):
        pipeline = loaded.pipeline
        if not isinstance(pipeline, Embedding):
            raise RequestError(
                400, f"`model` must be one of embeddings. Received: {model.name}", param="model"
            )
        size_of_vectors = pipeline.config["model_dim"]
        if document.get("dimensions") not in (None, size_of_vectors):
            raise RequestError(
                400,
                f"`dimensions` must be {size_of_vectors}. Received: {shown(document['dimensions'])}",
                param="dimensions",
                code="unsupported_parameter",
            )
        given = document.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError(
                400,
                f"`input` must be a string or a list of strings, not token ids. Received: {shown(given)}",
                param="input",
            )

        def rows() -> tuple[str, list[Row], int]:
            count = sum(len(pipeline.tokenizer.tokenize(_valid(text))) for text in texts)
            return DEFAULT, [{"text": text} for text in texts], count

        def respond(_: Signature, outputs: Mapping[str, np.ndarray], count: int) -> Json:
            for index, error in enumerate(outputs[ERROR]):
                if error:
                    raise RequestError(400, f"{error} in input[{index}]", param="input")
            vectors = outputs["embedding"]
            data = [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": vector.tolist()
                    if encoding == "float"
                    else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
                }
                for index, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": count, "total_tokens": count}
            return {"object": "list", "data": data, "model": model.name, "usage": usage}

        content = await requests.compute(
            request, size, rows, respond, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


def _valid(text: str) -> str:
    try:
        return text_of({"input": text}, "input")
    except InvalidInputError as error:
        raise RequestError(400, str(error), param="input") from None


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of models of each kind."""
    pipelines = server.pipelines()
    string, integer, number = ({"type": kind} for kind in ("string", "integer", "number"))
    options = {
        "max_tokens": integer,
        "temperature": number,
        "top_p": number,
        "seed": integer,
        "n": integer,
        "stop": {"anyOf": [string, {"type": "array", "items": string, "maxItems": _MOST_STOPS}]},
        "stream": {"type": "boolean"},
    }
    texts = {"anyOf": [string, {"type": "array", "items": string}]}
    messages = {"type": "array", "items": {"type": "object"}, "minItems": 1}
    generates = [name for name, each in pipelines.items() if isinstance(each, Generating) and each.tokenizer]
    chats = [name for name in generates if getattr(pipelines[name], "chat_template", None)]
    embeds = [name for name, each in pipelines.items() if isinstance(each, Embedding)]
    paths: Json = {}
    for path, summary, names, field, schema, others in (
        ("completions", "Continue prompts", generates, "prompt", texts, options),
        ("chat/completions", "Continue a conversation", chats, "messages", messages, options),
        (
            "embeddings",
            "Embed texts",
            embeds,
            "input",
            texts,
            {"encoding_format": {"enum": ["float", "base64"]}},
        ),
    ):
        if names:
            body = {
                "type": "object",
                "properties": {"model": {"enum": names}, field: schema, **others},
                "required": ["model", field],
            }
            operation = openapi.operation(f"{summary} (OpenAI)", {"type": "object"}, body, api=NAME)
            paths[f"/v1/{path}"] = {"post": operation}
    return paths


_text_or_null: Json = {"type": ["string", "null"]}
API = Api(
    NAME,
    (
        ("POST", "/v1/completions", functools.partial(_generate, Completions())),
        ("POST", "/v1/chat/completions", functools.partial(_generate, ChatCompletions())),
        ("POST", "/v1/embeddings", _embeddings),
    ),
    _paths,
    error_document,
    {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": _text_or_null,
                    "code": _text_or_null,
                },
                "required": ["message", "type"],
            }
        },
        "required": ["error"],
    },
    model_keys,
)
