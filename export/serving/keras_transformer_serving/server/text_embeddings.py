"""The protocol of text-embeddings-inference: embed, rerank, similarity, tokenize."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import keras_transformer_serving as serving
from keras_transformer_serving.pipelines.embedding import EMBED, Embedding
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.reranking import Reranking
from keras_transformer_serving.server import openapi, requests
from keras_transformer_serving.server.api import Api, Json, Server, encoded_response, json_response
from keras_transformer_serving.server.signatures import (
    TRUNCATE,
    RequestError,
    Signature,
    check_truncate,
    text_of,
)
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row, shown

NAME = "tei"
_LIMIT = 2.0**-25  # below the distance of float32 probabilities to 1


def error_document(error: RequestError) -> Json:
    """Return the JSON value of an error."""
    types = {429: "overloaded", 503: "unhealthy"}
    return {
        "error": str(error),
        "error_type": types.get(error.status, "validation" if error.status < 500 else "backend"),
    }


class _Fields:
    """The fields of a request, each of which is read, or refused by name.

    Args:
        document: the request.
        fixed: the only value, besides null, of fields that have no effect here.
    """

    def __init__(self, document: Json, **fixed: Any) -> None:
        self._document = dict(document)
        for name, value in fixed.items():
            given = self._document.pop(name, None)
            is_equal = (
                given.lower() == value
                if isinstance(given, str) and isinstance(value, str)
                else given == value
            )
            if given is not None and not is_equal:
                raise RequestError(400, f"`{name}` must be {value}. Received: {shown(given)}")

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field, the default for null."""
        value = self._document.pop(name, None)
        return default if value is None else value

    def boolean(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise RequestError(400, f"`{name}` must be true or false. Received: {shown(value)}")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        """Return a field that is a string."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise RequestError(400, f"`{name}` must be a string. Received: {shown(value)}")
        return value

    def strings(self, name: str) -> list[str]:
        """Return a field that is a list of strings, or one string."""
        value = self.take(name)
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError(
                400, f"`{name}` must be a string or a list of strings. Received: {shown(value)}"
            )
        return texts

    def truncate(self) -> Row:
        """Return the entries of a row that say whether its text is truncated."""
        truncate = self.take(TRUNCATE, False)
        check_truncate(truncate)
        return {TRUNCATE: True} if truncate else {}

    def end(self) -> None:
        """Raise a RequestError if a field is left, which is unknown."""
        if self._document:
            raise RequestError(
                400, f"The request must not have the field {shown(next(iter(self._document)))}"
            )


async def _compute(
    server: Server,
    request: Request,
    size: int,
    pipeline_class: type,
    model_name: Any,
    parse: Callable[[Any], tuple[str, list[Row]]],
    respond: Callable[[Any, Mapping[str, np.ndarray]], Any],
) -> Response:
    """Return the answer of the model of a class of pipelines.

    Args:
        server: the server.
        request: the request.
        size: the size of its body.
        pipeline_class: the class.
        model_name: the name of the model, None if there is one of the class.
        parse: a function from the pipeline to the name of a signature and the rows.
        respond: a function from the pipeline and the outputs, by name, to the JSON value.
    """
    model = server.choose(pipeline_class, model_name)
    with model.use() as (_, loaded, batcher):
        pipeline = loaded.pipeline

        def rows() -> tuple[str, list[Row], None]:
            return *parse(pipeline), None

        def answer(_: Signature, outputs: Mapping[str, np.ndarray], __: None) -> Any:
            for index, error in enumerate(outputs[ERROR]):
                if error:
                    raise RequestError(
                        413 if "must have at most" in error else 400, f"{error} in row {index}"
                    )
            return respond(pipeline, outputs)

        content = await requests.compute(
            request, size, rows, answer, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


def _rows_of_texts(
    texts: Sequence[str], prompt_name: str | None, options: Row
) -> Callable[[Embedding], tuple[str, list[Row]]]:
    """Return a function from a pipeline to the signature and the rows of texts with a prompt."""

    def rows(pipeline: Embedding) -> tuple[str, list[Row]]:
        if prompt_name is None:
            return DEFAULT, [{"text": text, **options} for text in texts]
        prompts = [*(pipeline.config.get("prompts") or {})]
        if prompt_name not in prompts:
            raise RequestError(
                400, f"`prompt_name` must be {' or '.join(prompts) or 'null'}. Received: {shown(prompt_name)}"
            )
        return EMBED, [{"text": text, "prompt_name": prompt_name, "prompt": "", **options} for text in texts]

    return rows


def _normalized(vectors: np.ndarray) -> np.ndarray:
    lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    result: np.ndarray = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return result


async def _embed(server: Server, request: Request) -> Response:
    """Embed texts as vectors."""
    document, size = await server.document(request)
    fields = _Fields(document, truncation_direction="right", encoding_format="float")
    texts, options, prompt_name = fields.strings("inputs"), fields.truncate(), fields.take("prompt_name")
    normalize, dimensions, model = (
        fields.boolean("normalize", True),
        fields.take("dimensions"),
        fields.take("model"),
    )
    fields.end()

    def respond(pipeline: Embedding, outputs: Mapping[str, np.ndarray]) -> Any:
        if dimensions not in (None, pipeline.config["model_dim"]):
            raise RequestError(
                400, f"`dimensions` must be {pipeline.config['model_dim']}. Received: {shown(dimensions)}"
            )
        if pipeline.config["normalize"] and not normalize:
            raise RequestError(
                400, "`normalize` must be true, as the export normalizes. Received: normalize=false"
            )
        vectors = outputs["embedding"]
        return (_normalized(vectors) if normalize else vectors).tolist()

    parse = _rows_of_texts(texts, prompt_name, options)
    return await _compute(server, request, size, Embedding, model, parse, respond)


async def _similarity(server: Server, request: Request) -> Response:
    """Compare a text with others by their vectors."""
    document, size = await server.document(request)
    fields = _Fields(document)
    inputs, parameters, model = fields.take("inputs"), fields.take("parameters", {}), fields.take("model")
    fields.end()
    if not isinstance(inputs, dict) or not isinstance(parameters, dict):
        expected = '{"inputs": {"source_sentence": …, "sentences": […]}, "parameters": {…}}'
        raise RequestError(400, f"The request must be {expected}. Received: {shown(document)}")
    sources, options = _Fields(inputs), _Fields(parameters, truncation_direction="right")
    texts = [sources.string("source_sentence"), *sources.strings("sentences")]
    truncate, prompt_name = options.truncate(), options.take("prompt_name")
    sources.end()
    options.end()

    def respond(_: Embedding, outputs: Mapping[str, np.ndarray]) -> Any:
        source, *others = _normalized(outputs["embedding"])
        return [float(source @ other) for other in others]

    parse = _rows_of_texts(texts, prompt_name, truncate)
    return await _compute(server, request, size, Embedding, model, parse, respond)


async def _rerank(server: Server, request: Request) -> Response:
    """Rank texts by their relevance to a query."""
    document, size = await server.document(request)
    fields = _Fields(document, truncation_direction="right")
    query, texts, options = fields.string("query"), fields.strings("texts"), fields.truncate()
    raw, with_texts = fields.boolean("raw_scores", False), fields.boolean("return_text", False)
    model = fields.take("model")
    fields.end()

    def parse(_: Reranking) -> tuple[str, list[Row]]:
        return DEFAULT, [{"query": query, "text": text, **options} for text in texts]

    def respond(pipeline: Reranking, outputs: Mapping[str, np.ndarray]) -> Any:
        scores = outputs["score"].astype(np.float64)
        are_probabilities = pipeline.config.get("activation", "sigmoid") == "sigmoid"
        if raw and are_probabilities:
            kept = np.clip(scores, _LIMIT, 1 - _LIMIT)
            scores = np.log(kept) - np.log1p(-kept)
        elif not raw and not are_probabilities:
            scores = 1 / (1 + np.exp(-scores))
        order = np.argsort(-scores, kind="stable").tolist()
        return [
            {"index": index, **({"text": texts[index]} if with_texts else {}), "score": float(scores[index])}
            for index in order
        ]

    return await _compute(server, request, size, Reranking, model, parse, respond)


async def _tokenize(server: Server, request: Request) -> Response:
    """The tokens of texts; their places in a text are null, as tokenizers here do not know them."""
    document, size = await server.document(request)
    fields = _Fields(document)
    texts, special, model = (
        fields.strings("inputs"),
        fields.boolean("add_special_tokens", True),
        fields.take("model"),
    )
    prompt_name = fields.take("prompt_name")
    fields.end()
    with server.choose((Embedding, Reranking), model).use() as (_, loaded, _):
        pipeline = loaded.pipeline

        def tokens() -> list[list[Json]]:
            _, rows = _rows_of_texts(texts, prompt_name, {})(pipeline)
            prompt = "" if prompt_name is None else pipeline.config["prompts"][prompt_name]
            return [_tokens(pipeline, prompt + _text(row), special) for row in rows]

        try:
            found = await requests.in_thread(tokens, size, server.limits.timeout)
        except TimeoutError:
            raise RequestError(
                504, f"The request must be computed within {server.limits.timeout:g} s"
            ) from None
        return json_response(found)


def _text(row: Row) -> str:
    try:
        return text_of(row, "text", "inputs")
    except InvalidInputError as error:
        raise RequestError(400, str(error)) from None


def _tokens(pipeline: Any, text: str, special: bool) -> list[Json]:
    tokenizer = pipeline.tokenizer
    ids = tokenizer.tokenize(text)
    if special:
        ids = pipeline.with_special_ids(ids)
    specials = {*tokenizer.special_token_ids.values(), tokenizer.start_id, tokenizer.end_id}
    return [
        {"id": id_, "text": tokenizer.pieces[id_], "special": id_ in specials, "start": None, "stop": None}
        for id_ in ids
    ]


async def _info(server: Server, _: Request) -> Response:
    """The models and limits."""
    limits = server.limits
    return json_response(
        {
            "model_id": " ".join(server.named((Embedding, Reranking))),
            "max_client_batch_size": limits.max_rows,
            "max_concurrent_requests": limits.max_queue,
            "max_batch_requests": limits.max_batch_size,
            "version": serving.__version__,
        }
    )


async def _health(server: Server, _: Request) -> Response:
    """Whether all models are loaded."""
    server.check_ready()
    return Response()


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of embeddings and of rerankers, where there are any."""
    text, flag = {"type": "string"}, {"type": "boolean"}
    texts = {"anyOf": [text, {"type": "array", "items": text}]}
    sentences = {
        "type": "object",
        "properties": {"source_sentence": text, "sentences": texts},
        "required": ["source_sentence", "sentences"],
    }
    anything: Json = {"type": "object"}
    paths: Json = {}
    for path, summary, classes, properties in (
        ("/embed", "Embed texts", Embedding, {"inputs": texts, "normalize": flag, "truncate": flag}),
        ("/similarity", "Compare texts with one", Embedding, {"inputs": sentences, "parameters": anything}),
        ("/rerank", "Rank texts for a query", Reranking, {"query": text, "texts": texts, "raw_scores": flag}),
        ("/tokenize", "Split texts into tokens", (Embedding, Reranking), {"inputs": texts}),
    ):
        if names := server.named(classes):
            required = [name for name in ("inputs", "query", "texts") if name in properties]
            body = {
                "type": "object",
                "properties": {**properties, "model": {"enum": names}},
                "required": [*required, *(["model"] if len(names) > 1 else [])],
            }
            operation = openapi.operation(
                f"{summary} (text-embeddings-inference)", {"type": "array"}, body, api=NAME
            )
            paths[path] = {"post": operation}
    for path, summary in {
        "/info": "The models and limits",
        "/health": "Whether every model is loaded",
    }.items():
        paths[path] = {"get": openapi.operation(summary, anything, api=NAME)}
    return paths


API = Api(
    NAME,
    (
        ("POST", "/embed", _embed),
        ("POST", "/similarity", _similarity),
        ("POST", "/rerank", _rerank),
        ("POST", "/tokenize", _tokenize),
        ("GET", "/info", _info),
        ("GET", "/health", _health),
    ),
    _paths,
    error_document,
    {
        "type": "object",
        "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
        "required": ["error", "error_type"],
    },
    public=("/health",),
)
