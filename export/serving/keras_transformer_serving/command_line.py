"""The command line `keras-transformer-serve`, which needs the extra `server`."""

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import keras_transformer_serving
from keras_transformer_serving.graph_files import CONVERTED, FLOAT32
from keras_transformer_serving.streams import open_closed_streams
from keras_transformer_serving.targets import ServedTarget

if TYPE_CHECKING:
    from keras_transformer_serving.server import Keys, Server

T = TypeVar("T")
DESCRIPTION = (
    "serve exports over HTTP with ONNX Runtime, by TensorFlow Serving's REST and the Open Inference Protocol"
)
_ROUTES = ("", "/openapi.json", "/metrics", "/v2/health/ready")
_MODEL_ROUTES = ("/v1/models/{name}:predict", "/v2/models/{name}/infer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve exports until the process is terminated.

    Args:
        arguments: the arguments of the command line, by default those of the process.

    Returns:
        The exit status: 0 after SIGTERM or SIGINT, or 2 after an error, which is written as one line on standard error.
    """
    open_closed_streams()
    parser = argparse.ArgumentParser("keras-transformer-serve", description=DESCRIPTION)
    version = f"keras-transformer-serving {keras_transformer_serving.__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        run(options)
    except (ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        is_memory = isinstance(error, MemoryError) or "can't start new thread" in str(error)
        if isinstance(error, RuntimeError) and not is_memory:
            raise
        message = "The memory is not sufficient. Raise the limit (ulimit -v)." if is_memory else str(error)
        sys.stderr.write(f"keras-transformer-serve: error: {' '.join(message.splitlines())}\n")
        return 2
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to a parser."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="[NAME=]FOLDER",
        help="an export, or a folder of exports named by version numbers, of which the largest is served",
    )

    def option(name: str, type_: Any, default: Any, text: str, known: Sequence[str] | None = None) -> None:
        shown = "" if default in (None, ()) else "; default: %(default)s"
        action = parser.add_argument(f"--{name}", type=type_, default=default, help=text + shown)
        if known is not None:  # for the completion of a shell
            action.known_values = known  # type: ignore[attr-defined]

    option("host", str, "127.0.0.1", "the address to listen on, or a name; :: for all, of IPv4, too")
    option("port", int, 8501, "the port; 0 for any that is free")
    option(
        "grpc-port", int, None, "the port of the Open Inference Protocol over gRPC, 0 for any; default: none"
    )
    precisions = (FLOAT32, *CONVERTED)
    option("precision", str, FLOAT32, f"{', '.join(precisions)}, if the exports have it", precisions)
    engines = [*ServedTarget.classes]
    text = (
        f"the target whose files are run: {', '.join(engines)}; default: onnx, or the first that can be run"
    )
    option("engine", str, None, text, engines)
    option("threads", int, None, "the number of threads that compute a model; default: one for each core")
    option(
        "providers",
        lambda text: text.split(","),
        None,
        "ONNX Runtime's execution providers, separated by commas, such as CUDAExecutionProvider: all must be usable; "
        "default: CUDA if available, else CPU",
    )
    option("max-batch-size", int, 32, "the maximum number of rows in a batch")
    option("max-latency-ms", float, 0.0, "the maximum time that a row waits for others")
    option("max-queue", int, 256, "the maximum number of rows that wait or are computed")
    option("max-rows", int, 256, "the maximum number of rows of a request")
    option("max-bytes", int, 8 * 2**20, "the maximum size of a request")
    option("max-characters", int, 100_000, "the maximum length of a text")
    option("max-streams", int, 16, "the maximum number of concurrent streams of a model")
    option("max-connections", int, 1024, "the maximum number of connections")
    option("timeout", float, 30.0, "the maximum time of a request, or of each part of a stream, in seconds")
    option(
        "shutdown-delay",
        float,
        0.0,
        "the seconds after SIGTERM in which requests are answered, but the server is not ready, before it shuts down",
    )
    option(
        "api",
        lambda text: [name for name in text.split(",") if name],
        None,
        "the protocols besides TensorFlow Serving's and the Open Inference Protocol, separated by commas; '' for none; "
        "default: all",
    )
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="a file with the keys that requests must have one of: a line for each, with the key and, optionally, its "
        "number of requests per minute",
    )
    option("requests-per-minute", int, None, "the number of requests per minute of a key without a number")
    option(
        "cors-origins",
        lambda text: text.split(","),
        (),
        "the origins, separated by commas, of pages of other servers whose scripts may send requests, or *",
    )
    option(
        "trusted-proxies",
        lambda text: text.split(","),
        (),
        "the addresses and networks, separated by commas, of reverse proxies whose X-Forwarded-Proto, -Host and "
        "-Prefix are read, or *",
    )
    option(
        "root-path", str, "", "the prefix under which a reverse proxy serves the server, such as /translate"
    )
    parser.add_argument(
        "--weights",
        nargs="+",
        default=[],
        metavar="NAME=VERSION:WEIGHT,…",
        help="versions of a model that are served at the same time, and their shares of the requests that name none, "
        "such as es-en=2:95,3:5; default: the largest version",
    )
    option(
        "otlp-endpoint",
        str,
        None,
        "where OpenTelemetry traces are sent to, such as http://localhost:4318/v1/traces; default: no traces",
    )
    option("poll-seconds", float, 2.0, "the interval of the checks for new versions; 0 for none")
    parser.add_argument(
        "--signature-key-file", metavar="FILE", help="a file with the key that exports must be signed with"
    )


def run(options: argparse.Namespace) -> None:
    """Serve exports until the process is terminated.

    Raises:
        ImportError: if the extra `server` is not installed.
        OSError: if the address is in use.
        ValueError: if an argument is wrong, or a model cannot be loaded.
    """
    check_requirements()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("keras_transformer_serving").setLevel(logging.INFO)
    asyncio.run(_serve(options))


def check_requirements() -> None:
    """Raise an ImportError unless the extra `server` is installed.

    Raises:
        MemoryError: if it is installed, but a library cannot be loaded because of a limit of memory.
    """
    try:
        import uvicorn  # noqa: F401

        import keras_transformer_serving.server  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            "The server needs Starlette, uvicorn and prometheus-client, the extra [server]: "
            f"pip install starlette uvicorn prometheus-client. Received: {error}"
        ) from error


async def _serve(options: argparse.Namespace) -> None:
    import uvicorn

    from keras_transformer_serving.server import (
        Limits,
        connections,
        create_app,
        open_inference_grpc,
        tracing,
    )
    from keras_transformer_serving.server.batching import check_seconds

    _check_ports(port=options.port, grpc_port=options.grpc_port)
    check_seconds(shutdown_delay=options.shutdown_delay)
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(Limits)}
    key = pathlib.Path(options.signature_key_file).read_bytes() if options.signature_key_file else None
    tracer, provider = tracing.new_tracer(options.otlp_endpoint) if options.otlp_endpoint else (None, None)
    app = create_app(
        _once("folders", map(_named, options.folders)),
        Limits(**fields),
        poll_seconds=options.poll_seconds,
        apis=options.api,
        keys=_keys(options),
        cors_origins=options.cors_origins,
        trusted_proxies=options.trusted_proxies,
        root_path=options.root_path,
        weights=_once("--weights", map(_weights, options.weights)),
        tracer=tracer,
        precision=options.precision,
        engine=options.engine,
        threads=options.threads,
        providers=options.providers,
        signature_key=key,
    )
    state: Server = app.state.server

    class Uvicorn(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Drain, after the delay of the first signal; a SIGINT while draining ends the process without waiting."""
            logging.getLogger("keras_transformer_serving.server").info(
                "%s: finishing %d requests", signal.Signals(sig).name, state.active
            )
            if state.draining and sig == signal.SIGINT:
                self.force_exit = True
            delay = 0.0 if state.stopping else options.shutdown_delay
            state.stopping = True
            # Called in the loop's thread, but between any two of its instructions.
            loop.call_soon_threadsafe(loop.call_later, delay, self.drain)

        def drain(self) -> None:
            """Reject new requests, and end after those that are being answered."""
            state.draining = self.should_exit = True

    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in _listening(options.host, options.port)]
        if options.grpc_port is not None:
            await open_inference_grpc.listen(state, _grpc_address(options))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=connections.Connection,
            proxy_headers=False,  # `Proxies` reads more of them
            timeout_keep_alive=75,  # longer than the timeout of proxies, so that they close the connection
            limit_concurrency=options.max_connections,
            timeout_graceful_shutdown=int(options.timeout) + 1,
            lifespan="on",
        )
        server = Uvicorn(config)
        serving = asyncio.create_task(server.serve(sockets))
        started = asyncio.create_task(state.started.wait())
        await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
        without = {name: model for name, model in state.models.items() if model.current is None}
        if len(without) < len(state.models):  # a package that one model lacks does not stop the others
            without = {name: model for name, model in without.items() if not model.lacks_package}
        errors = [
            version.error or "no versions"
            for model in without.values()
            for version in model.versions.values()
        ]
        missing = [
            f"{name}={model.source}{'' if os.path.isdir(str(model.source)) else ', which is not a folder'}"
            for name, model in without.items()
        ]
        if missing and not server.should_exit:
            server.should_exit = True
            await serving
            raise ValueError(
                f"`folders` must be exports, or folders of exports named by version numbers. "
                f"Received: {', '.join(missing)}{'. ' if errors else ''}{' '.join(errors)}"
            )
        started.cancel()
        if not server.should_exit:
            host, port = sockets[0].getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            routes = [
                *_ROUTES,
                *(route.format(name=name) for name in state.models for route in _MODEL_ROUTES),
            ]
            sys.stdout.write("".join(f"{address}{route}\n" for route in routes))
            if state.grpc_port is not None:
                sys.stdout.write(f"grpc://{host}:{state.grpc_port}\n")
            sys.stdout.flush()
        await serving
    if provider is not None:
        provider.shutdown()  # sends the last spans
    logging.getLogger("keras_transformer_serving.server").info("stopped")


