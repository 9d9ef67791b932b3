"""The OpenAPI document, and the description of models for the page."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras_transformer_serving as serving
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.server import generating
from keras_transformer_serving.server.fields import object_of
from keras_transformer_serving.server.signatures import TRUNCATE, Signature
from keras_transformer_serving.server.versions import STABLE, ServedModel
from keras_transformer_serving.tasks import DEFAULT, DTYPES, Tensor

Json = dict[str, Any]
_TRUNCATE: Json = {TRUNCATE: {"type": "boolean"}}


def description(model: ServedModel) -> Json:
    """Return the name, the version, the signatures and the settings of a model, for its form on the page."""
    with model.use(label=STABLE) as (version, loaded, _):
        config = loaded.pipeline.config
        streams = isinstance(loaded.pipeline, Generating) and not generating.streams(loaded.pipeline)
        return {
            "name": model.name,
            "version": str(version.number),
            "pipeline": config.get("pipeline"),
            "streams": streams,
            "value_range": config.get("value_range"),
            "labels": [str(label) for label in config.get("labels") or ()],
            "example": loaded.example,
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


def document(paths: Json, error_schemas: Json) -> Json:
    """Return the OpenAPI 3.1 document of routes.

    Args:
        paths: their descriptions, by path.
        error_schemas: the JSON schemas of errors, by name.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "keras-transformer-serve", "version": serving.__version__},
        "paths": paths,
        "components": {"schemas": error_schemas},
    }


def error_name(api: str) -> str:
    """Return the name of the schema of a protocol's errors."""
    return f"{api}_error"


def operation(
    summary: str,
    response: Json,
    request: Json | None = None,
    parameters: Any = (),
    api: str = "server",
    other: str | None = None,
    has_file: bool = False,
) -> Json:
    """Return the description of a route.

    Args:
        summary: what it does.
        response: the JSON schema of its answer.
        request: that of its request, if it has one.
        parameters: the parameters in its path.
        api: the protocol, whose errors it has.
        other: another type of content of its answer.
        has_file: whether its request is a form with a file.
    """
    reference = {"$ref": f"#/components/schemas/{error_name(api)}"}
    of_error = {"content": {"application/json": {"schema": reference}}}
    description: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer", "content": {"application/json": {"schema": response}}},
            "4XX": {"description": "The request is wrong, or there are too many", **of_error},
            "5XX": {"description": "The server is not ready or too slow", **of_error},
        },
    }
    if other is not None:
        description["responses"]["200"]["content"][other] = {"schema": {"type": "string"}}
    if request is not None:
        kind = "application/json"
        if has_file:
            kind, file = "multipart/form-data", {"type": "string", "format": "binary"}
            properties, required = {**request["properties"], "file": file}, [*request["required"], "file"]
            request = {**request, "properties": properties, "required": required}
        description["requestBody"] = {"required": True, "content": {kind: {"schema": request}}}
    if parameters:
        description["parameters"] = list(parameters)
    return description


def of_stream(pipeline: Generating) -> Json:
    """Return the description of the route that streams a text."""
    request = row(generating.stream_inputs(pipeline))
    request["properties"] |= _TRUNCATE
    description = operation("Stream the text as server-sent events", {}, request)
    description["responses"]["200"]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    return description


def parameters(suffix: str) -> list[Json]:
    """Return the descriptions of the parameters in the last part of a path."""
    names = [name for name in ("version", "label") if f"{{{name}}}" in suffix]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def of_rows(signatures: Mapping[str, Signature]) -> tuple[Json, Json]:
    """Return the schemas of requests and answers of rows or columns, one for each signature and format."""
    requests, responses = [], []
    for name, signature in signatures.items():
        tag: Json = {"signature_name": {"const": name}, **_options(signature)}
        required = [] if name == DEFAULT else ["signature_name"]
        of_row = row(signature.inputs)
        only = [tensor for tensor in signature.inputs if tensor.required]
        one = {"anyOf": [_schema(only[0]), of_row]} if len(only) == 1 else of_row
        columns: Json = object_of(
            {tensor.name: {"type": "array", "items": _schema(tensor)} for tensor in signature.inputs}
        )
        if len(only) == 1:
            columns = {"anyOf": [{"type": "array", "items": _schema(only[0])}, columns]}
        for style, schema in (("instances", {"type": "array", "items": one}), ("inputs", columns)):
            requests.append(object_of({**tag, style: schema}, [*required, style], others=False))
        predictions = {"type": "array", "items": row(signature.outputs)}
        responses.append(object_of({"predictions": predictions}))
    return {"anyOf": requests}, {"anyOf": [*responses, object_of({"outputs": {}})]}


def _options(signature: Signature) -> Json:
    """Return the schemas of the optional values of a request that apply to all rows."""
    truncate = _TRUNCATE if any(tensor.dtype == "string" for tensor in signature.inputs) else {}
    return truncate | {tensor.name: _schema(tensor) for tensor in signature.inputs if not tensor.required}


def row(tensors: Iterable[Tensor]) -> Json:
    """Return the schema of a row."""
    tensors = list(tensors)
    required = [tensor.name for tensor in tensors if tensor.required]
    return object_of({tensor.name: _schema(tensor) for tensor in tensors}, required)


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


def of_tensors(signatures: Mapping[str, Signature]) -> Json:
    """Return the schema of requests of tensors."""
    names = sorted({tensor.name for signature in signatures.values() for tensor in signature.inputs})
    tensor = {
        "name": {"enum": names},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"enum": sorted(names.inference for names in DTYPES.values())},
        "data": {"type": "array"},
    }
    known: Json = {"signature_name": {"enum": list(signatures)}}
    for signature in signatures.values():
        known |= _options(signature)
    request = {
        "id": {"type": "string"},
        "parameters": object_of(known),
        "inputs": {"type": "array", "items": object_of(tensor, tensor)},
        "outputs": {"type": "array"},
    }
    return object_of(request, ["inputs"])
