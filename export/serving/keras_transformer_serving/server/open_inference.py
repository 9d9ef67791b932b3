"""The Open Inference Protocol, version 2: `infer`, also with binary tensors, and the metadata of a model."""

import dataclasses
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import keras_transformer_serving as serving
from keras_transformer_serving.bundle import ONNX
from keras_transformer_serving.server import fields, openapi, requests
from keras_transformer_serving.server.api import DRAINING, Api, Json, Server, encoded_response, json_response
from keras_transformer_serving.server.fields import Field
from keras_transformer_serving.server.signatures import RequestError, Signature, truncate_of
from keras_transformer_serving.server.tensorflow_serving import check_fields, find, of_all_rows
from keras_transformer_serving.server.versions import STABLE, Loaded
from keras_transformer_serving.tasks import DEFAULT, DTYPES, Row, Tensor, shown
from keras_transformer_serving.triton import TYPES

_MOST_EMPTY = 2**16
_VERSIONS = ("", "/versions/{version}")
_HEADER = "Inference-Header-Content-Length"
# Clients of KServe and Triton send the last ones, which do not change an answer.
_TABLE = (
    Field("id", fields.STRING),
    Field("inputs", fields.LIST, required=True),
    Field("outputs", fields.LIST),
    Field("parameters", fields.OBJECT, {}),
    Field("model_name", fields.ANYTHING),
    Field("model_version", fields.ANYTHING),
)
_PARAMETERS = (
    *("signature_name", "binary_data_output"),
    *("content_type", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end"),
)
_INDEX = (Field("ready", fields.BOOLEAN, False),)
# Triton's platform and backend of a target; others have the name of the target.
_TRITON = {ONNX: ("onnxruntime_onnx", "onnxruntime")}
_BINARY = "application/octet-stream"
_STATES = {"AVAILABLE": "READY", "END": "UNAVAILABLE"}  # Triton's names of TensorFlow Serving's
_DATATYPES = {names.inference: names for names in DTYPES.values()}


@dataclasses.dataclass(frozen=True)
class Binary:
    """A document and the values of its binary tensors, one after another."""

    document: dict[str, Any]
    values: bytes


def parse(body: Any, signatures: Mapping[str, Signature]) -> tuple[str, list[Row], dict[str, Any]]:
    """Convert a request.

    Args:
        body: the JSON value. Its "parameters" may have a "signature_name", "truncate" to shorten texts that are too
            long, and optional inputs of the signature, which apply to all rows.
        signatures: those of the model, by name.

    Returns:
        The signature's name, the rows, and the request's "id", the names of its "outputs", and of those that are
        "binary".
    """
    if not isinstance(body, dict):
        raise RequestError(400, f"The request must be a JSON object. Received: {shown(body)}")
    values = fields.read(body, _TABLE)
    parameters = values["parameters"]
    name, signature = find(
        signatures, parameters, DEFAULT if DEFAULT in signatures else next(iter(signatures))
    )
    check_fields(parameters, _PARAMETERS, name, signatures, "parameters")
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    columns: dict[str, list[Any]] = {}
    for index, item in enumerate(values["inputs"]):
        input_name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(input_name, str) or input_name not in tensors or input_name in columns:
            raise RequestError(
                400,
                f"`inputs[{index}]` must have one of the names {', '.join(tensors)}, each once. "
                f"Received: {shown(item)}",
            )
        _check_tensor(item, ("name", "shape", "datatype", "data"), ("binary_data_size",), f"inputs[{index}]")
        columns[input_name] = _column(tensors[input_name], item, f"inputs[{index}]")
    names = _names(values["outputs"], signature)
    context: dict[str, Any] = {"outputs": names, "binary": _binary_names(body, parameters, names)}
    if values["id"] is not None:
        context["id"] = values["id"]
    columns = {**of_all_rows(parameters, signature), **columns}
    rows = signature.rows(columns, lambda name, row: f"{name}.data[{row}]", truncate_of(parameters))
    return name, rows, context


def respond(
    model: str,
    version: int,
    signature: Signature,
    outputs: Mapping[str, np.ndarray],
    context: Mapping[str, Any],
) -> dict[str, Any] | Binary:
    """Return the answer, with the values of binary outputs after the document.

    Args:
        model: the model's name.
        version: the number of its version.
        signature: the signature.
        outputs: its outputs (B, …), by name.
        context: the last result of `parse`.
    """
    document: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if "id" in context:
        document["id"] = context["id"]
    document["outputs"], contents = [], []
    for tensor in wanted(signature, context):
        values = outputs[tensor.name]
        output: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.names.inference,
            "shape": list(values.shape),
        }
        if tensor.name in context["binary"]:
            contents.append(to_bytes(tensor, values))
            output["parameters"] = {"binary_data_size": len(contents[-1])}
        else:
            output["data"] = values.reshape(-1)
        document["outputs"].append(output)
    return Binary(document, b"".join(contents)) if contents else document


