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
from keras_transformer_serving.server import fields, openapi, requests
from keras_transformer_serving.server.api import Api, Json, Server, encoded_response, health, json_response
from keras_transformer_serving.server.fields import BOOLEAN, STRING, STRINGS, Field, one_of, record
from keras_transformer_serving.server.signatures import TRUNCATE, RequestError, Signature, text_of
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row

Fields = tuple[Field, ...]
_TOKENIZING = (Embedding, Reranking)
NAME = "tei"
_LIMIT = 2.0**-25  # below the distance of float32 probabilities to 1


def error_document(error: RequestError) -> Json:
    """Return the JSON value of an error."""
    types = {429: "overloaded", 503: "unhealthy"}
    return {
        "error": str(error),
        "error_type": types.get(error.status, "validation" if error.status < 500 else "backend"),
    }


_TRUNCATION = (
    Field(TRUNCATE, BOOLEAN),
    Field("truncation_direction", one_of("right", any_case=True), "right"),
)
_SENTENCES = (Field("source_sentence", STRING, required=True), Field("sentences", STRINGS, required=True))


def _prompt_name(pipeline: Any) -> Field:
    return Field("prompt_name", one_of(*(pipeline.config.get("prompts") or (None,))))


def _embed_fields(pipeline: Embedding) -> Fields:
    normalized = one_of(True, reason="as the export normalizes")
    return (
        Field("inputs", STRINGS, required=True),
        Field("normalize", normalized if pipeline.config["normalize"] else BOOLEAN, True),
        *_TRUNCATION,
        _prompt_name(pipeline),
        Field("dimensions", one_of(pipeline.config["model_dim"])),
        Field("encoding_format", one_of("float", any_case=True), "float"),
    )


def _similarity_fields(pipeline: Embedding) -> Fields:
    options = (*_TRUNCATION, _prompt_name(pipeline))
    expected = '{"source_sentence": …, "sentences": […]}'
    return (
        Field("inputs", record("inputs", _SENTENCES, expected), required=True),
        Field("parameters", record("parameters", options), {}),
    )


def _rerank_fields(_: Reranking) -> Fields:
    return (
        Field("query", STRING, required=True),
        Field("texts", STRINGS, required=True),
        Field("raw_scores", BOOLEAN, False),
        Field("return_text", BOOLEAN, False),
        *_TRUNCATION,
    )


def _tokenize_fields(pipeline: Any) -> Fields:
    return (
        Field("inputs", STRINGS, required=True),
        Field("add_special_tokens", BOOLEAN, True),
        _prompt_name(pipeline),
    )


def _table(of_route: Callable[[Any], Fields], pipeline: Any, names: Sequence[str]) -> Fields:
    """Return the fields of a request to a pipeline: those of the route, and the model, one of these names."""
    return (*of_route(pipeline), Field("model", one_of(*names), required=len(names) > 1))


