"""Embeddings of OpenAI's protocol."""

import base64
from collections.abc import Mapping

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from keras_transformer_serving.pipelines.embedding import Embedding, first_values
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.server import fields, requests
from keras_transformer_serving.server.api import Json, Server, encoded_response
from keras_transformer_serving.server.fields import Field, integer, one_of, one_or_list
from keras_transformer_serving.server.openai_forms import UNUSED, model_of
from keras_transformer_serving.server.signatures import RequestError, Signature, text_of
from keras_transformer_serving.tasks import DEFAULT, ERROR, Row

_ONLY = "text-embeddings-inference"  # clients of this server name its only model so


def embedding_fields(name: str, pipeline: Embedding, is_only: bool) -> tuple[Field, ...]:
    """Return the fields of a request for the vectors of a model, which may be the only one of embeddings."""
    return (
        Field("model", one_of(name, *([_ONLY] if is_only else [])), required=True),
        Field(
            "input", one_or_list(fields.STRING, f"{fields.STRINGS.expected}, not token ids"), required=True
        ),
        Field("encoding_format", one_of("float", "base64"), "float"),
        Field("dimensions", integer(1, pipeline.config["model_dim"])),
        *UNUSED,
    )


async def embeddings(server: Server, request: Request) -> Response:
    """Answer a request for the vectors of texts."""
    document, size = await server.document(request)
    is_only = len(names := server.named(Embedding)) == 1
    is_named = document.get("model") != _ONLY or _ONLY in server.models or not is_only
    model = model_of(server, document) if is_named else server.models[names[0]]
    with model.use() as (_, loaded, batcher):
        pipeline = loaded.pipeline
        if not isinstance(pipeline, Embedding):
            raise fields.wrong("model", "one of embeddings", model.name)
        values = fields.read(document, embedding_fields(model.name, pipeline, is_only))
        texts = values["input"]

        def num_read(text: str) -> int:
            try:
                return len(pipeline.preprocess(text_of({"text": text}, "text"))[0].read)
            except InvalidInputError:
                return 0  # the error of its row

        def rows() -> tuple[str, list[Row], int]:
            return DEFAULT, [{"text": text} for text in texts], sum(map(num_read, texts))

        def respond(_: Signature, outputs: Mapping[str, np.ndarray], count: int) -> Json:
            for index, error in enumerate(outputs[ERROR]):
                if error:
                    raise RequestError(400, f"{error} in input[{index}]", param="input")
            vectors = outputs["embedding"]
            if values["dimensions"] is not None:
                vectors = first_values(vectors, values["dimensions"], pipeline.config["normalize"])
            data = [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": vector
                    if values["encoding_format"] == "float"
                    else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
                }
                for index, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": count, "total_tokens": count}
            return {"object": "list", "data": data, "model": model.name, "usage": usage}

        content = await requests.compute(
            request, size, rows, respond, loaded.signatures, batcher, server.limits
        )
        return encoded_response(content)


VECTORS = fields.exact_object(
    {
        "object": {"const": "list"},
        "data": fields.list_of(
            fields.exact_object(
                {
                    "object": {"const": "embedding"},
                    "index": fields.COUNT,
                    "embedding": {"anyOf": [fields.list_of(fields.NUMBER), fields.TEXT]},
                }
            )
        ),
        "model": fields.TEXT,
        "usage": fields.exact_object(dict.fromkeys(("prompt_tokens", "total_tokens"), fields.COUNT)),
    }
)
