"""The forms of requests and answers of OpenAI's protocol: completions and chat completions."""

import abc
from typing import Any, ClassVar

from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.server import fields
from keras_transformer_serving.server.api import Json, Server
from keras_transformer_serving.server.choices import Logprob, TokenLogprob
from keras_transformer_serving.server.fields import Field, Kind, integer, one_or_list
from keras_transformer_serving.server.signatures import RequestError
from keras_transformer_serving.server.versions import ServedModel
from keras_transformer_serving.tasks import shown

# Fields that do not change an answer.
UNUSED = tuple(
    Field(name, fields.ANYTHING)
    for name in (
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
)
MOST_CHOICES = 128
_TOKENS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_LOGPROB: Json = {
    "token": fields.TEXT,
    "logprob": fields.NUMBER,
    "bytes": {"anyOf": [fields.list_of(fields.COUNT), fields.NULL]},
}


def _are_ids(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _message(index: int, message: Json) -> Json:
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


_MESSAGE: Json = {
    "role": fields.TEXT,
    "content": {
        "anyOf": [fields.TEXT, fields.list_of(fields.object_of({"text": fields.TEXT}, ["text"]))],
    },
}
_PROMPT = Kind(
    "",
    {"type": ["string", "array"], "items": {"type": "integer"}, "minItems": 1},
    lambda value: isinstance(value, str) or (value != [] and _are_ids(value)),
)
_MESSAGES = Kind(
    'a list of messages such as {"role": "user", "content": "Hello"}',
    {"type": "array", "items": fields.object_of(_MESSAGE, _MESSAGE), "minItems": 1},
    lambda value: value != [] and isinstance(value, list) and all(isinstance(each, dict) for each in value),
    lambda value: [[_message(*each) for each in enumerate(value)]],
)


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, fields.NULL]}


class Form(abc.ABC):
    """The form of requests and answers, of completions or of chat completions.

    Attributes:
        path: the path of the route.
        summary: what the route does.
        content: the JSON Schemas of the content of a choice, by name.
        models: the models that it has, for errors.
        prompt: the name of the field with the prompts.
        table: the fields that only this form has.
        prefix: the beginning of an answer's id.
        whole: the type of an answer.
        part: the type of an event.
    """

    path: str
    summary: str
    content: ClassVar[Json]
    models: str
    prompt: str
    table: tuple[Field, ...]
    prefix: str
    whole: str
    part: str

    def has(self, pipeline: Any) -> bool:
        """Return whether a pipeline answers requests of this form."""
        return isinstance(pipeline, Generating) and pipeline.tokenizer is not None

    def top(self, values: Json) -> int | None:
        """Return the number of the most probable tokens that a request asks for; None for no log-probabilities."""
        top: int | None = values["logprobs"]
        return top

    @abc.abstractmethod
    def choice(self, text: str, logprobs: list[Logprob] | None) -> Json:
        """Return the text and the log-probabilities of an answer."""

    @abc.abstractmethod
    def delta(self, text: str, logprobs: list[Logprob] | None, is_first: bool) -> Json:
        """Return the text and the log-probabilities of an event."""


class Completions(Form):
    """Completions of prompts: the form of `/v1/completions`."""

    path, summary = "completions", "Continue prompts"
    content: ClassVar[Json] = {
        "text": fields.TEXT,
        "logprobs": _nullable(fields.exact_object(dict.fromkeys(_TOKENS, fields.LIST.schema))),
    }
    models, prompt = "one that generates texts", "prompt"
    prefix, whole, part = "cmpl-", "text_completion", "text_completion"
    table = (
        Field(
            "prompt", one_or_list(_PROMPT, "a string, a list of token ids, or a list of these"), required=True
        ),
        Field("best_of", integer(1, MOST_CHOICES)),
        Field("logprobs", integer(0, 5)),
    )

    def choice(self, text: str, logprobs: list[Logprob] | None) -> Json:
        """Return the text and the log-probabilities of an answer."""
        return {"text": text, "logprobs": self._logprobs(logprobs)}

    def delta(self, text: str, logprobs: list[Logprob] | None, is_first: bool) -> Json:
        """Return the text and the log-probabilities of an event."""
        return {"text": text, "logprobs": self._logprobs(logprobs)}

    def _logprobs(self, logprobs: list[Logprob] | None) -> Json | None:
        if logprobs is None:
            return None
        return {
            "tokens": [each.token.text for each in logprobs],
            "token_logprobs": [each.token.logprob for each in logprobs],
            "top_logprobs": [
                {token.text: token.logprob for token in (each.token, *each.top)} for each in logprobs
            ],
            "text_offset": [each.offset for each in logprobs],
        }


class ChatCompletions(Form):
    """Answers to conversations: the form of `/v1/chat/completions`."""

    path, summary = "chat/completions", "Continue a conversation"
    content: ClassVar[Json] = {
        "message": fields.exact_object(
            {"role": {"const": "assistant"}, "content": fields.TEXT, "refusal": fields.NULL}
        ),
        "logprobs": _nullable(
            fields.exact_object(
                {
                    "content": fields.list_of(
                        fields.exact_object(
                            {**_LOGPROB, "top_logprobs": fields.list_of(fields.exact_object(_LOGPROB))}
                        )
                    ),
                    "refusal": fields.NULL,
                }
            )
        ),
    }
    models, prompt = "one with a chat template", "messages"
    prefix, whole, part = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    table = (
        Field("messages", _MESSAGES, required=True),
        Field("logprobs", fields.BOOLEAN, False),
        Field("top_logprobs", integer(0, 20)),
    )

    def has(self, pipeline: Any) -> bool:
        """Return whether a pipeline has a chat template."""
        return super().has(pipeline) and getattr(pipeline, "chat_template", None) is not None

    def top(self, values: Json) -> int | None:
        """Return "top_logprobs", if "logprobs" is true."""
        top: int | None = values["top_logprobs"]
        if top is not None and not values["logprobs"]:
            raise RequestError(
                400, "`top_logprobs` needs `logprobs` true. Received: logprobs=false", param="top_logprobs"
            )
        return (top or 0) if values["logprobs"] else None

    def choice(self, text: str, logprobs: list[Logprob] | None) -> Json:
        """Return the message and the log-probabilities of an answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(logprobs)}

    def delta(self, text: str, logprobs: list[Logprob] | None, is_first: bool) -> Json:
        """Return the text and the log-probabilities of an event, the first with the role."""
        delta = {"role": "assistant"} if is_first else {}
        if text or is_first:
            delta["content"] = text
        return {"delta": delta, "logprobs": self._logprobs(logprobs)}

    def _logprobs(self, logprobs: list[Logprob] | None) -> Json | None:
        def entry(token: TokenLogprob) -> Json:
            content = None if token.content is None else [*token.content]
            return {"token": token.text, "logprob": token.logprob, "bytes": content}

        if logprobs is None:
            return None
        content = [
            {**entry(each.token), "top_logprobs": [entry(token) for token in each.top]} for each in logprobs
        ]
        return {"content": content, "refusal": None}


FORMS = (Completions(), ChatCompletions())


def model_of(server: Server, document: Json) -> ServedModel:
    """Return the model that a request names.

    Raises:
        RequestError: if it names none (400), or an unknown one (404).
    """
    if document.get("model") is None:
        raise fields.wrong("model", " or ".join(server.models), None)
    return server.find(document["model"])