async def _compute(
    server: Server,
    request: Request,
    pipeline_class: type,
    of_route: Callable[[Any], Fields],
    parse: Callable[[Json], tuple[str, list[Row]]],
    respond: Callable[[Any, Json, Mapping[str, np.ndarray]], Any],
) -> Response:
    """Return the answer of the model of a class of pipelines.

    Args:
        server: the server.
        request: the request.
        pipeline_class: the class.
        of_route: a function from the pipeline to the fields of a request, besides the model.
        parse: a function from their values to the name of a signature and the rows.
        respond: a function from the pipeline, the values and the outputs, by name, to the JSON value.
    """
    document, size = await server.document(request)
    model = server.choose(pipeline_class, document.get("model"))
    with model.use() as (_, loaded, batcher):
        pipeline = loaded.pipeline
        values = fields.read(document, _table(of_route, pipeline, server.named(pipeline_class)))

        def rows() -> tuple[str, list[Row], None]:
            return *parse(values), None

        def answer(_: Signature, outputs: Mapping[str, np.ndarray], __: None) -> Any:
            for index, error in enumerate(outputs[ERROR]):
                if error:
                    raise RequestError(
                        413 if "must have at most" in error else 400, f"{error} in row {index}"
                    )
            return respond(pipeline, values, outputs)

        content = await requests.compute(
            request, size, rows, answer, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


def _options(values: Json) -> Row:
    """Return the entries of a row that say whether its text is truncated."""
    return {} if values[TRUNCATE] is None else {TRUNCATE: values[TRUNCATE]}


def _rows_of_texts(texts: Sequence[str], options: Json) -> tuple[str, list[Row]]:
    """Return the signature and the rows of texts."""
    prompt_name = options["prompt_name"]
    if prompt_name is None:
        return DEFAULT, [{"text": text, **_options(options)} for text in texts]
    prompt = {"prompt_name": prompt_name, "prompt": ""}
    return EMBED, [{"text": text, **prompt, **_options(options)} for text in texts]


def _normalized(vectors: np.ndarray) -> np.ndarray:
    lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    result: np.ndarray = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    return result


async def _embed(server: Server, request: Request) -> Response:
    """Embed texts as vectors."""

    def parse(values: Json) -> tuple[str, list[Row]]:
        return _rows_of_texts(values["inputs"], values)

    def respond(_: Embedding, values: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        vectors = outputs["embedding"]
        return (_normalized(vectors) if values["normalize"] else vectors).tolist()

    return await _compute(server, request, Embedding, _embed_fields, parse, respond)


async def _similarity(server: Server, request: Request) -> Response:
    """Compare a text with others by their vectors."""

    def parse(values: Json) -> tuple[str, list[Row]]:
        inputs = values["inputs"]
        return _rows_of_texts([inputs["source_sentence"], *inputs["sentences"]], values["parameters"])

    def respond(_: Embedding, __: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        source, *others = _normalized(outputs["embedding"])
        return [float(source @ other) for other in others]

    return await _compute(server, request, Embedding, _similarity_fields, parse, respond)


async def _rerank(server: Server, request: Request) -> Response:
    """Rank texts by their relevance to a query."""

    def parse(values: Json) -> tuple[str, list[Row]]:
        query, options = values["query"], _options(values)
        return DEFAULT, [{"query": query, "text": text, **options} for text in values["texts"]]

    def respond(pipeline: Reranking, values: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        scores = outputs["score"].astype(np.float64)
        are_probabilities = pipeline.config.get("activation", "sigmoid") == "sigmoid"
        if values["raw_scores"] and are_probabilities:
            kept = np.clip(scores, _LIMIT, 1 - _LIMIT)
            scores = np.log(kept) - np.log1p(-kept)
        elif not values["raw_scores"] and not are_probabilities:
            scores = 1 / (1 + np.exp(-scores))
        found = []
        for index in np.argsort(-scores, kind="stable").tolist():
            text = {"text": values["texts"][index]} if values["return_text"] else {}
            found.append({"index": index, **text, "score": float(scores[index])})
        return found

    return await _compute(server, request, Reranking, _rerank_fields, parse, respond)


async def _tokenize(server: Server, request: Request) -> Response:
    """The tokens of texts; their places in a text are null, as tokenizers here do not know them."""
    document, size = await server.document(request)
    model = server.choose(_TOKENIZING, document.get("model"))
    with model.use() as (_, loaded, _):
        pipeline = loaded.pipeline
        values = fields.read(document, _table(_tokenize_fields, pipeline, server.named(_TOKENIZING)))
        name = values["prompt_name"]
        prompt = "" if name is None else pipeline.config["prompts"][name]

        def tokens() -> list[list[Json]]:
            texts = [_text({"text": text}) for text in values["inputs"]]
            return [_tokens(pipeline, prompt + text, values["add_special_tokens"]) for text in texts]

        return json_response(await requests.in_time("computed", tokens, size, server.limits))


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


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of embeddings and of rerankers, where there are any."""
    pipelines, paths = server.pipelines(), {}
    for path, summary, classes, of_route in (
        ("/embed", "Embed texts", Embedding, _embed_fields),
        ("/similarity", "Compare texts with one", Embedding, _similarity_fields),
        ("/rerank", "Rank texts for a query", Reranking, _rerank_fields),
        ("/tokenize", "Split texts into tokens", _TOKENIZING, _tokenize_fields),
    ):
        if names := server.named(classes):
            body = fields.schema(_table(of_route, pipelines[name], names) for name in names)
            summary = f"{summary} (text-embeddings-inference)"
            paths[path] = {"post": openapi.operation(summary, {"type": "array"}, body, api=NAME)}
    for path, summary in {
        "/info": "The models and limits",
        "/health": "Whether every model is loaded",
    }.items():
        paths[path] = {"get": openapi.operation(summary, {"type": "object"}, api=NAME)}
    return paths


API = Api(
    NAME,
    (
        ("POST", "/embed", _embed),
        ("POST", "/similarity", _similarity),
        ("POST", "/rerank", _rerank),
        ("POST", "/tokenize", _tokenize),
        ("GET", "/info", _info),
        ("GET", "/health", health),
    ),
    _paths,
    error_document,
    fields.schema([[Field(name, STRING, required=True) for name in ("error", "error_type")]]),
    public=("/health",),
)
