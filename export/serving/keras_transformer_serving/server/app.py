"""The ASGI application: routes, limits, life cycle."""

import asyncio
import contextlib
import dataclasses
import functools
import importlib.resources
import logging
import os
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import prometheus_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

import keras_transformer_serving as serving
from keras_transformer_serving.server import (
    open_inference,
    openapi,
    requests,
    streaming,
    tensorflow_serving,
    versions,
)
from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.signatures import RequestError
from keras_transformer_serving.server.versions import ServedModel
from keras_transformer_serving.tasks import shown

LOG = logging.getLogger("keras_transformer_serving.server")
_DRAINING = "The server is shutting down"


@dataclasses.dataclass(eq=False)
class Server:
    """The state of a server.

    Attributes:
        models: the models, by name.
        limits: the limits.
        metrics: the metrics.
        poll_seconds: the time between two looks for new versions; 0 for none.
        draining: whether new requests are rejected.
        started: set when every model has been loaded, or could not be.
    """

    models: dict[str, ServedModel]
    limits: Limits
    metrics: Metrics
    poll_seconds: float
    draining: bool = False
    started: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def ready(self) -> bool:
        """True if every model is loaded and requests are answered."""
        models = self.models.values()
        return self.started.is_set() and not self.draining and all(model.current for model in models)

    @property
    def active(self) -> int:
        """The number of requests that are being answered."""
        return sum(version.active for model in self.models.values() for version in model.versions.values())

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


