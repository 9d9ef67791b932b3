"""OpenAI's protocol: its routes, the generation of completions, and the models in `/v1/models`."""

import contextlib
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
from keras_transformer_serving.pipelines.embedding import Embedding
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.row_options import TEMPERATURES
from keras_transformer_serving.server import fields, generating, openapi, requests, streaming
from keras_transformer_serving.server.api import Api, Json, Server, encoded_response
from keras_transformer_serving.server.choices import Choice, Logprob
from keras_transformer_serving.server.fields import (
    Field,
    Kind,
    clamped,
    integer,
    number,
    one_of,
    one_or_list,
    record,
)
from keras_transformer_serving.server.openai_audio import TASKS, TEXT, audio, audio_fields, has_task
from keras_transformer_serving.server.openai_embeddings import VECTORS, embedding_fields, embeddings
from keras_transformer_serving.server.openai_forms import FORMS, MOST_CHOICES, UNUSED, Form, model_of
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.server.versions import Loaded, ServedModel, Version
from keras_transformer_serving.tasks import ERROR, Row, Tensor

NAME = "openai"
_OPENAI_OPTIONS = ("max_new_tokens", "temperature", "seed", "rows")  # `max_tokens`, and `n` for rows
# Fields of what the graphs of an export cannot do, with the only value that asks for nothing.
_REFUSED = tuple(
    Field(name, one_of(value, reason="as the model's graph has no such option"))
    for name, value in {
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
    }.items()
)
_STREAM_OPTIONS = record(
    "stream_options",
    (Field("include_usage", fields.BOOLEAN, False), Field("include_obfuscation", fields.ANYTHING)),
    "an object beside `stream` true",
)
_STOP = Kind("", {"type": "string", "minLength": 1}, lambda value: isinstance(value, str) and value != "")
_STOPS = one_or_list(_STOP, "a string, or a list of at most 4 strings, which are not empty", least=0, most=4)


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


_USAGE = fields.exact_object(
    dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), fields.COUNT)
)


def _answer_schema(form: Form) -> Json:
    """Return the JSON Schema of answers that are not streamed."""
    reason = {"enum": ["stop", "length"]}
    choices = fields.exact_object({"index": fields.COUNT, **form.content, "finish_reason": reason})
    return fields.exact_object(
        {
            **dict.fromkeys(("id", "model", "system_fingerprint"), fields.TEXT),
            "created": fields.COUNT,
            "object": {"const": form.whole},
            "choices": fields.list_of(choices),
            "usage": _USAGE,
        }
    )


def _generation_fields(form: Form, name: str, pipeline: Generating) -> tuple[Field, ...]:
    """Return the fields of a request to generate with a model, within the limits of its export."""
    sampler = pipeline.engine.sampler
    low, high = map(int, pipeline.row_options["max_new_tokens"].range)
    reason = f"as the model's graph generates with the sampler {sampler['sampler']!r}"
    only = functools.partial(one_of, reason=reason)
    if sampler["sampler"] == "sample":
        temperature, top_p, count = number(0, 2), only(sampler.get("top_p", 1.0)), integer(1, MOST_CHOICES)
    else:
        temperature, top_p, count = only(0), number(0, 1), only(1)
    return (
        Field("model", one_of(name), required=True),
        *form.table,
        Field("n", count, 1),
        Field("max_tokens", clamped(low, high), high),
        Field("max_completion_tokens", clamped(low, high)),
        Field("temperature", temperature),
        Field("top_p", top_p),
        Field("seed", integer(-(2**63), 2**64)),
        Field("stop", _STOPS, []),
        Field("stream", fields.BOOLEAN, False),
        Field("stream_options", _STREAM_OPTIONS),
        *(Field(option.name, _kind(option)) for option in _other_options(pipeline)),
        *_REFUSED,
        *UNUSED,
    )


def _other_options(pipeline: Generating) -> list[Tensor]:
    """Return the options of a row for which OpenAI has no field."""
    return [option for name, option in pipeline.row_options.items() if name not in _OPENAI_OPTIONS]


def _kind(option: Tensor) -> Kind:
    """Return the values of an option."""
    low, high = option.range
    return number(low, high) if option.dtype == "float32" else integer(int(low), int(high))


