"""The OpenAPI document, and the description of models for the page."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras_transformer_serving as serving
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.server import generating
from keras_transformer_serving.server.signatures import TRUNCATE, Signature
from keras_transformer_serving.server.versions import ServedModel
from keras_transformer_serving.tasks import DEFAULT, DTYPES, Tensor

Json = dict[str, Any]
_TRUNCATE: Json = {TRUNCATE: {"type": "boolean", "default": False}}


def description(model: ServedModel) -> Json:
    """Return the name, the version, the signatures and the settings of a model, for its form on the page."""
    with model.use() as (version, loaded, _):
        config = loaded.pipeline.config
        streams = isinstance(loaded.pipeline, Generating) and not generating.streams(loaded.pipeline)
        return {
            "name": model.name,
            "version": str(version.number),
            "pipeline": config.get("pipeline"),
            "streams": streams,
            "value_range": config.get("value_range"),
            "labels": [str(label) for label in config.get("labels") or ()],
            "signatures": {
                name: {"inputs": _listed(signature.inputs), "outputs": _listed(signature.outputs)}
                for name, signature in loaded.signatures.items()
            },
        }


def _listed(tensors: Iterable[Tensor]) -> list[Json]:
    return [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "default": tensor.default,
            "required": tensor.required,
            "choices": list(tensor.choices),
        }
        for tensor in tensors
    ]


def document(models: Iterable[ServedModel]) -> Json:
    """Return the OpenAPI 3.1 document of the routes of all models."""
    paths: Json = {
        path: {"get": _operation(summary, {"type": "object"})}
        for path, summary in {
            "/v2": "The server's name and version",
            "/v2/health/live": "Whether the server runs",
            "/v2/health/ready": "Whether every model is loaded",
            "/v1/models": "The models",
        }.items()
    }
    for model in models:
        if model.current is None or model.current.loaded is None:
            continue
        loaded, name = model.current.loaded, model.name
        signatures = loaded.signatures
        paths[f"/v1/models/{name}"] = {
            "get": _operation("The versions of the model and their states", {"type": "object"})
        }
        paths[f"/v1/models/{name}/metadata"] = {
            "get": _operation("The signatures of the model", {"type": "object"})
        }
        request, response = _predict(signatures)
        for suffix in ("", "/versions/{version}", "/labels/{label}"):
            paths[f"/v1/models/{name}{suffix}:predict"] = {
                "post": _operation("Predict (TensorFlow Serving)", response, request, _parameter(suffix))
            }
        if isinstance(loaded.pipeline, Generating) and not generating.streams(loaded.pipeline):
            stream = _row(generating.stream_inputs(loaded.pipeline))
            stream["properties"] |= _TRUNCATE
            operation = _operation("Stream the text as server-sent events", {}, stream)
            operation["responses"]["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
            paths[f"/v1/models/{name}:stream"] = {"post": operation}
        infer = _infer(signatures)
        for suffix in ("", "/versions/{version}"):
            path = f"/v2/models/{name}{suffix}"
            paths[path] = {
                "get": _operation("The tensors of the model", {"type": "object"}, None, _parameter(suffix))
            }
            paths[f"{path}/ready"] = {
                "get": _operation("Whether the model is loaded", {"type": "object"}, None, _parameter(suffix))
            }
            paths[f"{path}/infer"] = {
                "post": _operation(
                    "Infer (Open Inference Protocol)", {"type": "object"}, infer, _parameter(suffix)
                )
            }
    return {
        "openapi": "3.1.0",
        "info": {"title": "keras-transformer-serve", "version": serving.__version__},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string"}},
                    "required": ["error"],
                }
            }
        },
    }


def _operation(summary: str, response: Json, request: Json | None = None, parameters: Any = ()) -> Json:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer", "content": {"application/json": {"schema": response}}},
            "4XX": {"description": "The request is wrong, or there are too many", **error},
            "5XX": {"description": "The server is not ready or too slow", **error},
        },
    }
    if request is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": request}},
        }
    if parameters:
        operation["parameters"] = list(parameters)
    return operation


def _parameter(suffix: str) -> list[Json]:
    names = [name for name in ("version", "label") if f"{{{name}}}" in suffix]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _predict(signatures: Mapping[str, Signature]) -> tuple[Json, Json]:
    """Return the schemas of requests and answers of `:predict`, one for each signature and format."""
    requests, responses = [], []
    for name, signature in signatures.items():
        tag: Json = {"signature_name": {"const": name}, **_options(signature)}
        required = [] if name == DEFAULT else ["signature_name"]
        row = _row(signature.inputs)
        only = [tensor for tensor in signature.inputs if tensor.required]
        one = {"anyOf": [_schema(only[0]), row]} if len(only) == 1 else row
        columns: Json = {
            "type": "object",
            "properties": {
                tensor.name: {"type": "array", "items": _schema(tensor)} for tensor in signature.inputs
            },
        }
        if len(only) == 1:
            columns = {"anyOf": [{"type": "array", "items": _schema(only[0])}, columns]}
        for style, schema in (("instances", {"type": "array", "items": one}), ("inputs", columns)):
            requests.append(
                {"type": "object", "properties": {**tag, style: schema}, "required": [*required, style]}
            )
        outputs = _row(signature.outputs)
        responses.append(
            {"type": "object", "properties": {"predictions": {"type": "array", "items": outputs}}}
        )
    return {"anyOf": requests}, {"anyOf": [*responses, {"type": "object", "properties": {"outputs": {}}}]}


def _options(signature: Signature) -> Json:
    """Return the schemas of the optional values of a request that apply to all rows."""
    truncate = _TRUNCATE if any(tensor.dtype == "string" for tensor in signature.inputs) else {}
    return truncate | {tensor.name: _schema(tensor) for tensor in signature.inputs if not tensor.required}


def _row(tensors: Iterable[Tensor]) -> Json:
    tensors = list(tensors)
    return {
        "type": "object",
        "properties": {tensor.name: _schema(tensor) for tensor in tensors},
        "required": [tensor.name for tensor in tensors if tensor.required],
    }


def _schema(tensor: Tensor) -> Json:
    schema: Json = tensor.json_schema
    for size in reversed(tensor.shape):
        schema = {"type": "array", "items": schema}
        if size is not None:
            schema |= {"minItems": size, "maxItems": size}
    if tensor.choices:
        schema["enum"] = list(tensor.choices)
    has_default = tensor.default in tensor.choices if tensor.choices else tensor.default is not None
    return {**schema, "default": tensor.default} if has_default else schema


def _infer(signatures: Mapping[str, Signature]) -> Json:
    """Return the schema of requests of `infer`."""
    names = sorted({tensor.name for signature in signatures.values() for tensor in signature.inputs})
    tensor = {
        "type": "object",
        "properties": {
            "name": {"enum": names},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"enum": sorted(names.inference for names in DTYPES.values())},
            "data": {"type": "array"},
        },
        "required": ["name", "shape", "datatype", "data"],
    }
    known: Json = {"signature_name": {"enum": list(signatures)}}
    for signature in signatures.values():
        known |= _options(signature)
    parameters = {"type": "object", "properties": known}
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": parameters,
            "inputs": {"type": "array", "items": tensor},
            "outputs": {"type": "array"},
        },
        "required": ["inputs"],
    }
