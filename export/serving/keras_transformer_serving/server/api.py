"""The state of a server, and what each of its protocols declares."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_transformer_serving.server import openapi, requests, tracing
from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.fields import object_of
from keras_transformer_serving.server.keys import Keys, key_of
from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.signatures import RequestError
from keras_transformer_serving.server.versions import STABLE, Loaded, ServedModel, Version
from keras_transformer_serving.tasks import shown

LOG = logging.getLogger("keras_transformer_serving.server")
FAILED = "The request failed. The log of the server has the error"
DRAINING = "The server is shutting down"
Json = dict[str, Any]


@dataclasses.dataclass(eq=False)
class Server:
    """The state of a server.

    Attributes:
        models: the models, by name.
        limits: the limits.
        metrics: the metrics.
        poll_seconds: the time between two looks for new versions; 0 for none.
        apis: the protocols.
        keys: the keys that requests must have; None for none.
        tracer: the OpenTelemetry tracer of requests; None for no traces.
        grpc_server: gRPC's server, if there is one.
        grpc_port: its port.
        files: translated files that wait to be downloaded, by name.
        stopping: whether the server is no longer ready, as it will shut down.
        draining: whether new requests are rejected.
        started: set when every model has been loaded, or could not be.
    """

    models: dict[str, ServedModel]
    limits: Limits
    metrics: Metrics
    poll_seconds: float
    apis: "tuple[Api, ...]" = ()
    keys: Keys | None = None
    tracer: Any = None
    grpc_server: Any = None
    grpc_port: int | None = None
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    stopping: bool = False
    draining: bool = False
    started: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def ready(self) -> bool:
        """True if every model is loaded, but those that lack a package, and requests are answered."""
        expected = [model for model in self.models.values() if not model.lacks_package]
        loaded = self.started.is_set() and all(model.current for model in expected)
        return loaded and bool(expected or not self.models) and not (self.stopping or self.draining)

    @property
    def active(self) -> int:
        """The number of requests that are being answered."""
        return sum(version.active for model in self.models.values() for version in model.versions.values())

    def check_ready(self) -> None:
        """Raise a RequestError (503) unless the server is ready."""
        if not self.ready:
            ends = self.stopping or self.draining
            raise RequestError(503, DRAINING if ends else "The models are not loaded yet", 1)

    def loaded(self) -> list[ServedModel]:
        """Return the models of which a version is served."""
        return [model for model in self.models.values() if model.current and model.current.loaded]

    def pipelines(self) -> dict[str, Any]:
        """Return the pipeline of each model, by its name."""
        found = {}
        for model in self.loaded():
            with model.use(label=STABLE) as (_, loaded, _):
                found[model.name] = loaded.pipeline
        return found

    def named(self, classes: type | tuple[type, ...]) -> list[str]:
        """Return the names of the models with a pipeline of one of these classes."""
        return [name for name, pipeline in self.pipelines().items() if isinstance(pipeline, classes)]

    def choose(self, classes: type | tuple[type, ...], name: Any = None) -> ServedModel:
        """Return the model of a name, or the only one, with a pipeline of one of these classes.

        Raises:
            RequestError: if there is none (404), or several and no name.
        """
        names = self.named(classes)
        if name is None and len(names) == 1:
            return self.models[names[0]]
        if name not in names:
            status = 400 if names and name is None else 404
            expected = " or ".join(names) or "one for this route, of which none is loaded"
            raise RequestError(status, f"`model` must be {expected}. Received: {shown(name)}")
        return self.models[name]

    def find(self, name: Any) -> ServedModel:
        """Return a model.

        Raises:
            RequestError: if it is unknown (404).
        """
        model = self.models.get(name) if isinstance(name, str) else None
        if model is None:
            raise RequestError(
                404,
                f"The model must be {' or '.join(self.models) or 'loaded'}. Received: {shown(name)}",
                param="model",
                code="model_not_found",
            )
        return model

    def use(self, request: Request) -> contextlib.AbstractContextManager[tuple[Version, Loaded, Batcher]]:
        """Return the context of the version that a route names."""
        model = self.find(request.path_params["name"])
        return model.use(version_number(request), request.path_params.get("label"))

    def model_keys(self, model: ServedModel) -> Json:
        """Return what the protocols add to the description of a model."""
        return {key: value for api in self.apis for key, value in api.model_keys(model).items()}

    async def body(self, request: Request) -> bytes:
        """Return the body of a request, unless the server drains, or the queue of the route's model is full."""
        name = request.path_params.get("name", "")
        if self.draining:
            self.metrics.rejections.labels(self.find(name).name if name else "", "draining").inc()
            raise RequestError(503, DRAINING, 1)
        if name:
            with self.use(request) as (_, _, batcher):
                batcher.check_space()  # a rejection must cost little
        return await requests.read(request, self.limits)

    async def document(self, request: Request) -> tuple[Json, int]:
        """Return the JSON object of a request, and the size of its body.

        Raises:
            RequestError: if it is none.
        """
        body = await self.body(request)
        document = await requests.in_time(
            "read", functools.partial(requests.parse_json, body), len(body), self.limits
        )
        if not isinstance(document, dict):
            raise RequestError(400, f"The request must be a JSON object. Received: {shown(document)}")
        return document, len(body)

    async def watch(self) -> None:
        """Load all models, and then each new version of them."""
        while True:
            for model in self.models.values():
                try:
                    await model.poll()
                except Exception:
                    LOG.exception("%s: looking for versions failed", model.name)
            self.started.set()
            if not self.poll_seconds:
                return
            await asyncio.sleep(self.poll_seconds)


