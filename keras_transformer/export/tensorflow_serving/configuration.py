"""The configuration of TensorFlow Serving for the SavedModels of an export, and sample requests."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from keras_transformer.pipelines.pipeline import DEFAULT
from keras_transformer_serving.bundle import SERVING

TENSORFLOW_SERVING = f"{SERVING}/tensorflow_serving"
_MODEL = """\
  config {
    name: %(name)s
    base_path: %(path)s
    model_platform: "tensorflow"
    # Serve the newest version; the previous one answers until the new one is loaded and warmed up.
    model_version_policy { latest { num_versions: 1 } }
  }
"""
_BATCHING = """\
# Requests that arrive within 2 ms share a batch. Requests with more rows than max_batch_size are rejected.
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
# Number of batches computed in parallel: the number of cores.
num_batch_threads { value: 4 }
# Number of waiting batches; further requests get the status UNAVAILABLE (HTTP 503).
max_enqueued_batches { value: 16 }
# No allowed_batch_sizes: nothing is compiled for a batch size, so padding a batch would only add computation.
"""
_MONITORING = """\
# Metrics for Prometheus: http://localhost:8501/monitoring/prometheus/metrics
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
"""


def latest_versions(reports: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of the latest version of each SavedModel, by the model's name.

    Args:
        reports: the content of `parity.json`.
    """
    versions = [part.split("/")[1:] for part in reports if part.startswith("saved_model/")]
    latest: dict[str, int] = {}
    for name, version in versions:
        latest[name] = max(int(version), latest.get(name, 0))
    return {name: f"saved_model/{name}/{version}" for name, version in latest.items()}


def request_file(model: str, signature: str) -> str:
    """Return the name of the file with the sample request to a signature over REST."""
    return f"{SERVING}/requests/{model}/{signature}.json"


def files(reports: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files, from the content of `parity.json`."""
    latest = latest_versions(reports)
    if latest:
        models = "".join(
            _MODEL % {"name": _quoted(name), "path": _quoted(f"/models/{name}")} for name in latest
        )
        yield f"{TENSORFLOW_SERVING}/models.config", f"model_config_list {{\n{models}}}\n".encode()
        yield f"{TENSORFLOW_SERVING}/batching_parameters.txt", _BATCHING.encode()
        yield f"{TENSORFLOW_SERVING}/monitoring.config", _MONITORING.encode()
    for model, part in latest.items():
        for signature, tensors in reports[part].get("signatures", {}).items():
            if row := tensors.get("example"):
                file = pathlib.PurePosixPath(request_file(model, signature))
                yield f"{file}", _json(rest_request(signature, row))
                yield f"{file.with_suffix('.grpc.json')}", _json(_grpc_request(model, signature, tensors))


def rest_request(signature: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request with one row to TensorFlow Serving's REST API."""
    name = {} if signature == DEFAULT else {"signature_name": signature}
    return {**name, "instances": [next(iter(row.values())) if len(row) == 1 else row]}


def _grpc_request(model: str, signature: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `PredictRequest` of an example, in the JSON form of protocol buffers."""
    inputs = {}
    for name, value in tensors["example"].items():
        dtype = tf.as_dtype(tensors["inputs"][name][0])
        tensor = tf.make_tensor_proto(np.array([value], dtype.as_numpy_dtype))
        inputs[name] = json_format.MessageToDict(tensor, preserving_proto_field_name=True)
    return {"model_spec": {"name": model, "signature_name": signature}, "inputs": inputs}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False) + "\n").encode()
