"""The Open Inference Protocol, version 2: `infer` and the metadata of a model."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

import keras_transformer_serving as serving
from keras_transformer_serving.server import openapi, requests
from keras_transformer_serving.server.api import DRAINING, Api, Json, Server, encoded_response, json_response
from keras_transformer_serving.server.signatures import TRUNCATE, RequestError, Signature, json_values
from keras_transformer_serving.server.tensorflow_serving import find, of_all_rows
from keras_transformer_serving.tasks import DEFAULT, Row, Tensor, shown

_MOST_EMPTY = 2**16
_VERSIONS = ("", "/versions/{version}")


def parse(body: Any, signatures: Mapping[str, Signature]) -> tuple[str, list[Row], dict[str, Any]]:
    """Convert a request.

    Args:
        body: the JSON value. Its "parameters" may have a "signature_name", "truncate" to shorten texts that are too
            long, and optional inputs of the signature, which apply to all rows.
        signatures: those of the model, by name.

    Returns:
        The signature's name, the rows, and the request's "id" and names of "outputs", if it has them.

    Raises:
        RequestError: if the request is wrong.
    """
    if not isinstance(body, dict) or not isinstance(body.get("inputs"), list):
        raise RequestError(
            400, f'The request must be an object with a list "inputs". Received: {shown(body)}'
        )
    parameters = body.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(400, f"`parameters` must be an object. Received: {shown(parameters)}")
    name = parameters.get("signature_name", DEFAULT if DEFAULT in signatures else next(iter(signatures)))
    signature = find(signatures, name)
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    columns: dict[str, list[Any]] = {}
    for index, item in enumerate(body["inputs"]):
        input_name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(input_name, str) or input_name not in tensors or input_name in columns:
            raise RequestError(
                400,
                f"`inputs[{index}]` must have one of the names {', '.join(tensors)}, each once. "
                f"Received: {shown(item)}",
            )
        columns[input_name] = _column(tensors[input_name], item, f"inputs[{index}]")
    context: dict[str, Any] = {"outputs": _names(body.get("outputs"), signature)}
    if "id" in body:
        if not isinstance(body["id"], str):
            raise RequestError(400, f"`id` must be a string. Received: {shown(body['id'])}")
        context["id"] = body["id"]
    columns = {**of_all_rows(parameters, signature), **columns}
    truncate = parameters.get(TRUNCATE, False)
    return name, signature.rows(columns, lambda name, row: f"{name}.data[{row}]", truncate), context


def respond(
    model: str,
    version: int,
    signature: Signature,
    outputs: Mapping[str, np.ndarray],
    context: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the answer.

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
    document["outputs"] = [
        {
            "name": tensor.name,
            "datatype": tensor.names.inference,
            "shape": list(outputs[tensor.name].shape),
            "data": json_values(outputs[tensor.name].reshape(-1)),
        }
        for tensor in signature.outputs
        if tensor.name in context["outputs"]
    ]
    return document


def metadata(name: str, numbers: Sequence[int], signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return the name, the versions and the tensors of a model's default signature."""
    signature = signatures[DEFAULT if DEFAULT in signatures else next(iter(signatures))]
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
        "platform": "onnxruntime_onnx",
        "inputs": inputs,
        "outputs": outputs,
    }


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


def _names(outputs: Any, signature: Signature) -> list[str]:
    """Return the names of the outputs that are asked for, by default all."""
    known = [tensor.name for tensor in signature.outputs]
    if outputs is None:
        return known
    if not isinstance(outputs, list):
        raise RequestError(400, f"`outputs` must be a list. Received: {shown(outputs)}")
    names = []
    for output in outputs:
        if not isinstance(output, dict) or output.get("name") not in known:
            raise RequestError(
                400, f"`outputs` must have names of {', '.join(known)}. Received: {shown(output)}"
            )
        names.append(output["name"])
    return names


async def _infer(server: Server, request: Request) -> Response:
    if "inference-header-content-length" in request.headers:
        raise RequestError(
            400, "The tensors must be JSON. Received: the header Inference-Header-Content-Length"
        )
    body = await server.body(request)
    with server.use(request) as (version, loaded, batcher):
        answer = functools.partial(respond, request.path_params["name"], version.number)
        content = await requests.answer(
            request, body, parse, answer, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


async def _metadata(server: Server, request: Request) -> Response:
    model = server.find(request.path_params["name"])
    with server.use(request) as (_, loaded, _):
        numbers = [version.number for version in model.versions.values() if version.loaded is not None]
        return json_response(metadata(model.name, numbers, loaded.signatures))


async def _model_ready(server: Server, request: Request) -> Response:
    if server.draining:
        raise RequestError(503, DRAINING, 1)
    with server.use(request) as (version, _, _):
        name = request.path_params["name"]
        return json_response({"name": name, "version": str(version.number), "ready": True})


async def _server(_: Server, __: Request) -> Response:
    name = {"name": "keras-transformer-serve", "version": serving.__version__}
    return json_response({**name, "extensions": []})


async def _live(_: Server, __: Request) -> Response:
    return json_response({"live": True})


async def _ready(server: Server, _: Request) -> Response:
    server.check_ready()
    return json_response({"ready": True})


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of the server and of each model."""
    anything = {"type": "object"}
    paths: Json = {
        path: {"get": openapi.operation(summary, anything)}
        for path, summary in {
            "/v2": "The server's name and version",
            "/v2/health/live": "Whether the server runs",
            "/v2/health/ready": "Whether every model is loaded",
        }.items()
    }
    for model in server.loaded():
        with model.use() as (_, loaded, _):
            infer = openapi.of_tensors(loaded.signatures)
        for suffix in _VERSIONS:
            path, parameters = f"/v2/models/{model.name}{suffix}", openapi.parameters(suffix)
            for end, method, summary, request in (
                ("", "get", "The tensors of the model", None),
                ("/ready", "get", "Whether the model is loaded", None),
                ("/infer", "post", "Infer (Open Inference Protocol)", infer),
            ):
                paths[path + end] = {method: openapi.operation(summary, anything, request, parameters)}
    return paths


API = Api(
    "open_inference",
    (
        ("GET", "/v2", _server),
        ("GET", "/v2/health/live", _live),
        ("GET", "/v2/health/ready", _ready),
        *(("GET", f"/v2/models/{{name}}{suffix}", _metadata) for suffix in _VERSIONS),
        *(("GET", f"/v2/models/{{name}}{suffix}/ready", _model_ready) for suffix in _VERSIONS),
        *(("POST", f"/v2/models/{{name}}{suffix}/infer", _infer) for suffix in _VERSIONS),
    ),
    _paths,
    public=("/v2/health/live", "/v2/health/ready"),
)