def create_app(
    folders: Mapping[str, str | os.PathLike[str]],
    limits: Limits | None = None,
    *,
    poll_seconds: float = 2.0,
    **options: Any,
) -> Starlette:
    """Return an ASGI application that serves exports.

    Args:
        folders: for each model's name an export, or a folder of exports named by their version numbers, of which the
            largest is served.
        limits: the limits of the server.
        poll_seconds: the time between two looks for new versions; 0 for none.
        **options: `threads`, the number of threads that compute, by default one for each core, and those of
            `keras_transformer_serving.load`.

    Returns:
        The application. Its lifespan loads the models; `app.state.server` is its `Server`.

    Raises:
        ValueError: if a name cannot be part of a route.
    """
    limits = limits or Limits()
    for name in folders:
        if not name or not all(character.isalnum() or character in "._-" for character in name):
            raise ValueError(
                f"`folders` must have names of letters, digits, '.', '_' and '-'. Received: {name!r}"
            )
    metrics = Metrics()
    loader = functools.partial(versions.load, max_batch_size=limits.max_batch_size, **options)
    models = {
        name: ServedModel(name, pathlib.Path(folder), limits, metrics, loader)
        for name, folder in folders.items()
    }
    server = Server(models, limits, metrics, poll_seconds)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(server.watch())
        yield
        server.draining = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for model in server.models.values():
            await model.close()

    app = Starlette(
        routes=routes(),
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    app.state.server = server
    return app


def routes() -> list[Route]:
    """Return the routes."""
    rest, inference, own = "tensorflow_serving", "open_inference", "server"
    table = [
        ("GET", "/", own, _page),
        ("GET", "/openapi.json", own, _openapi),
        ("GET", "/metrics", own, _metrics),
        ("GET", "/v1/models", own, _models),
        ("GET", "/v2", inference, _server),
        ("GET", "/v2/health/live", inference, _live),
        ("GET", "/v2/health/ready", inference, _ready),
        ("POST", "/v1/models/{name}:predict", rest, _predict),
        ("POST", "/v1/models/{name}/versions/{version}:predict", rest, _predict),
        ("POST", "/v1/models/{name}/labels/{label}:predict", rest, _predict),
        ("POST", "/v1/models/{name}:stream", own, _stream),
        ("GET", "/v2/models/{name}", inference, _model),
        ("GET", "/v2/models/{name}/ready", inference, _model_ready),
        ("POST", "/v2/models/{name}/infer", inference, _infer),
        ("GET", "/v2/models/{name}/versions/{version}", inference, _model),
        ("GET", "/v2/models/{name}/versions/{version}/ready", inference, _model_ready),
        ("POST", "/v2/models/{name}/versions/{version}/infer", inference, _infer),
    ]
    for suffix in ("", "/versions/{version}", "/labels/{label}"):
        table += [
            ("GET", "/v1/models/{name}" + suffix, rest, _status),
            ("GET", "/v1/models/{name}" + suffix + "/metadata", rest, _metadata),
        ]
    return [Route(path, _endpoint(protocol, run), methods=[method]) for method, path, protocol, run in table]


def _endpoint(
    protocol: str, run: Callable[[Server, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a route, which answers errors as JSON and counts the request."""

    async def answer(request: Request) -> Response:
        server: Server = request.app.state.server
        try:
            response = await run(server, request)
        except RequestError as error:
            response = _error(error.status, str(error), error.retry_after)
        except ClientDisconnect:
            response = _error(499, "The client has disconnected")
        except Exception:
            LOG.exception("%s %s failed", request.method, request.url.path)
            response = _error(500, "The request failed. The log of the server has the error")
        name = request.path_params.get("name", "")
        labels = (name if name in server.models else "", protocol, str(response.status_code))
        server.metrics.requests.labels(*labels).inc()
        return response

    return answer


def _error(status: int, message: str, retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return _json({"error": message}, status, headers)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return _encoded(requests.encode(value), status, headers)


def _encoded(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, "application/json")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _find(server: Server, request: Request) -> ServedModel:
    name = request.path_params["name"]
    model = server.models.get(name)
    if model is None:
        raise RequestError(
            404, f"The model must be {' or '.join(server.models) or 'loaded'}. Received: {shown(name)}"
        )
    return model


def _number(request: Request) -> int | None:
    """Return the number of the version in a route, if there is one."""
    text = request.path_params.get("version")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RequestError(400, f"The version must be a number. Received: {shown(text)}")
    return int(text)


def _used(
    server: Server, request: Request
) -> contextlib.AbstractContextManager[tuple[versions.Version, versions.Loaded, Batcher]]:
    """Return the context of the version that a request names."""
    return _find(server, request).use(_number(request), request.path_params.get("label"))


async def _body(server: Server, request: Request) -> bytes:
    """Return the body of a request, unless the server drains or the model's queue is full."""
    if server.draining:
        server.metrics.rejections.labels(_find(server, request).name, "draining").inc()
        raise RequestError(503, _DRAINING, 1)
    with _used(server, request) as (_, _, batcher):
        batcher.check_space()  # a rejection must cost little
    return await requests.read(request, server.limits)


async def _predict(server: Server, request: Request) -> Response:
    body = await _body(server, request)
    with _used(server, request) as (_, loaded, batcher):
        rest = tensorflow_serving
        return _encoded(
            await requests.answer(
                request, body, rest.parse, rest.respond, loaded.signatures, batcher, server.limits
            )
        )


async def _infer(server: Server, request: Request) -> Response:
    if "inference-header-content-length" in request.headers:
        raise RequestError(
            400, "The tensors must be JSON. Received: the header Inference-Header-Content-Length"
        )
    body = await _body(server, request)
    with _used(server, request) as (version, loaded, batcher):
        respond = functools.partial(open_inference.respond, request.path_params["name"], version.number)
        return _encoded(
            await requests.answer(
                request, body, open_inference.parse, respond, loaded.signatures, batcher, server.limits
            )
        )


async def _stream(server: Server, request: Request) -> Response:
    document = requests.document(await _body(server, request))
    with contextlib.ExitStack() as stack:
        _, loaded, batcher = stack.enter_context(_used(server, request))
        return await streaming.response(
            document, loaded, batcher, stack, server.limits, server.metrics, request.path_params["name"]
        )


async def _status(server: Server, request: Request) -> Response:
    model, number = _find(server, request), _number(request)
    if label := request.path_params.get("label"):
        with model.use(label=label) as (version, _, _):
            number = version.number
    return _json(tensorflow_serving.status(model, number))


async def _metadata(server: Server, request: Request) -> Response:
    with _used(server, request) as (version, loaded, _):
        name = request.path_params["name"]
        return _json(tensorflow_serving.metadata(name, version.number, loaded.signatures))


async def _model(server: Server, request: Request) -> Response:
    model = _find(server, request)
    with _used(server, request) as (_, loaded, _):
        numbers = [version.number for version in model.versions.values() if version.loaded is not None]
        return _json(open_inference.metadata(model.name, numbers, loaded.signatures))


async def _model_ready(server: Server, request: Request) -> Response:
    if server.draining:
        raise RequestError(503, _DRAINING, 1)
    with _used(server, request) as (version, _, _):
        return _json({"name": request.path_params["name"], "version": str(version.number), "ready": True})


async def _models(server: Server, _: Request) -> Response:
    """The models, their signatures and settings, for the page."""
    return _json(
        {"models": [openapi.description(model) for model in server.models.values() if model.current]}
    )


async def _openapi(server: Server, _: Request) -> Response:
    return _json(openapi.document(server.models.values()))


async def _metrics(server: Server, _: Request) -> Response:
    content = prometheus_client.generate_latest(server.metrics.registry)
    return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)


async def _server(_: Server, __: Request) -> Response:
    return _json({"name": "keras-transformer-serve", "version": serving.__version__, "extensions": []})


async def _live(_: Server, __: Request) -> Response:
    return _json({"live": True})


async def _ready(server: Server, _: Request) -> Response:
    if not server.ready:
        raise RequestError(503, _DRAINING if server.draining else "The models are not loaded yet", 1)
    return _json({"ready": True})


async def _page(_: Server, __: Request) -> Response:
    return HTMLResponse((importlib.resources.files(__package__) / "page.html").read_text(encoding="utf-8"))