def _options(values: Json, pipeline: Generating) -> Row:
    """Return the options of "generate" that a request asks for."""
    if values.get("best_of") not in (None, values["n"]):
        raise fields.wrong("best_of", f"{values['n']}, as `n`", values["best_of"], fields.UNSUPPORTED)
    if values["stream_options"] and not values["stream"]:
        raise fields.wrong("stream_options", _STREAM_OPTIONS.expected, values["stream_options"])
    others = {option.name: values[option.name] for option in _other_options(pipeline)}
    options = Row(max_new_tokens=values["max_completion_tokens"] or values["max_tokens"], **others)
    if "temperature" in pipeline.row_options and values["temperature"] is not None:
        options["temperature"] = max(float(values["temperature"]), TEMPERATURES[0])
    if "seed" in pipeline.row_options and values["seed"] is not None:
        options["seed"] = values["seed"] % 2**32
    return {name: value for name, value in options.items() if value is not None}


async def _generate(form: Form, server: Server, request: Request) -> Response:
    """Answer a request to generate texts."""
    document, size = await server.document(request)
    model = model_of(server, document)
    with contextlib.ExitStack() as stack:
        version, loaded, batcher = stack.enter_context(model.use())
        pipeline = loaded.pipeline
        if not form.has(pipeline):
            raise fields.wrong("model", form.models, model.name)
        values = fields.read(document, _generation_fields(form, model.name, pipeline))
        options, prompts, top = _options(values, pipeline), values[form.prompt], form.top(values)
        rows = len(prompts) * values["n"]
        if rows > server.limits.max_rows:
            raise RequestError(
                400, f"A request must have at most {server.limits.max_rows} choices. Received: {rows}"
            )
        batcher.check_space(rows)
        encode = functools.partial(_encoded, form, pipeline, prompts, server.limits.max_characters)
        ids = await requests.in_time("computed", encode, size, server.limits)
        answer = _Answer(form, model, version, loaded, values, options, ids)
        if values["stream"] or top is not None:
            reason, name = generating.streams(pipeline), "stream" if values["stream"] else "logprobs"
            if not reason and top is not None:
                reason, name = pipeline.engine.needed_to_give_logits, "logprobs"
            if reason:
                raise RequestError(400, f"`{name}` needs {reason}", param=name, code="unsupported_parameter")
            first = server.metrics.first_token_seconds.labels(model.name)
            stepper = streaming.Stepper(batcher, server.limits, stack, first)
            if values["stream"]:
                return streaming.EventStream(answer.events(stepper), stack.pop_all(), server.limits)
            return encoded_response(requests.encode(await answer.by_steps(stepper)))
        content = await requests.compute(
            request, size, answer.rows, answer.respond, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


def _encoded(form: Form, pipeline: Generating, prompts: list[Any], max_characters: int) -> list[list[int]]:
    """Return the token ids of prompts."""
    field = form.prompt
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
        loaded: the version in memory.
        values: the values of the fields of the request.
        options: the options of "generate".
        prompts: the token ids of each prompt.
    """

    def __init__(
        self,
        form: Form,
        model: ServedModel,
        version: Version,
        loaded: Loaded,
        values: Json,
        options: Row,
        prompts: list[list[int]],
    ) -> None:
        self._form, self._model, self._options = form, model, options
        self._pipeline: Generating = loaded.pipeline
        self._stops, self._top = values["stop"], form.top(values)
        self._shows_usage = bool(values["stream_options"] and values["stream_options"]["include_usage"])
        self._prompts = [ids for ids in prompts for _ in range(values["n"])]
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
        options = {**defaults, **self._options}
        return "generate", [{**options, "input_ids": ids} for ids in self._prompts], None

    def respond(self, signature: Signature, outputs: Mapping[str, np.ndarray], _: None) -> Json:
        """Return the answer for the outputs of the loop."""
        for error in outputs[ERROR]:
            if error:
                raise RequestError(400, str(error), param=self._form.prompt)
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
            choices.append((choice, [piece async for piece in stepper.items(iter(choice), together=True)]))
        return self._whole(choices)

    async def events(self, stepper: streaming.Stepper) -> AsyncIterator[str]:
        """Yield the server-sent events of the answer."""
        count = 0
        try:
            for index in range(len(self._prompts)):
                choice, is_first = self._choice(self._tokens(index)), True
                async for text, logprobs in stepper.items(iter(choice)):
                    if not (text or logprobs or is_first):
                        continue
                    delta = self._form.delta(text, None if self._top is None else logprobs, is_first)
                    yield self._event([{"index": index, **delta, "finish_reason": None}])
                    is_first = False
                last = {"index": index, **self._form.delta("", None, False)}
                yield self._event([{**last, "finish_reason": choice.finish_reason}])
                count += choice.num_tokens
            if self._shows_usage:
                yield self._event([], self._usage(count))
        except RequestError as error:
            yield streaming.event(json.dumps(error_document(error)))
        yield streaming.event("[DONE]")

    def _choice(self, tokens: Iterable[Token]) -> Choice:
        limit = self._options["max_new_tokens"]
        return Choice(self._pipeline, tokens, self._stops, limit, self._top)

    def _tokens(self, index: int) -> Iterator[Token]:
        _, rows, _ = self.rows()
        source = generating.source_of(self._pipeline, self._prompts[index], rows[index], index)
        yield from self._pipeline.engine.tokens(source)

    def _whole(self, choices: Sequence[tuple[Choice, list[tuple[str, list[Logprob]]]]]) -> Json:
        found = []
        for index, (choice, pieces) in enumerate(choices):
            text = "".join(piece for piece, _ in pieces)
            logprobs = [each for _, logprobs in pieces for each in logprobs]
            content = self._form.choice(text, None if self._top is None else logprobs)
            found.append({"index": index, **content, "finish_reason": choice.finish_reason})
        usage = self._usage(sum(choice.num_tokens for choice, _ in choices))
        return {**self._head, "object": self._form.whole, "choices": found, "usage": usage}

    def _event(self, choices: list[Json], usage: Json | None = None) -> str:
        document = {**self._head, "object": self._form.part, "choices": choices}
        return streaming.event(json.dumps({**document, "usage": usage} if self._shows_usage else document))

    def _usage(self, count: int) -> Json:
        prompt = self._num_prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of models of each kind."""
    pipelines = server.pipelines().items()
    paths: Json = {}

    def describe(path: str, summary: str, tables: list[Any], answer: Json, **options: Any) -> None:
        if tables:
            body, summary = fields.schema(tables), f"{summary} (OpenAI)"
            paths[path] = {"post": openapi.operation(summary, answer, body, api=NAME, **options)}

    for form in FORMS:
        tables = [_generation_fields(form, *each) for each in pipelines if form.has(each[1])]
        describe(f"/v1/{form.path}", form.summary, tables, _answer_schema(form), other="text/event-stream")
    vectors = [each for each in pipelines if isinstance(each[1], Embedding)]
    embeddings = [embedding_fields(*each, len(vectors) == 1) for each in vectors]
    describe("/v1/embeddings", "Embed texts", embeddings, VECTORS)
    for route, task in TASKS.items():
        tables = [audio_fields(task, *each) for each in pipelines if has_task(each[1], task)]
        summary, options = f"{task.capitalize()} speech", {"other": "text/plain", "has_file": True}
        describe(f"/v1/audio/{route}", summary, tables, TEXT, **options)
    return paths


_ERROR = fields.object_of(
    {
        "message": {"type": "string"},
        "type": {"type": "string"},
        **{name: {"type": ["string", "null"]} for name in ("param", "code")},
    },
    ["message", "type"],
)
API = Api(
    NAME,
    (
        *(("POST", f"/v1/{form.path}", functools.partial(_generate, form)) for form in FORMS),
        ("POST", "/v1/embeddings", embeddings),
        *(("POST", f"/v1/audio/{route}", functools.partial(audio, route)) for route in TASKS),
    ),
    _paths,
    error_document,
    fields.object_of({"error": _ERROR}, ["error"]),
    model_keys,
    errors_at=("/v1/models", "/v1/models/{name}"),
    errors_below="/v1/",
)