def _listening(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on each address of a host; that of all addresses of IPv6 listens on IPv4, too."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OSError(f"`--host` must be an address or a name. Received: --host={host} ({error})") from None
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, _, _, _, (address, _, *others) in dict.fromkeys(found):
        both = address == "::" and socket.has_dualstack_ipv6()
        try:
            new = socket.create_server(
                (address, port, *others), family=family, backlog=2048, dualstack_ipv6=both
            )
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for each in sockets:
                    each.close()
                raise
            missing = error  # a name can have an address of IPv6 on a machine without it
            continue
        # Without it, the kernel delays the second packet of a response by 40 ms; asyncio sets it only where the socket
        # names its protocol.
        new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.append(new)
        port = new.getsockname()[1]
    if missing is not None and not sockets:
        raise missing
    return sockets


def _keys(options: argparse.Namespace) -> "Keys | None":
    from keras_transformer_serving.server import Keys

    per_minute = options.requests_per_minute
    if per_minute is not None and (per_minute < 1 or options.api_key_file is None):
        raise ValueError(
            "`--requests-per-minute` must be positive, beside `--api-key-file`. "
            f"Received: --requests-per-minute={per_minute}"
        )
    if options.api_key_file is None:
        return None
    try:
        lines = pathlib.Path(options.api_key_file).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`--api-key-file` must be a file of UTF-8. Received: {options.api_key_file} with another byte at "
            f"{error.start}"
        ) from None
    return Keys(lines, per_minute)


