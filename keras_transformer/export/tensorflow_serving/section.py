"""The section of a model card on TensorFlow Serving."""

import json
import pathlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.export import card
from keras_transformer.export.tensorflow_serving.configuration import (
    TENSORFLOW_SERVING,
    latest_versions,
    request_file,
    rest_request,
)
from keras_transformer.pipelines.pipeline import DEFAULT

_SERVED = (DEFAULT, "generate")
_CONFIGURATION = "/etc/tensorflow_serving"  # in the container


def section(reports: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the section, from the content of `parity.json`."""
    latest = latest_versions(reports)
    yield "## TensorFlow Serving\n"
    yield "In this folder:\n\n```sh"
    yield "docker run --rm -p 8500:8500 -p 8501:8501 \\"
    yield f'  -v "$PWD/saved_model:/models" -v "$PWD/{TENSORFLOW_SERVING}:{_CONFIGURATION}" \\'
    yield f"  tensorflow/serving --model_config_file={_CONFIGURATION}/models.config --enable_batching=true \\"
    yield f"  --batching_parameters_file={_CONFIGURATION}/batching_parameters.txt \\"
    yield f"  --monitoring_config_file={_CONFIGURATION}/monitoring.config"
    yield "```\n"
    for model, part in latest.items():
        specs = reports[part].get("signatures", {})
        yield f"### saved_model/{model}\n"
        yield from card.table("signature", specs)
        if any("error" in tensors["outputs"] for tensors in specs.values()):
            yield (
                '`error` is the reason why a row is invalid, or "". The other outputs of an invalid row are empty,\n'
                "and the other rows are answered.\n"
            )
        yield "```sh"
        for signature in _SERVED:
            if signature in specs:
                yield _curl(model, signature, specs[signature])
        yield "```\n"
        yield from _request(specs.get(DEFAULT, {}), card.outputs(reports))
        if any("example" in tensors for tensors in specs.values()):
            folder = pathlib.PurePosixPath(request_file(model, DEFAULT)).parent
            yield f"`{folder}/` has more requests: over REST, and over gRPC as `PredictRequest` in JSON.\n"


def _request(tensors: Mapping[str, Any], outputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the body of the first request, and the response if it is known."""
    if example := tensors.get("example"):
        body = json.dumps(rest_request(DEFAULT, example), ensure_ascii=False)
        yield f"The body of the first request is:\n\n```json\n{body}\n```\n"
        if (
            example.keys() == {"text"}
            and tensors["outputs"].keys() == {"text", "error"}
            and example["text"] in outputs
        ):
            answer = {"text": outputs[example["text"]], "error": ""}
            response = json.dumps({"predictions": [answer]}, ensure_ascii=False)
            yield f"The response is:\n\n```json\n{response}\n```\n"


def _curl(model: str, signature: str, tensors: Mapping[str, Any]) -> str:
    """Return a command that sends one row to the REST API."""
    url = f"http://localhost:8501/v1/models/{model}:predict"
    if "example" in tensors:
        return f"curl -d @{request_file(model, signature)} {url}"
    shapes = {key: [size or 1 for size in shape[1:]] for key, (_, shape) in tensors["inputs"].items()}
    row = "{" + ", ".join(f'"{key}": {_zeros(shape)}' for key, shape in shapes.items()) + "}"
    name = "" if signature == DEFAULT else f'"signature_name": "{signature}", '
    body = f'{{{name}"instances": [{row}]}}'
    return f"python -c {shlex.quote(f'import json; print(json.dumps({body}))')} | curl -d @- {url}"


def _zeros(shape: list[int]) -> str:
    """Return a Python expression of nested lists of zeros."""
    return f"[{_zeros(shape[1:])}] * {shape[0]}" if shape else "0"