def wanted(signature: Signature, context: Mapping[str, Any]) -> list[Tensor]:
    """Return the outputs of a signature that a request asks for, in its order."""
    tensors = {tensor.name: tensor for tensor in signature.outputs}
    return [tensors[name] for name in context["outputs"]]


def to_bytes(tensor: Tensor, values: np.ndarray) -> bytes:
    """Return the values of a binary tensor: little-endian numbers, or strings after their lengths."""
    if tensor.dtype == "string":
        return b"".join(
            struct.pack("<I", len(content)) + content
            for content in (str(text).encode(errors="replace") for text in values.reshape(-1).tolist())
        )
    return values.astype(np.dtype(tensor.names.numpy).newbyteorder("<")).tobytes()


def from_bytes(datatype: Any, content: memoryview, place: str) -> list[Any]:
    """Return the values of a binary tensor of a data type of the protocol.

    Args:
        datatype: the data type.
        content: the bytes.
        place: the place of the tensor in the request, for the error.
    """
    names = _DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if names is None:
        raise RequestError(
            400, f"`{place}.datatype` must be {' or '.join(_DATATYPES)}. Received: {shown(datatype)}"
        )
    error = RequestError(
        400, f"`{place}` must have the bytes of values of {datatype}. Received: {len(content)} others"
    )
    if names.numpy is not object:
        dtype = np.dtype(names.numpy).newbyteorder("<")
        if len(content) % dtype.itemsize:
            raise error
        return [*np.frombuffer(content, dtype).tolist()]
    values, position = [], 0
    while position < len(content):
        start = position + 4
        if start > len(content):
            raise error
        (size,) = struct.unpack("<I", content[position:start])
        position = start + size
        if position > len(content):
            raise error
        values.append(bytes(content[start:position]))
    return values


def _with_binary(body: bytes, length: str | None) -> Any:
    """Return the document of a request; the values of binary tensors, after it in the body, are in their "data"."""
    if length is None:
        return requests.parse_json(body)
    if not (length.isascii() and length.isdigit() and int(length[:19]) <= len(body)):
        raise RequestError(
            400,
            f"The header {_HEADER} must be the length of the JSON before the tensors. Received: {shown(length)}",
        )
    document, rest = requests.parse_json(body[: int(length)]), memoryview(body)[int(length) :]
    inputs = document.get("inputs") if isinstance(document, dict) else None
    for index, item in enumerate(inputs if isinstance(inputs, list) else []):
        parameters = item.get("parameters") if isinstance(item, dict) else None
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            continue
        if type(size) is not int or not 0 <= size <= len(rest):
            raise RequestError(
                400,
                f"`inputs[{index}].parameters.binary_data_size` must be from 0 to {len(rest)}, the bytes that are "
                f"left. Received: {shown(size)}",
            )
        item["data"] = from_bytes(item.get("datatype"), rest[:size], f"inputs[{index}]")
        rest = rest[size:]
    if len(rest):
        raise RequestError(400, f"The tensors must have all bytes after the JSON. Received: {len(rest)} more")
    return document


