"""A Ray Serve application: replicas of the server of an export, each a process on some machine of a Ray cluster.

    serve run --app-dir export/ray_serve app:application bundle=runs/quickstart/export name=es-en replicas=2

It needs `pip install 'keras-transformer-serving[server,cpu,tokenizers]' 'ray[serve]'`. The routes are those of
`keras-transformer-serve`, on Ray Serve's port 8000. The export must be at the same place on every machine.
"""

import contextlib
import pathlib
import sys
from collections.abc import AsyncIterator, Mapping

from ray import cloudpickle, serve
from starlette.applications import Starlette

from keras_transformer_serving.server import Limits, create_app

# Replicas get this module's code from Ray, and need not find its file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_ARGUMENTS = {"bundle": "", "name": "model", "replicas": "2", "threads": "1", "precision": "float32"}


def application(arguments: Mapping[str, str]) -> serve.Application:
    """Return the application, for `serve run` or `ray.serve.run`.

    Args:
        arguments: "bundle", the folder of the export; optionally "name", the model's name in routes, by default
            "model"; "replicas", the number of replicas, by default 2; "threads", the CPUs of a replica, by default 1;
            and "precision", by default "float32".

    Raises:
        ValueError: if an argument is unknown or wrong, or there is no "bundle".
    """
    if not arguments.get("bundle") or arguments.keys() - _ARGUMENTS.keys():
        raise ValueError(
            f"`arguments` must be of {', '.join(_ARGUMENTS)}, and have a bundle. Received: {dict(arguments)}"
        )
    settings = {**_ARGUMENTS, **arguments}
    counts = {key: settings[key] for key in ("replicas", "threads")}
    if not all(str(value).isdecimal() and int(value) > 0 for value in counts.values()):
        raise ValueError(
            f"`arguments` must have positive numbers of replicas and threads. Received: {counts}"
        )
    bundle, threads = str(pathlib.Path(settings["bundle"]).resolve()), int(settings["threads"])

    def build() -> Starlette:
        return _app(bundle, settings["name"], threads, settings["precision"])

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="keras_transformer_serving",
        num_replicas=int(settings["replicas"]),
        # The server's batches are formed of concurrent requests, and its queue rejects what is too much.
        max_ongoing_requests=Limits().max_queue,
        ray_actor_options={"num_cpus": threads},
        graceful_shutdown_timeout_s=Limits().timeout,
        health_check_period_s=5,
    )
    return deployment.bind()


def _app(bundle: str, name: str, threads: int, precision: str) -> Starlette:
    """Return the server of one replica, whose lifespan starts when the export is loaded and warm."""
    app = create_app({name: bundle}, threads=threads, precision=precision)
    server, lifespan = app.state.server, app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def loaded(app: Starlette) -> AsyncIterator[None]:
        async with lifespan(app):
            await server.started.wait()
            if not server.ready:
                versions = server.models[name].versions.values()
                raise RuntimeError(
                    " ".join(version.error for version in versions) or f"no export in {bundle}"
                )
            yield

    app.router.lifespan_context = loaded
    return app
