"""The Open Inference Protocol over gRPC; needs the extra `grpc`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import keras_transformer_serving as serving
from keras_transformer_serving import protobuf
from keras_transformer_serving.server import open_inference, requests
from keras_transformer_serving.server.api import DRAINING, FAILED, Json, Server, parse_version
from keras_transformer_serving.server.keys import key_of
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.tasks import Row, shown

LOG = logging.getLogger("keras_transformer_serving.server")
SERVICE = "inference.GRPCInferenceService"
_CODES = {
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# Triton's data types in the order of their numbers.
_TYPES = (
    "TYPE_INVALID",
    "TYPE_BOOL",
    *(f"TYPE_{kind}{bits}" for kind in ("UINT", "INT") for bits in (8, 16, 32, 64)),
)
_TYPES += ("TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING")
_PUBLIC = ("ServerLive", "ServerReady")
_Method = Callable[[Server, bytes], Awaitable[bytes]]
_Fields = dict[int, list[Any]]


async def listen(server: Server, address: str) -> None:
    """Start to answer calls at an address, such as "127.0.0.1:8001", by `server.grpc_server`.

    Raises:
        ImportError: if gRPC is not installed.
        OSError: if the address is in use.
    """
    try:
        import grpc
    except ModuleNotFoundError as error:
        raise ImportError(
            f"gRPC needs grpcio, the extra [grpc]: pip install grpcio. Received: {error}"
        ) from error

    options = [("grpc.max_receive_message_length", server.limits.max_bytes), ("grpc.so_reuseport", 0)]
    listening = grpc.aio.server(options=options)

    def handler(name: str, method: _Method) -> Any:
        async def answer(content: bytes, context: Any) -> bytes:
            try:
                if server.keys is not None and name not in _PUBLIC:
                    metadata = context.invocation_metadata() or ()
                    server.keys.check(
                        key_of({key: value for key, value in metadata if isinstance(value, str)})
                    )
                result = await method(server, content)
            except RequestError as error:
                status, message = error.status, str(error)
            except Exception:
                LOG.exception("%s failed", name)
                status, message = 500, FAILED
            else:
                server.metrics.requests.labels("", "grpc", "200").inc()
                return result
            server.metrics.requests.labels("", "grpc", str(status)).inc()
            await context.abort(grpc.StatusCode[_CODES.get(status, "INVALID_ARGUMENT")], message)
            raise AssertionError  # abort raises

        return grpc.unary_unary_rpc_method_handler(answer)

    handlers = {name: handler(name, method) for name, method in _METHODS.items()}
    listening.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        server.grpc_port = listening.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on {address}. Received: {error}") from None
    await listening.start()
    server.grpc_server = listening


class _Call:
    """A call as `requests.compute` watches it: gRPC cancels it if the client disconnects."""

    async def receive(self) -> Any:
        """Wait until the call is cancelled."""
        await asyncio.Event().wait()


async def _infer(server: Server, content: bytes) -> bytes:
    fields = _fields(content)
    if server.draining:
        raise RequestError(503, DRAINING, 1)
    model = server.find(_string(fields, 1))
    with model.use(_version(fields)) as (version, loaded, batcher):
        batcher.check_space()

        def parsed() -> tuple[str, list[Row], Json]:
            return open_inference.parse(_document(fields), loaded.signatures)

        def respond(signature: Signature, outputs: Mapping[str, np.ndarray], context: Json) -> bytes:
            tensors = open_inference.wanted(signature, context)
            described = [
                _tensor(tensor.name, tensor.names.inference, outputs[tensor.name].shape) for tensor in tensors
            ]
            values = [open_inference.to_bytes(tensor, outputs[tensor.name]) for tensor in tensors]
            return protobuf.message(
                (1, model.name),
                (2, str(version.number)),
                (3, context.get("id", "")),
                *((5, tensor) for tensor in described),
                *((6, raw) for raw in values),
            )

        return await requests.compute(
            _Call(), len(content), parsed, respond, loaded.signatures, batcher, server.limits
        )


def _document(fields: _Fields) -> Json:
    """Return a request as the document of the protocol over HTTP."""
    raw = iter(fields.get(7, []))
    inputs = []
    for index, entry in enumerate(fields.get(5, [])):
        tensor = _fields(entry)
        datatype, place = _string(tensor, 2), f"inputs[{index}]"
        if 5 in tensor:
            data = _contents(_fields(tensor[5][-1]), place)
        elif (content := next(raw, None)) is not None:
            data = open_inference.from_bytes(datatype, _bytes(content), place)
        else:
            raise RequestError(400, f"`{place}` must have contents, or raw_input_contents. Received: none")
        shape = [_signed(number) for value in tensor.get(3, []) for number in protobuf.integers(value)]
        described = {"name": _string(tensor, 1), "datatype": datatype, "shape": shape}
        inputs.append({**described, "data": data, "parameters": dict(_parameters(tensor.get(4, [])))})
    if next(raw, None) is not None:
        raise RequestError(
            400, f"`raw_input_contents` must have the values of {len(inputs)} inputs. Received: more"
        )
    document: Json = {"inputs": inputs, "parameters": dict(_parameters(fields.get(4, [])))}
    if 6 in fields:
        document["outputs"] = [
            {"name": _string(output, 1), "parameters": dict(_parameters(output.get(2, [])))}
            for output in map(_fields, fields[6])
        ]
    return {**document, "id": _string(fields, 3)} if 3 in fields else document


def _contents(fields: _Fields, place: str) -> list[Any]:
    """Return the values of a tensor's typed contents."""
    values: list[Any] = []
    for number, entries in fields.items():
        for entry in entries:
            if number == 8:
                values.append(bytes(_bytes(entry)))
            elif number == 6:
                values += np.frombuffer(entry, "<f4").tolist() if isinstance(entry, memoryview) else [entry]
            elif number in (1, 2, 3):
                values += map(bool if number == 1 else _signed, protobuf.integers(entry))
            else:
                raise RequestError(
                    400,
                    f"`{place}.contents` must be of bool, int, int64, fp32 or bytes. Received: the field {number}",
                )
    return values