Endpoint = Callable[[Server, Request], Awaitable[Response]]


async def key_in_headers(_: Server, request: Request) -> str | None:
    """Return the key in the headers of a request."""
    return key_of(request.headers)


def error_document(error: RequestError) -> Json:
    """Return the JSON value of an error, {"error": …}."""
    return {"error": str(error)}


@dataclasses.dataclass(frozen=True)
class Api:
    """A protocol of the server.

    Attributes:
        name: its name in metrics and options.
        routes: the HTTP method, the path and the endpoint of each route.
        paths: a function from a server to the OpenAPI description of the routes, by path.
        error: a function from an error to the JSON value of its answer.
        error_schema: the JSON schema of these values.
        model_keys: a function from a model to what the protocol adds to its description in `/v1/models`.
        key: a function from a server and a request to the request's key.
        public: the paths that need no key.
        errors_at: the paths, also of other protocols, whose errors are those of this one.
        errors_below: the beginning of paths without a route whose errors are those of this one; "" for none.
    """

    name: str
    routes: tuple[tuple[str, str, Endpoint], ...]
    paths: Callable[[Server], Json]
    error: Callable[[RequestError], Json] = error_document
    error_schema: Json = dataclasses.field(
        default_factory=lambda: object_of({"error": {"type": "string"}}, ["error"])
    )
    model_keys: Callable[[ServedModel], Json] = lambda model: {}
    key: Callable[[Server, Request], Awaitable[str | None]] = key_in_headers
    public: tuple[str, ...] = ()
    errors_at: tuple[str, ...] = ()
    errors_below: str = ""

    def endpoint(
        self, path: str, run: Endpoint, errors: "Api | None" = None
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a route, which answers errors as JSON, counts and traces the request.

        Args:
            path: the path of the route.
            run: what answers.
            errors: the protocol of the errors, by default this one.
        """
        failed, is_public = (errors or self).failed, path in self.public

        async def answer(request: Request) -> Response:
            server: Server = request.app.state.server
            name = request.path_params.get("name", "")
            model = name if name in server.models else ""
            attributes = {
                "http.request.method": request.method,
                "http.route": path,
                "keras_transformer.protocol": self.name,
                "keras_transformer.model": model,
            }
            with tracing.request_span(
                server.tracer, f"{request.method} {path}", request.headers, attributes
            ) as span:
                response = await self._answer(server, request, run, failed, is_public)
                if span is not None:
                    span.set_attribute("http.response.status_code", response.status_code)
            server.metrics.requests.labels(model, self.name, str(response.status_code)).inc()
            return response

        return answer

    async def _answer(
        self,
        server: Server,
        request: Request,
        run: Endpoint,
        failed: Callable[[RequestError], Response],
        is_public: bool,
    ) -> Response:
        try:
            if server.keys is not None and not is_public:
                server.keys.check(await self.key(server, request))
            return await run(server, request)
        except RequestError as error:
            return failed(error)
        except ClientDisconnect:
            return failed(RequestError(499, "The client has disconnected"))
        except Exception:
            LOG.exception("%s %s failed", request.method, request.url.path)
            return failed(RequestError(500, FAILED))

    def failed(self, error: RequestError) -> Response:
        """Return the answer to a request that failed."""
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(self.error(error), error.status, headers)


async def health(server: Server, _: Request) -> Response:
    """Whether all models are loaded."""
    server.check_ready()
    return json_response({"status": "ok"})


async def specification(server: Server, _: Request) -> Response:
    """The OpenAPI document of all routes."""
    paths: Json = {}
    for api in server.apis:
        for path, operations in api.paths(server).items():
            paths.setdefault(path, {}).update(operations)
    schemas = {openapi.error_name(api.name): api.error_schema for api in server.apis}
    return json_response(openapi.document(paths, schemas))


def version_number(request: Request) -> int | None:
    """Return the number of the version in a route, if there is one."""
    text = request.path_params.get("version")
    return None if text is None else parse_version(text)


def parse_version(text: str) -> int:
    """Return the number of a version."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RequestError(400, f"The version must be a number. Received: {shown(text)}")
    return int(text)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON value."""
    return encoded_response(requests.encode(value), status, headers)


def encoded_response(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with encoded JSON."""
    return Response(content, status, headers, "application/json")
