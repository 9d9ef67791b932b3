"""The ASGI application: routes, limits, life cycle."""

import asyncio
import contextlib
import functools
import html
import importlib.metadata
import importlib.resources
import os
import pathlib
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import prometheus_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Match, Route

from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.server import (
    generating,
    libre_translate,
    open_inference,
    open_inference_grpc,
    openai,
    openapi,
    requests,
    streaming,
    tensorflow_serving,
    text_embeddings,
    versions,
)
from keras_transformer_serving.server.api import Api, Json, Server, json_response, specification
from keras_transformer_serving.server.batching import Limits, check_seconds
from keras_transformer_serving.server.keys import Keys
from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.proxies import Proxies
from keras_transformer_serving.server.signatures import RequestError
from keras_transformer_serving.server.versions import ServedModel
from keras_transformer_serving.tasks import ExportedPipeline

APIS = {api.name: api for api in (openai.API, text_embeddings.API, libre_translate.API)}
"""The protocols that can be switched off, by name."""


def create_app(
    folders: Mapping[str, str | os.PathLike[str] | ExportedPipeline],
    limits: Limits | None = None,
    *,
    poll_seconds: float = 2.0,
    apis: Sequence[str | Api] | None = None,
    keys: Keys | None = None,
    cors_origins: Sequence[str] = (),
    trusted_proxies: Sequence[str] = (),
    root_path: str = "",
    weights: Mapping[str, Mapping[int, float]] | None = None,
    grpc_address: str | None = None,
    tracer: Any = None,
    **options: Any,
) -> Starlette:
    """Return an ASGI application that serves exports.

    Args:
        folders: for each model's name an export, or a folder of exports named by their version numbers, of which the
            largest is served; or a pipeline, such as that of `served` of a pipeline of `keras_transformer.pipelines`.
        limits: the limits of the server.
        poll_seconds: the time between two looks for new versions; 0 for none.
        apis: the protocols besides TensorFlow Serving's and the Open Inference Protocol, by default all of `APIS`: an
            `Api`, or a name in `APIS` or of an entry point in the group "keras_transformer_serving.apis".
        keys: the keys that requests must have one of; None for none.
        cors_origins: the origins of pages of other servers whose scripts may send requests, or "*" for any.
        trusted_proxies: the addresses and networks of reverse proxies whose `X-Forwarded-Proto`, `X-Forwarded-Host` and
            `X-Forwarded-Prefix` are read, or "*" for any.
        root_path: the prefix under which a proxy serves the application, such as "/translate".
        weights: for names of models the versions that are served at the same time, with their shares of the requests
            that name no version.
        grpc_address: the address at which calls of the Open Inference Protocol over gRPC are answered, such as
            "127.0.0.1:8001"; None for none. It needs the extra `grpc`.
        tracer: an OpenTelemetry tracer, which traces requests; None for none.
        **options: `threads`, the number of threads that compute, by default one for each core, and those of
            `keras_transformer_serving.load`.

    Returns:
        The application. Its lifespan loads the models; `app.state.server` is its `Server`.

    Raises:
        ValueError: if a name cannot be part of a route, a protocol is unknown, weights are wrong, `poll_seconds` is
            negative, or an origin, an address of a proxy or a prefix is none.
    """
    limits = limits or Limits()
    check_seconds(poll_seconds=poll_seconds)
    origins = [*map(_origin, cors_origins)]
    middleware = [Middleware(Proxies, trusted_proxies, root_path)]
    Proxies(Starlette(), trusted_proxies, root_path)  # Starlette creates it at the first request
    if origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Retry-After"],
            )
        )
    chosen = APIS.values() if apis is None else map(_api, apis)
    for name in folders:
        if not name or not all(character.isalnum() or character in "._-" for character in name):
            raise ValueError(
                "`folders` must have names of letters, digits, '.', '_' and '-', on the command line NAME=FOLDER. "
                f"Received: {name!r}"
            )
    if others := [name for name in weights or {} if name not in folders]:
        raise ValueError(f"`weights` must be of {', '.join(folders)}. Received: {', '.join(others)}")
    metrics = Metrics()
    loader = functools.partial(versions.load, max_batch_size=limits.max_batch_size, **options)
    models = {
        name: ServedModel(
            name,
            source if isinstance(source, ExportedPipeline) else pathlib.Path(source),
            limits,
            metrics,
            loader,
            (weights or {}).get(name),
        )
        for name, source in folders.items()
    }
    protocols = (API, tensorflow_serving.API, open_inference.API, *chosen)
    server = Server(models, limits, metrics, poll_seconds, protocols, keys, tracer)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(server.watch())
        if grpc_address is not None:
            await open_inference_grpc.listen(server, grpc_address)
        yield
        server.draining = True
        if server.grpc_server is not None:
            await server.grpc_server.stop(limits.timeout)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for model in server.models.values():
            await model.close()

    app = Starlette(
        routes=[
            Route(path, api.endpoint(path, run, errors), methods=[method], name=errors.name)
            for api in protocols
            for method, path, run in api.routes
            for errors in [next((each for each in protocols if path in each.errors_at), api)]
        ],
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    app.state.server = server
    return app


def _origin(text: str) -> str:
    """Return an origin as browsers write it, without a final slash and the port that its scheme has by default."""
    parts = urllib.parse.urlsplit(text.strip())
    if text.strip() == "*":
        return "*"
    if not (parts.scheme and parts.netloc) or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"`cors_origins` must be of the form https://example.com, or *. Received: {text}")
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.removesuffix(default)}".lower()


