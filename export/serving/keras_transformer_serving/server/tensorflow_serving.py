"""TensorFlow Serving's REST protocol: `:predict`, the status and the metadata of a model."""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer_serving.server import fields, openapi, requests
from keras_transformer_serving.server.api import (
    Api,
    Json,
    Server,
    encoded_response,
    json_response,
    version_number,
)
from keras_transformer_serving.server.signatures import (
    TRUNCATE,
    RequestError,
    Signature,
    truncate_of,
)
from keras_transformer_serving.server.versions import STABLE, ServedModel, Version
from keras_transformer_serving.tasks import DEFAULT, Row, Tensor, shown

_VERSIONS = ("", "/versions/{version}", "/labels/{label}")


def parse(body: Any, signatures: Mapping[str, Signature]) -> tuple[str, list[Row], str]:
    """Convert a request.

    Args:
        body: the JSON value. It may have a "signature_name", "truncate" to shorten texts that are too long, and
            optional inputs of the signature, which apply to all rows.
        signatures: those of the model, by name.

    Returns:
        The signature's name, the rows, and "instances" or "inputs", the format of rows or of columns.
    """
    if not isinstance(body, dict):
        raise RequestError(400, f"The request must be a JSON object. Received: {shown(body)}")
    name, signature = find(signatures, body, DEFAULT)
    styles = [style for style in ("instances", "inputs") if style in body]
    if len(styles) != 1:
        raise RequestError(
            400, f'The request must have either "instances" or "inputs". Received: {shown(list(body))}'
        )
    (style,) = styles
    check_fields(body, ("signature_name", *styles), name, signatures)
    convert = _instances if style == "instances" else _inputs
    columns = {**of_all_rows(body, signature), **convert(body[style], signature)}

    def place(name: str, index: int) -> str:
        return f"instances[{index}].{name}" if style == "instances" else f"inputs.{name}[{index}]"

    return name, signature.rows(columns, place, truncate_of(body)), style


def find(
    signatures: Mapping[str, Signature], options: Mapping[str, Any], default: str
) -> tuple[str, Signature]:
    """Return the name and the signature that a request names; "" is the default, too.

    Args:
        signatures: those of the model, by name.
        options: the fields of the request, which may have a "signature_name".
        default: the name in a request without one.
    """
    name = options.get("signature_name", "")
    name = default if name == "" else name
    signature = signatures.get(name) if isinstance(name, str) else None
    if signature is None:
        raise RequestError(
            400, f"`signature_name` must be {' or '.join(signatures)}. Received: signature_name={shown(name)}"
        )
    return name, signature


def check_fields(
    given: Iterable[str],
    names: Sequence[str],
    name: str,
    signatures: Mapping[str, Signature],
    parent: str = "",
) -> None:
    """Raise a RequestError for an unknown field; a setting of the export has another error.

    Args:
        given: the fields of a request.
        names: those that it can have, besides `TRUNCATE` and the options of the signature.
        name: the name of the signature.
        signatures: those of the model, by name.
        parent: as for `fields.check`.
    """
    options = {
        key: [tensor.name for tensor in each.inputs if not tensor.required]
        for key, each in signatures.items()
    }
    known = (*names, TRUNCATE, *options[name])
    others = [each for each in given if each not in signatures[name].settings]
    for option in others:
        having = [key for key in options if option in options[key]]
        if option not in known and having:
            needed = f"`{option}` needs `signature_name` {' or '.join(having)}"
            raise RequestError(400, f"{needed}. Received: signature_name={shown(name)}")
    fields.check(others, known, parent)


def of_all_rows(options: Mapping[str, Any], signature: Signature) -> dict[str, list[Any]]:
    """Return the optional inputs of a request that apply to all rows, and settings, for which there is an error."""
    optional = [tensor.name for tensor in signature.inputs if not tensor.required]
    settings = [name for name in signature.settings if name not in optional]
    return {name: [options[name]] for name in (*optional, *settings) if name in options}