def _parameters(entries: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for entry in entries:
        fields = _fields(entry)
        for number, values in _fields(fields.get(2, [b""])[-1]).items():
            value = values[-1]
            if number == 1:
                value = bool(value)
            elif number == 2:
                value = _signed(value)
            elif isinstance(value, memoryview):
                value = _text(value)
            yield _string(fields, 1), value


async def _server_live(_: Server, __: bytes) -> bytes:
    return protobuf.message((1, True))


async def _server_ready(server: Server, _: bytes) -> bytes:
    return protobuf.message((1, server.ready))


async def _model_ready(server: Server, content: bytes) -> bytes:
    fields = _fields(content)
    try:
        with server.find(_string(fields, 1)).use(_version(fields)):
            return protobuf.message((1, not (server.stopping or server.draining)))
    except RequestError:
        return protobuf.message((1, False))


async def _server_metadata(_: Server, __: bytes) -> bytes:
    return protobuf.message((1, "keras-transformer-serve"), (2, serving.__version__))


async def _model_metadata(server: Server, content: bytes) -> bytes:
    fields = _fields(content)
    model = server.find(_string(fields, 1))
    with model.use(_version(fields)) as (_, loaded, _):
        numbers = [version.number for version in model.versions.values() if version.loaded is not None]
        found = open_inference.metadata(model.name, numbers, loaded)
    return protobuf.message(
        (1, found["name"]),
        *((2, version) for version in found["versions"]),
        (3, found["platform"]),
        *(
            (number, _tensor(tensor["name"], tensor["datatype"], tensor["shape"]))
            for number, name in ((4, "inputs"), (5, "outputs"))
            for tensor in found[name]
        ),
    )


async def _model_config(server: Server, content: bytes) -> bytes:
    fields = _fields(content)
    model = server.find(_string(fields, 1))
    with model.use(_version(fields)) as (_, loaded, _):
        found = open_inference.config(model.name, loaded, server.limits.max_rows)

    def described(tensor: Json, dims: int, **flags: int) -> bytes:
        sizes = b"".join(protobuf.varint(size % 2**64) for size in tensor["dims"])
        entries = [(1, tensor["name"]), (2, _TYPES.index(tensor["data_type"])), (dims, sizes)]
        entries += [(5, b"")] if "reshape" in tensor else []
        return protobuf.message(*entries, *((flags[name], True) for name in flags if name in tensor))

    config = protobuf.message(
        (1, found["name"]),
        (2, found["platform"]),
        (17, found["backend"]),
        (4, found["max_batch_size"]),
        *((5, described(tensor, 4, optional=8)) for tensor in found["input"]),
        *((6, described(tensor, 3)) for tensor in found["output"]),
    )
    return protobuf.message((1, config))


async def _index(server: Server, content: bytes) -> bytes:
    ready = bool(_fields(content).get(2, [False])[-1])
    entries = (
        protobuf.message(*enumerate(entry.values(), 1)) for entry in open_inference.index(server, ready)
    )
    return protobuf.message(*((1, entry) for entry in entries))


_METHODS: Mapping[str, _Method] = {
    "ServerLive": _server_live,
    "ServerReady": _server_ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server_metadata,
    "ModelMetadata": _model_metadata,
    "ModelConfig": _model_config,
    "RepositoryIndex": _index,
    "ModelInfer": _infer,
}


def _tensor(name: str, datatype: str, shape: Iterable[int]) -> bytes:
    return protobuf.message((1, name), (2, datatype), (3, b"".join(map(protobuf.varint, shape))))


def _fields(content: Any) -> _Fields:
    """Return the values of the fields of a message, by number."""
    found: _Fields = {}
    try:
        for number, value in protobuf.fields(_bytes(content)):
            found.setdefault(number, []).append(value)
    except ValueError:
        raise RequestError(
            400, "The request must be a message of the protocol. Received: other bytes"
        ) from None
    return found


def _bytes(value: Any) -> memoryview:
    if isinstance(value, bytes | memoryview):
        return memoryview(value)
    raise RequestError(400, f"The request must be a message of the protocol. Received: {shown(value)}")


def _text(value: Any) -> str:
    try:
        return bytes(_bytes(value)).decode()
    except UnicodeDecodeError:
        raise RequestError(400, "Strings must be UTF-8. Received: other bytes") from None


def _string(fields: _Fields, number: int) -> str:
    return _text(fields.get(number, [b""])[-1])


def _version(fields: _Fields) -> int | None:
    text = _string(fields, 2)
    return parse_version(text) if text else None


def _signed(number: Any) -> int:
    """Return the signed integer of 64 bits of a number of variable length."""
    return int(number) - (1 << 64) if int(number) >= 1 << 63 else int(number)