def _check_ports(**ports: int | None) -> None:
    """Raise a ValueError if an option is not a port; None is none."""
    for name, port in ports.items():
        if port is not None and not 0 <= port < 2**16:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"`{option}` must be in [0, 65535]. Received: {option}={port}")


def _grpc_address(options: argparse.Namespace) -> str:
    return (
        f"[{options.host}]:{options.grpc_port}"
        if ":" in options.host
        else f"{options.host}:{options.grpc_port}"
    )


def _once(argument: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the values of an argument by name."""
    values: dict[str, T] = {}
    for name, value in named:
        if name in values:
            raise ValueError(
                f"`{argument}` must have each name once, as in FIRST=… SECOND=… Received: {name}={values[name]} and "
                f"{name}={value}"
            )
        values[name] = value
    return values


def _weights(text: str) -> tuple[str, dict[int, float]]:
    """Return the name and the weights by version of an argument NAME=VERSION:WEIGHT,…"""
    name, _, shares = text.partition("=")
    pairs = [share.partition(":") for share in shares.split(",")]
    try:
        return name, {int(version): float(weight) for version, _, weight in pairs}
    except ValueError:
        raise ValueError(
            f"`--weights` must be of the form NAME=VERSION:WEIGHT,… Received: --weights={text}"
        ) from None


def _named(text: str) -> tuple[str, str]:
    """Return the name and the folder of an argument [NAME=]FOLDER; the name is by default the folder's."""
    name, separator, folder = text.partition("=")
    if separator and not pathlib.Path(text).exists():
        return name, folder
    path = pathlib.Path(text).absolute()
    return (path.parent if path.name.isdigit() else path).name, text