def respond(signature: Signature, outputs: Mapping[str, np.ndarray], style: str) -> dict[str, Any]:
    """Return the answer in the format of the request."""
    columns = dict(outputs)
    if style == "inputs":
        return {"outputs": next(iter(columns.values())) if len(columns) == 1 else columns}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    return {
        "predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    }


def status(model: ServedModel, number: int | None = None) -> dict[str, Any]:
    """Return the states of the versions of a model; KServe's first protocol reads "name" and "ready" there."""
    versions = [version for version in model.versions.values() if number in (None, version.number)]
    if not versions and number is not None:
        raise RequestError(404, f"Could not find version {number} of model {model.name}")
    return {
        "name": model.name,
        "ready": any(version.loaded is not None for version in versions),
        "model_version_status": [
            _status(version) for version in sorted(versions, key=lambda version: -version.number)
        ],
    }


def _status(version: Version) -> dict[str, Any]:
    error = {"error_code": "UNKNOWN" if version.error else "OK", "error_message": version.error}
    return {"version": str(version.number), "state": version.state, "status": error}


def metadata(name: str, number: int, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return the signatures of a version of a model."""
    definitions = {
        key: {
            "inputs": {tensor.name: _info(key, tensor) for tensor in signature.inputs},
            "outputs": {tensor.name: _info(key, tensor) for tensor in signature.outputs},
            "method_name": "tensorflow/serving/predict",
        }
        for key, signature in signatures.items()
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(number)},
        "metadata": {"signature_def": {"signature_def": definitions}},
    }


def _info(signature: str, tensor: Tensor) -> dict[str, Any]:
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in (None, *tensor.shape)]
    return {
        "dtype": tensor.names.tensorflow,
        "tensor_shape": {"dim": sizes, "unknown_rank": False},
        "name": f"{signature}_{tensor.name}:0",
    }


def _instances(instances: Any, signature: Signature) -> dict[str, list[Any]]:
    """Return the columns of a request in the format of rows."""
    if not isinstance(instances, list):
        raise RequestError(400, f"`instances` must be a list. Received: {shown(instances)}")
    if not instances:
        return {tensor.name: [] for tensor in signature.inputs if tensor.required}
    columns: dict[str, list[Any]] = {}
    for index, instance in enumerate(instances):
        row = (
            instance if isinstance(instance, dict) and not _is_bytes(instance) else _only(signature, instance)
        )
        if index and row.keys() != columns.keys():
            raise RequestError(
                400,
                f"`instances` must have the same inputs. Received: {shown(list(columns))} and "
                f"instances[{index}]={shown(instance)}",
            )
        for name, value in row.items():
            columns.setdefault(name, []).append(_decoded(value, signature, name))
    return columns


def _inputs(inputs: Any, signature: Signature) -> dict[str, list[Any]]:
    """Return the columns of a request in the format of columns."""
    columns = inputs if isinstance(inputs, dict) and not _is_bytes(inputs) else _only(signature, inputs)
    decoded = {}
    for name, values in columns.items():
        if not isinstance(values, list):
            raise RequestError(
                400, f"`inputs.{name}` must be a list, with a row for each. Received: {shown(values)}"
            )
        decoded[name] = [_decoded(value, signature, name) for value in values]
    return decoded


def _only(signature: Signature, value: Any) -> Row:
    """Return the value of a signature's only required input, by its name."""
    required = [tensor.name for tensor in signature.inputs if tensor.required]
    if len(required) != 1:
        raise RequestError(
            400, f"The inputs {', '.join(required)} must be passed by name. Received: {shown(value)}"
        )
    return {required[0]: value}


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _decoded(value: Any, signature: Signature, name: str) -> Any:
    """Return the bytes of {"b64": …}, where the input reads them; any other value, or wrong base64, as it is."""
    binary = {tensor.name for tensor in signature.inputs if tensor.reads_bytes}
    if name not in binary or not _is_bytes(value):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        return value


async def _predict(server: Server, request: Request) -> Response:
    """Predict rows or columns with a signature."""
    body = await server.body(request)
    with server.use(request) as (_, loaded, batcher):
        content = await requests.answer(
            request, body, parse, respond, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


async def _of_examples(server: Server, request: Request) -> Response:
    """An error: signatures of exports predict."""
    with server.use(request):
        raise RequestError(
            400, "The signatures of exports are of the method predict: send rows or columns to `:predict`"
        )


async def _status_of_model(server: Server, request: Request) -> Response:
    """The state of each version of a model."""
    model, number = server.find(request.path_params["name"]), version_number(request)
    if label := request.path_params.get("label"):
        with model.use(label=label) as (version, _, _):
            number = version.number
    others = server.model_keys(model) if number is None else {}
    return json_response({**others, **status(model, number)})


async def _metadata(server: Server, request: Request) -> Response:
    """The signatures of a model."""
    with server.use(request) as (version, loaded, _):
        name = request.path_params["name"]
        return json_response(metadata(name, version.number, loaded.signatures))


def _paths(server: Server) -> Json:
    """Return the OpenAPI description of the routes of each model."""
    paths: Json = {}
    for model in server.loaded():
        with model.use(label=STABLE) as (_, loaded, _):
            signatures = loaded.signatures
        path = f"/v1/models/{model.name}"
        for suffix, summary, names in (
            ("", "The versions of the model and their states", ["name", "ready", "model_version_status"]),
            ("/metadata", "The signatures of the model", ["model_spec", "metadata"]),
        ):
            answer = fields.object_of({name: {} for name in names}, names)
            paths[path + suffix] = {"get": openapi.operation(summary, answer)}
        request, response = openapi.of_rows(signatures)
        for suffix in _VERSIONS:
            operation = openapi.operation(
                "Predict (TensorFlow Serving)", response, request, openapi.parameters(suffix)
            )
            paths[f"{path}{suffix}:predict"] = {"post": operation}
    return paths


API = Api(
    "tensorflow_serving",
    (
        *(("POST", f"/v1/models/{{name}}{suffix}:predict", _predict) for suffix in _VERSIONS),
        *(
            ("POST", f"/v1/models/{{name}}{suffix}:{method}", _of_examples)
            for suffix in _VERSIONS
            for method in ("classify", "regress")
        ),
        *(("GET", f"/v1/models/{{name}}{suffix}", _status_of_model) for suffix in _VERSIONS),
        *(("GET", f"/v1/models/{{name}}{suffix}/metadata", _metadata) for suffix in _VERSIONS),
    ),
    _paths,
)
