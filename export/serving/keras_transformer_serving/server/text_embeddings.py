"""The protocol of text-embeddings-inference: embed, rerank, predict, similarity, tokenize, decode."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import keras_transformer_serving as serving
from keras_transformer_serving.pipelines.embedding import EMBED, Embedding, first_values
from keras_transformer_serving.pipelines.errors import ErrorMessage, InvalidInputError
from keras_transformer_serving.pipelines.reranking import Reranking
from keras_transformer_serving.pipelines.text_classification import TextClassification
from keras_transformer_serving.pipelines.texts import TRUNCATION_SIDES, Truncate, softmax
from keras_transformer_serving.server import fields, openapi, requests
from keras_transformer_serving.server.api import Api, Json, Server, encoded_response, health, json_response
from keras_transformer_serving.server.fields import (
    BOOLEAN,
    STRING,
    STRINGS,
    Field,
    Kind,
    integer,
    one_of,
    one_or_list,
    record,
)
from keras_transformer_serving.server.signatures import TRUNCATE, RequestError, Signature, text_of
from keras_transformer_serving.server.versions import Loaded
from keras_transformer_serving.tasks import DEFAULT, ERROR, FORWARD, Row

Fields = tuple[Field, ...]
_TOKENIZING = (Embedding, Reranking, TextClassification)
NAME = "tei"
_HIDDEN = "last_hidden_state"
_LIMIT = 2.0**-25  # below the distance of float32 probabilities to 1


def error_document(error: RequestError) -> Json:
    """Return the JSON value of an error."""
    types = {429: "Overloaded", 503: "Unhealthy"}
    by_status = types.get(error.status, "Validation" if error.status < 500 else "Backend")
    return {"error": str(error), "error_type": error.code if error.code in _TYPES else by_status}


_TYPES = ("Empty", "Tokenizer")  # of errors with these codes
_STATUS_AND_CODE: dict[str, tuple[int, str | None]] = {  # of errors of each kind
    "value": (400, None),
    "length": (413, None),
    "encoding": (422, "Tokenizer"),
}
_TRUNCATION = (
    Field(TRUNCATE, BOOLEAN),
    Field("truncation_direction", one_of(*TRUNCATION_SIDES, any_case=True)),
)
_TEXT = Kind(
    "a string", {"type": "string", "minLength": 1}, lambda value: isinstance(value, str) and value != ""
)
_TEXTS = one_or_list(_TEXT, f"{STRINGS.expected}, which are not empty")
_SENTENCES = (Field("source_sentence", _TEXT, required=True), Field("sentences", _TEXTS, required=True))


def _ids(pipeline: Any) -> Kind:
    """Return lists of token ids."""
    limit = len(pipeline.tokenizer.pieces)
    items = {"type": "integer", "minimum": 0, "maximum": limit - 1}

    def accepts(value: Any) -> bool:
        return (
            isinstance(value, list)
            and value != []
            and all(type(id_) is int and 0 <= id_ < limit for id_ in value)
        )

    expected = f"a list of ids from 0 to {limit - 1}, or a list of these"
    return Kind(expected, {"type": "array", "items": items, "minItems": 1}, accepts)


def _inputs(pipeline: Any) -> Field:
    """Return the field of texts or token ids, which are read as texts."""
    ids = _ids(pipeline)
    kind = Kind(
        "",
        {"anyOf": [_TEXT.schema, ids.schema]},
        lambda value: _TEXT.accepts(value) or ids.accepts(value),
    )
    inputs = one_or_list(kind, f"{_TEXTS.expected}, or token ids")

    def convert(value: Any) -> list[str]:
        return [
            each if isinstance(each, str) else pipeline.tokenizer.detokenize(each)
            for each in inputs.convert(value)
        ]

    return Field("inputs", dataclasses.replace(inputs, convert=convert), required=True)


def _prompt_name(pipeline: Any) -> Field:
    return Field("prompt_name", one_of(*(pipeline.config.get("prompts") or (None,))))


def _embed_fields(pipeline: Embedding) -> Fields:
    normalized = one_of(True, reason="as the export normalizes")
    return (
        _inputs(pipeline),
        Field("normalize", normalized if pipeline.config["normalize"] else BOOLEAN, True),
        *_TRUNCATION,
        _prompt_name(pipeline),
        Field("dimensions", integer(1, pipeline.config["model_dim"])),
        Field("encoding_format", one_of("float", any_case=True), "float"),
    )


def _embed_all_fields(pipeline: Embedding) -> Fields:
    return (_inputs(pipeline), *_TRUNCATION, _prompt_name(pipeline))


_PAIR_SCHEMA: Json = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) < 3 and all(isinstance(text, str) for text in value)


def _predict_fields(pipeline: TextClassification) -> Fields:
    """Return the fields of a request: a text, a pair of texts, or a list of pairs and of lists of one text."""
    count = 2 if pipeline.config["symmetric"] else None

    def accepts(value: Any) -> bool:
        lists = value if isinstance(value, list) and not _is_pair(value) else [value]
        texts = [[each] if isinstance(each, str) else each for each in lists]
        counts = {len(each) if _is_pair(each) else 0 for each in texts}
        return len(counts) == 1 and (counts == {count} if count else counts <= {1, 2})

    inputs = Kind(
        "a string, a pair of strings, or a list of lists of one string each, or of two each",
        {
            "anyOf": [
                {"type": "string"},
                _PAIR_SCHEMA,
                {"type": "array", "items": _PAIR_SCHEMA, "minItems": 1},
            ]
        },
        accepts,
    )
    is_regression = pipeline.config["problem_type"] == "regression"
    raw = BOOLEAN if is_regression else one_of(False, reason="as the export has probabilities")
    return (Field("inputs", inputs, required=True), Field("raw_scores", raw, False), *_TRUNCATION)


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


def _decode_fields(pipeline: Any) -> Fields:
    ids = _ids(pipeline)
    return (
        Field("ids", one_or_list(ids, ids.expected), required=True),
        Field("skip_special_tokens", one_of(True), True),
    )


def _table(of_route: Callable[[Any], Fields], pipeline: Any, names: Sequence[str]) -> Fields:
    """Return the fields of a request to a pipeline: those of the route, and the model, one of these names."""
    return (*of_route(pipeline), Field("model", one_of(*names), required=len(names) > 1))


def _fields_of(of_route: Callable[[Any], Fields], loaded: Loaded, names: Sequence[str]) -> Fields:
    """Return the fields of a request to a loaded model, which are declared once."""
    key = (of_route, *names)
    if key not in loaded.fields:
        loaded.fields[key] = _table(of_route, loaded.pipeline, names)
    return loaded.fields[key]


def _read(document: Json, table: Fields) -> Json:
    """Return the values of fields.

    Raises:
        RequestError: if a value is empty (400), or another is wrong (422).
    """
    try:
        return fields.read(document, table)
    except RequestError as error:
        received: Any = document
        for name in (error.param or "").split("."):
            received = received.get(name) if isinstance(received, dict) else None
        if received in ("", []) or (
            isinstance(received, list) and any(each in ("", []) for each in received)
        ):
            raise RequestError(400, str(error), param=error.param, code="Empty") from None
        raise RequestError(422, str(error), param=error.param, code=error.code) from None


async def _compute(
    server: Server,
    request: Request,
    pipeline_class: type,
    of_route: Callable[[Any], Fields],
    parse: Callable[[Any, Json], tuple[str, list[Row]]],
    respond: Callable[[Any, Json, Mapping[str, np.ndarray]], Any],
) -> Response:
    """Return the answer of the model of a class of pipelines.

    Args:
        server: the server.
        request: the request.
        pipeline_class: the class.
        of_route: a function from the pipeline to the fields of a request, besides the model.
        parse: a function from the pipeline and their values to the name of a signature and the rows.
        respond: a function from the pipeline, the values and the outputs, by name, to the JSON value.
    """
    document, size = await server.document(request)
    model = server.choose(pipeline_class, document.get("model"))
    with model.use() as (_, loaded, batcher):
        pipeline = loaded.pipeline
        values = _read(document, _fields_of(of_route, loaded, server.named(pipeline_class)))

        def rows() -> tuple[str, list[Row], None]:
            return *parse(pipeline, values), None

        def answer(_: Signature, outputs: Mapping[str, np.ndarray], __: None) -> Any:
            for index, error in enumerate(outputs.get(ERROR, ())):
                if error:
                    raise _error(error, f" in row {index}")
            return respond(pipeline, values, outputs)

        content = await requests.compute(
            request, size, rows, answer, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


def _error(message: ErrorMessage, place: str = "") -> RequestError:
    """Return the error of a row."""
    status, code = _STATUS_AND_CODE[message.kind]
    return RequestError(status, f"{message}{place}", code=code)


def _truncated(pipeline: Any, values: Json) -> Truncate:
    """Return whether texts are truncated, and on which side."""
    truncate: Truncate = values[TRUNCATE]
    if truncate is None and pipeline.config.get("long_texts") == "truncate":
        truncate = True
    return (values["truncation_direction"] or True) if truncate else truncate


def _options(pipeline: Any, values: Json) -> Row:
    """Return the entries of a row that say whether its text is truncated."""
    truncate = _truncated(pipeline, values)
    return {} if truncate is None else {TRUNCATE: truncate}


def _rows_of_texts(pipeline: Any, texts: Sequence[str], values: Json) -> tuple[str, list[Row]]:
    """Return the signature and the rows of texts."""
    prompt_name, options = values["prompt_name"], _options(pipeline, values)
    if prompt_name is None:
        return DEFAULT, [{"text": text, **options} for text in texts]
    prompt = {"prompt_name": prompt_name, "prompt": ""}
    return EMBED, [{"text": text, **prompt, **options} for text in texts]


async def _embed(server: Server, request: Request) -> Response:
    """Embed texts as vectors."""

    def parse(pipeline: Embedding, values: Json) -> tuple[str, list[Row]]:
        return _rows_of_texts(pipeline, values["inputs"], values)

    def respond(_: Embedding, values: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        return first_values(outputs["embedding"], values["dimensions"], values["normalize"])

    return await _compute(server, request, Embedding, _embed_fields, parse, respond)


async def _embed_all(server: Server, request: Request) -> Response:
    """Embed each token of texts."""
    lengths: list[int] = []

    def parse(pipeline: Embedding, values: Json) -> tuple[str, list[Row]]:
        if all(tensor.name != _HIDDEN for tensor in pipeline.engine.outputs):
            raise RequestError(
                404, f"`/embed_all` needs an export with the output {_HIDDEN}. Received: another"
            )
        options = () if values["prompt_name"] is None else (values["prompt_name"], "")
        rows: list[Row] = []
        for index, text in enumerate(values["inputs"]):
            try:
                windows, _ = pipeline.preprocess(
                    text_of({"inputs": text}, "inputs"), *options, truncate=_truncated(pipeline, values)
                )
            except InvalidInputError as error:
                raise _error(error.message, f" in row {index}") from None
            if len(windows.ids) > 1:
                raise RequestError(
                    413, f"`inputs` must have one window of tokens each. Received: more in row {index}"
                )
            rows.append({"input_ids": pipeline.with_special_ids(windows.ids[0])})
            lengths.append(len(rows[-1]["input_ids"]))
        return FORWARD, rows

    def respond(_: Embedding, __: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        pairs = zip(outputs[_HIDDEN], lengths, strict=True)
        return [vectors[:length] for vectors, length in pairs]

    return await _compute(server, request, Embedding, _embed_all_fields, parse, respond)


async def _predict(server: Server, request: Request) -> Response:
    """Classify texts or pairs of texts."""

    def parse(pipeline: TextClassification, values: Json) -> tuple[str, list[Row]]:
        inputs, options = values["inputs"], _options(pipeline, values)
        lists = [inputs] if isinstance(inputs, str) or _is_pair(inputs) else inputs
        texts = [[each] if isinstance(each, str) else each for each in lists]
        pairs = len(texts[0]) == 2 and not pipeline.config["symmetric"]
        rows = [{**dict(zip(("text", "text_pair"), each, strict=False)), **options} for each in texts]
        return "classify_pairs" if pairs else DEFAULT, rows

    def respond(pipeline: TextClassification, values: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        if "probabilities" in outputs:
            scores = outputs["probabilities"].astype(np.float64)
        else:
            scores = outputs["values"].astype(np.float64)
            if not values["raw_scores"]:
                scores = softmax(scores) if scores.shape[1] > 1 else 1 / (1 + np.exp(-scores))
        labels = [str(label) for label in pipeline.config["labels"]]
        found = [
            [
                {"score": float(row[index]), "label": labels[index]}
                for index in np.argsort(-row, kind="stable")
            ]
            for row in scores
        ]
        inputs = values["inputs"]
        return found[0] if isinstance(inputs, str) or _is_pair(inputs) else found

    return await _compute(server, request, TextClassification, _predict_fields, parse, respond)


async def _similarity(server: Server, request: Request) -> Response:
    """Compare a text with others by their vectors."""

    def parse(pipeline: Embedding, values: Json) -> tuple[str, list[Row]]:
        texts = [values["inputs"]["source_sentence"], *values["inputs"]["sentences"]]
        return _rows_of_texts(pipeline, texts, values["parameters"])

    def respond(_: Embedding, __: Json, outputs: Mapping[str, np.ndarray]) -> Any:
        source, *others = first_values(outputs["embedding"], None, normalize=True)
        return [float(source @ other) for other in others]

    return await _compute(server, request, Embedding, _similarity_fields, parse, respond)


async def _rerank(server: Server, request: Request) -> Response:
    """Rank texts by their relevance to a query."""

    def parse(pipeline: Reranking, values: Json) -> tuple[str, list[Row]]:
        query, options = values["query"], _options(pipeline, values)
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


async def _of_tokenizer(
    server: Server,
    request: Request,
    of_route: Callable[[Any], Fields],
    respond: Callable[[Any, Json], Any],
) -> Response:
    """Return the answer of a tokenizer.

    Args:
        server: the server.
        request: the request.
        of_route: as for `_compute`.
        respond: a function from the pipeline and the values of the fields to the JSON value.
    """
    document, size = await server.document(request)
    model = server.choose(_TOKENIZING, document.get("model"))
    with model.use() as (_, loaded, _):
        pipeline = loaded.pipeline
        values = _read(document, _fields_of(of_route, loaded, server.named(_TOKENIZING)))
        answer = functools.partial(respond, pipeline, values)
        return json_response(await requests.in_time("computed", answer, size, server.limits))


async def _tokenize(server: Server, request: Request) -> Response:
    """The tokens of texts; their places in a text are null, as tokenizers here do not know them."""

    def respond(pipeline: Any, values: Json) -> list[list[Json]]:
        name = values["prompt_name"]
        prompt = "" if name is None else pipeline.config["prompts"][name]
        texts = [_text({"text": text}) for text in values["inputs"]]
        return [_tokens(pipeline, prompt + text, values["add_special_tokens"]) for text in texts]

    return await _of_tokenizer(server, request, _tokenize_fields, respond)


async def _decode(server: Server, request: Request) -> Response:
    """The texts of token ids."""

    def respond(pipeline: Any, values: Json) -> list[str]:
        return [pipeline.tokenizer.detokenize(ids) for ids in values["ids"]]

    return await _of_tokenizer(server, request, _decode_fields, respond)


def _text(row: Row) -> str:
    try:
        return text_of(row, "text", "inputs")
    except InvalidInputError as error:
        raise _error(error.message) from None


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


async def _info(server: Server, request: Request) -> Response:
    """The models and limits; what depends on the model is that of the first, or of the one that the query names."""
    limits, names = server.limits, server.named(_TOKENIZING)
    name = request.query_params.get("model") or next(iter(names), None)
    with server.choose(_TOKENIZING, name).use() as (_, loaded, _):
        config = loaded.pipeline.config
        max_length = config["max_length"] or limits.max_characters
        return json_response(
            {
                "model_id": name,
                "served_model_name": name,
                "model_dtype": loaded.precision,
                "model_type": _type_of(loaded.pipeline),
                "max_concurrent_requests": limits.max_queue,
                "max_input_length": max_length,
                "max_batch_tokens": limits.max_batch_size * max_length,
                "max_batch_requests": limits.max_batch_size,
                "max_client_batch_size": limits.max_rows,
                "auto_truncate": config.get("long_texts") == "truncate",
                "tokenization_workers": loaded.num_batches,
                "version": serving.__version__,
                **dict.fromkeys(("model_sha", "sha", "docker_label")),
            }
        )


def _type_of(pipeline: Any) -> Json:
    """Return the type of a model, with its labels."""
    if isinstance(pipeline, Embedding):
        return {"embedding": {"pooling": pipeline.config.get("pooling", "mean")}}
    labels = [str(label) for label in pipeline.config.get("labels") or ["relevance"]]
    named = {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    return {"reranker" if isinstance(pipeline, Reranking) else "classifier": named}


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of embeddings and of rerankers, where there are any."""
    pipelines, paths = server.pipelines(), {}
    rows, vectors = fields.list_of, fields.list_of(fields.NUMBER)
    labels = rows(fields.exact_object({"score": fields.NUMBER, "label": fields.TEXT}))
    rank = {"index": fields.COUNT, "score": fields.NUMBER}
    ranks = rows(fields.object_of({**rank, "text": fields.TEXT}, rank, others=False))
    token: Json = {"id": fields.COUNT, "text": fields.TEXT, "special": {"type": "boolean"}}
    tokens = rows(rows(fields.exact_object({**token, **dict.fromkeys(("start", "stop"), fields.NULL)})))
    predictions = {"anyOf": [labels, rows(labels)]}
    for path, summary, classes, of_route, answer in (
        ("/embed", "Embed texts", Embedding, _embed_fields, rows(vectors)),
        ("/embed_all", "Embed each token of texts", Embedding, _embed_all_fields, rows(rows(vectors))),
        ("/predict", "Classify texts", TextClassification, _predict_fields, predictions),
        ("/similarity", "Compare texts with one", Embedding, _similarity_fields, vectors),
        ("/rerank", "Rank texts for a query", Reranking, _rerank_fields, ranks),
        ("/tokenize", "Split texts into tokens", _TOKENIZING, _tokenize_fields, tokens),
        ("/decode", "Join tokens to texts", _TOKENIZING, _decode_fields, rows(fields.TEXT)),
    ):
        if names := server.named(classes):
            body = fields.schema(_table(of_route, pipelines[name], names) for name in names)
            summary = f"{summary} (text-embeddings-inference)"
            paths[path] = {"post": openapi.operation(summary, answer, body, api=NAME)}
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
        ("POST", "/embed_all", _embed_all),
        ("POST", "/predict", _predict),
        ("POST", "/similarity", _similarity),
        ("POST", "/rerank", _rerank),
        ("POST", "/tokenize", _tokenize),
        ("POST", "/decode", _decode),
        ("GET", "/info", _info),
        ("GET", "/health", health),
    ),
    _paths,
    error_document,
    fields.schema([[Field(name, STRING, required=True) for name in ("error", "error_type")]]),
    public=("/health",),
)