def _binary_names(body: Mapping[str, Any], parameters: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the names of the outputs that are asked for in binary form."""
    default = parameters.get("binary_data_output", False)
    found = []
    for index, name in enumerate(names):
        of_output = (body.get("outputs") or [{}] * len(names))[index].get("parameters") or {}
        binary = of_output.get("binary_data", default)
        if not isinstance(binary, bool):
            raise RequestError(
                400,
                f"`binary_data` and `binary_data_output` must be true or false. Received: {shown(binary)}",
            )
        if binary:
            found.append(name)
    return found


def metadata(name: str, numbers: Sequence[int], loaded: Loaded) -> dict[str, Any]:
    """Return the name, the versions and the tensors of a model's default signature."""
    signature, (platform, _) = _default(loaded.signatures), _triton(loaded)
    inputs, outputs = (
        [
            {
                "name": tensor.name,
                "datatype": tensor.names.inference,
                "shape": [-1, *(-1 if size is None else size for size in tensor.shape)],
            }
            for tensor in tensors
        ]
        for tensors in (signature.inputs, signature.outputs)
    )
    return {
        "name": name,
        "versions": [str(number) for number in numbers],
        "platform": platform,
        "inputs": inputs,
        "outputs": outputs,
    }


def _default(signatures: Mapping[str, Signature]) -> Signature:
    return signatures[DEFAULT if DEFAULT in signatures else next(iter(signatures))]


def _triton(loaded: Loaded) -> tuple[str, str]:
    """Return Triton's names of the platform and the backend that run a model."""
    target = loaded.pipeline.target
    return _TRITON.get(target, (target, target))


def config(name: str, loaded: Loaded, max_rows: int) -> Json:
    """Return the configuration of a model's default signature, as Triton describes it."""
    signature, (platform, backend) = _default(loaded.signatures), _triton(loaded)
    inputs, outputs = (
        [
            {
                "name": tensor.name,
                "data_type": TYPES[tensor.dtype],
                "dims": [-1 if size is None else size for size in tensor.shape] or [1],
                **({} if tensor.shape else {"reshape": {"shape": []}}),
                **({} if tensor.required or tensors is signature.outputs else {"optional": True}),
            }
            for tensor in tensors
        ]
        for tensors in (signature.inputs, signature.outputs)
    )
    return {
        "name": name,
        "platform": platform,
        "backend": backend,
        "max_batch_size": max_rows,
        "input": inputs,
        "output": outputs,
    }


def index(server: Server, ready: bool = False) -> list[dict[str, str]]:
    """Return the versions of all models and their states, or only those that are ready."""
    found = []
    for model in server.models.values():
        for version in model.versions.values():
            state = _STATES.get(version.state, version.state)
            if state == "READY" or not ready:
                entry = {"name": model.name, "version": str(version.number), "state": state}
                found.append({**entry, "reason": version.error})
    return found


def _column(tensor: Tensor, received: Mapping[str, Any], place: str) -> list[Any]:
    """Return the rows of an input tensor, as nested lists."""
    shape, data = received.get("shape"), received.get("data")
    if received.get("datatype") != tensor.names.inference:
        raise RequestError(
            400,
            f"`{place}.datatype` must be {tensor.names.inference}. Received: {shown(received.get('datatype'))}",
        )
    sizes = shape if isinstance(shape, list) else []
    if len(sizes) != 1 + len(tensor.shape) or not all(
        type(size) is int and 0 <= size < 2**31 for size in sizes
    ):
        expected = ", ".join("any" if size is None else str(size) for size in (None, *tensor.shape))
        raise RequestError(400, f"`{place}.shape` must be [{expected}]. Received: {shown(shape)}")
    values = _flat(data, len(sizes)) if isinstance(data, list) else None
    # With an axis of size 0, there are no values, so the other sizes have no limit.
    too_large = math.prod(size or 1 for size in sizes) > max(len(values or ()), _MOST_EMPTY)
    if values is None or len(values) != math.prod(sizes) or too_large:
        raise RequestError(
            400,
            f"`{place}.data` must be a list of {math.prod(sizes)} values, as in `shape`. Received: {shown(data)}",
        )
    for size in reversed(sizes[1:]):
        count = len(values) // size if size else math.prod(sizes[:-1])
        values = [values[index * size : (index + 1) * size] for index in range(count)]
    return values


def _flat(values: list[Any], depth: int) -> list[Any]:
    """Return the entries of nested lists of at most `depth` levels."""
    for _ in range(depth - 1):
        if not any(isinstance(value, list) for value in values):
            break
        values = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
    return values


def _check_tensor(tensor: Json, names: Sequence[str], parameters: Sequence[str], place: str) -> None:
    """Raise a RequestError for an unknown field of a tensor or of its parameters."""
    fields.check(tensor, (*names, "parameters"), place)
    of_tensor = Field(f"{place}.parameters", fields.OBJECT, {}).read(tensor.get("parameters"))
    fields.check(of_tensor, (*parameters, "content_type"), f"{place}.parameters")


def _names(outputs: Any, signature: Signature) -> list[str]:
    """Return the names of the outputs that are asked for, by default and for an empty list all."""
    known = [tensor.name for tensor in signature.outputs]
    if not outputs:
        return known
    names: list[str] = []
    for output in outputs:
        if not isinstance(output, dict) or output.get("name") not in known:
            raise RequestError(
                400, f"`outputs` must have names of {', '.join(known)}. Received: {shown(output)}"
            )
        _check_tensor(output, ("name",), ("binary_data",), f"outputs[{len(names)}]")
        names.append(output["name"])
    return names


async def _infer(server: Server, request: Request) -> Response:
    """Run a model on tensors."""
    body = await server.body(request)
    length = request.headers.get(_HEADER)
    headers: dict[str, str] = {}
    with server.use(request) as (version, loaded, batcher):

        def parsed() -> tuple[str, list[Row], dict[str, Any]]:
            return parse(_with_binary(body, length), loaded.signatures)

        def answer(*arguments: Any) -> Any:
            answered = respond(request.path_params["name"], version.number, *arguments)
            if not isinstance(answered, Binary):
                return answered
            head = requests.encode(answered.document)
            headers[_HEADER] = str(len(head))
            return head + answered.values

        content = await requests.compute(
            request, len(body), parsed, answer, loaded.signatures, batcher, server.limits
        )
    if headers:
        return Response(content, headers=headers, media_type=_BINARY)
    return encoded_response(content)


async def _metadata(server: Server, request: Request) -> Response:
    """The inputs and outputs of a model."""
    model = server.find(request.path_params["name"])
    with server.use(request) as (_, loaded, _):
        numbers = [version.number for version in model.versions.values() if version.loaded is not None]
        return json_response(metadata(model.name, numbers, loaded))


async def _config(server: Server, request: Request) -> Response:
    """The configuration of a model, as Triton describes it."""
    name = server.find(request.path_params["name"]).name
    with server.use(request) as (_, loaded, _):
        return json_response(config(name, loaded, server.limits.max_rows))


async def _index(server: Server, request: Request) -> Response:
    """The versions of all models and their states."""
    body = await requests.read(request, server.limits)
    document = requests.parse_json(body) if body else {}
    if not isinstance(document, dict):
        raise RequestError(400, f"The request must be a JSON object. Received: {shown(document)}")
    return json_response(index(server, fields.read(document, _INDEX)["ready"]))


async def _model_ready(server: Server, request: Request) -> Response:
    """Whether a model is loaded."""
    if server.stopping or server.draining:
        raise RequestError(503, DRAINING, 1)
    with server.use(request) as (version, _, _):
        name = request.path_params["name"]
        return json_response({"name": name, "version": str(version.number), "ready": True})


async def _server(_: Server, __: Request) -> Response:
    """The name, the version and the extensions of the server."""
    name = {"name": "keras-transformer-serve", "version": serving.__version__}
    return json_response({**name, "extensions": ["binary_tensor_data", "model_configuration"]})


async def _live(_: Server, __: Request) -> Response:
    """Whether the process runs."""
    return json_response({"live": True})


async def _ready(server: Server, _: Request) -> Response:
    """Whether all models are loaded."""
    server.check_ready()
    return json_response({"ready": True})


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of the server and of each model."""
    boolean, shape = {"type": "boolean"}, fields.list_of({"type": "integer"})
    tensor: Json = {"name": fields.TEXT, "datatype": {"enum": [*_DATATYPES]}, "shape": shape}
    output = {**tensor, "data": {"type": "array"}, "parameters": {"type": "object"}}
    named = {"model_name": fields.TEXT, "model_version": fields.TEXT}
    outputs = {"outputs": fields.list_of(fields.object_of(output, tensor, others=False))}
    inferred = fields.object_of({**named, **outputs, "id": fields.TEXT}, [*named, *outputs], others=False)
    tensors = fields.list_of(fields.exact_object(tensor))
    described = fields.exact_object(
        {
            **dict.fromkeys(("name", "platform"), fields.TEXT),
            "versions": fields.list_of(fields.TEXT),
            **dict.fromkeys(("inputs", "outputs"), tensors),
        }
    )
    extensions = {"version": fields.TEXT, "extensions": fields.list_of(fields.TEXT)}
    paths: Json = {
        path: {"get": openapi.operation(summary, answer)}
        for path, summary, answer in (
            (
                "/v2",
                "The server's name and version",
                fields.exact_object({"name": fields.TEXT, **extensions}),
            ),
            ("/v2/health/live", "Whether the server runs", fields.exact_object({"live": boolean})),
            ("/v2/health/ready", "Whether every model is loaded", fields.exact_object({"ready": boolean})),
        )
    }
    entry = fields.exact_object(dict.fromkeys(("name", "version", "state", "reason"), fields.TEXT))
    ready = fields.exact_object({"name": fields.TEXT, "version": fields.TEXT, "ready": boolean})
    paths["/v2/repository/index"] = {
        "post": openapi.operation(
            "The versions of all models", fields.list_of(entry), fields.schema([_INDEX])
        )
    }
    for model in server.loaded():
        with model.use(label=STABLE) as (_, loaded, _):
            infer = openapi.of_tensors(loaded.signatures)
        for suffix in _VERSIONS:
            path, parameters = f"/v2/models/{model.name}{suffix}", openapi.parameters(suffix)
            for end, summary, answer in (
                ("", "The tensors of the model", described),
                ("/config", "The configuration of the model", {"type": "object"}),
                ("/ready", "Whether the model is loaded", ready),
            ):
                paths[path + end] = {"get": openapi.operation(summary, answer, None, parameters)}
            operation = openapi.operation(
                "Infer (Open Inference Protocol)", inferred, infer, parameters, other=_BINARY
            )
            paths[f"{path}/infer"] = {"post": operation}
    return paths


API = Api(
    "open_inference",
    (
        ("GET", "/v2", _server),
        ("GET", "/v2/health/live", _live),
        ("GET", "/v2/health/ready", _ready),
        *(("GET", f"/v2/models/{{name}}{suffix}", _metadata) for suffix in _VERSIONS),
        ("POST", "/v2/repository/index", _index),
        *(("GET", f"/v2/models/{{name}}{suffix}/config", _config) for suffix in _VERSIONS),
        *(("GET", f"/v2/models/{{name}}{suffix}/ready", _model_ready) for suffix in _VERSIONS),
        *(("POST", f"/v2/models/{{name}}{suffix}/infer", _infer) for suffix in _VERSIONS),
    ),
    _paths,
    public=("/v2/health/live", "/v2/health/ready"),
)