def _api(api: str | Api) -> Api:
    """Return a protocol by its name, which may be that of an entry point."""
    if isinstance(api, Api):
        return api
    if api in APIS:
        return APIS[api]
    for entry_point in importlib.metadata.entry_points(group="keras_transformer_serving.apis", name=api):
        found: Api = entry_point.load()
        return found
    raise ValueError(f"`apis` must be of {', '.join(APIS)}. Received: {api}")


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the answer to a request without a route: with the errors of the protocol of its path."""
    assert isinstance(error, HTTPException)
    server: Server = request.app.state.server
    path = request.scope["path"].removeprefix(request.scope["root_path"])
    of_path = {route.name for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE}
    below = {api.name for api in server.apis if api.errors_below and path.startswith(api.errors_below)}
    api = next((api for api in server.apis if api.name in (of_path or below)), API)
    response = api.failed(RequestError(error.status_code, f"{error.detail}. /openapi.json lists the routes"))
    response.headers.update(error.headers or {})
    return response


async def _stream(server: Server, request: Request) -> Response:
    """Stream a text as server-sent events."""
    document = requests.parse_json(await server.body(request))
    with contextlib.ExitStack() as stack:
        _, loaded, batcher = stack.enter_context(server.use(request))
        return await streaming.response(
            document, loaded, batcher, stack, server.limits, server.metrics, request.path_params["name"]
        )


async def _models(server: Server, _: Request) -> Response:
    """The models, their signatures and settings, for the page."""
    loaded = server.loaded()
    models = {"models": [openapi.description(model) for model in loaded]}
    data = [keys for model in loaded if (keys := server.model_keys(model))]
    return json_response({"object": "list", "data": data, **models} if data else models)


async def _metrics(server: Server, _: Request) -> Response:
    """The metrics, in Prometheus' format."""
    content = prometheus_client.generate_latest(server.metrics.registry)
    return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)


async def _page(_: Server, request: Request) -> Response:
    """The page to try each model, whose addresses are relative to the prefix of a proxy."""
    content = (importlib.resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    base = f'<base href="{html.escape(request.scope["root_path"])}/">'
    return HTMLResponse(content.replace("<head>", f"<head>\n{base}", 1))


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the server's own routes."""
    paths: Json = {"/v1/models": {"get": openapi.operation("The models", {"type": "object"})}}
    for model in server.loaded():
        with model.use(label=versions.STABLE) as (_, loaded, _):
            pipeline = loaded.pipeline
        if isinstance(pipeline, Generating) and not generating.streams(pipeline):
            paths[f"/v1/models/{model.name}:stream"] = {"post": openapi.of_stream(pipeline)}
    return paths


API = Api(
    "server",
    (
        ("GET", "/", _page),
        ("GET", "/openapi.json", specification),
        ("GET", "/metrics", _metrics),
        ("GET", "/v1/models", _models),
        ("POST", "/v1/models/{name}:stream", _stream),
    ),
    _paths,
    public=("/",),
)
