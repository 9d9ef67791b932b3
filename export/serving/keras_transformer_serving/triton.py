"""The configurations of an ONNX graph, and of a model of texts, for NVIDIA Triton Inference Server."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.generation import GENERATE
from keras_transformer_serving.graph_files import FLOAT32, graph_file
from keras_transformer_serving.graphs import MODEL, loop_name
from keras_transformer_serving.tasks import DEFAULT, ExportedPipeline

CONFIG = "config.pbtxt"
MAX_BATCH_SIZE = 32
_WARM_UP = "warmup"
_WARM_UP_SIZE = 8  # of axes of any size
TYPES = {
    "bool": "TYPE_BOOL",
    "string": "TYPE_STRING",
    **{f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
}
"""Triton's data types, by NumPy's."""


def served_graph(config: Mapping[str, Any], signatures: Mapping[str, Any], precision: str = FLOAT32) -> str:
    """Return the file of the graph to serve, relative to the folder of ONNX graphs: the generation loop, or `model`.

    Args:
        config: the settings of the export.
        signatures: the tensors of all graphs, as in `parity.json`.
        precision: "float32" or one of `graph_files.CONVERTED`.
    """
    name = loop_name(dict(config)) if "generation" in config else MODEL
    return graph_file(name, [f"{graph}.onnx" for graph in signatures], precision)


def model_files(
    file: str, tensors: Mapping[str, Any], config: Mapping[str, Any], max_batch_size: int = MAX_BATCH_SIZE
) -> dict[str, bytes]:
    """Return the files of a model in a model repository, except its versions.

    Triton names the model after its folder.

    Args:
        file: the name of the graph's file in the folder of a version.
        tensors: "inputs", "outputs" and "defaults" of the graph, its entry in the "signatures" of `parity.json`.
        config: the settings of the export.
        max_batch_size: the largest batch that Triton forms of requests with inputs of equal shapes. With 0 it forms
            none, and requests may have the inputs with defaults, such as `max_new_tokens`: Triton's backend of ONNX
            Runtime takes no such inputs in batches. 0 is taken if the first axis of a tensor is not the batch.

    Returns:
        By name, relative to the model's folder: `config.pbtxt`, a `ModelConfig` in the text format of protocol buffers,
        and in `warmup/` the inputs of the request with one row that warms a version up.
    """
    required = {name: spec for name, spec in tensors["inputs"].items() if name not in tensors["defaults"]}
    optional = {name: tensors["inputs"][name] for name in tensors["defaults"]}
    if not _is_batched([shape for _, shape in [*required.values(), *tensors["outputs"].values()]]):
        max_batch_size = 0
    if max_batch_size:
        optional = {}
    text = "\n".join(_config(file, required, optional, tensors["outputs"], max_batch_size)) + "\n"
    # A row of end tokens, none of them padding, and zeros.
    fills = {"input_ids": config.get("end_id") or 0, "attention_mask": 1}
    inputs = {
        f"{_WARM_UP}/{name}": np.full(_warm_up_shape(shape), fills.get(name, 0), dtype).tobytes()
        for name, (dtype, shape) in required.items()
    }
    return {CONFIG: text.encode(), **inputs}


def text_model_config(config: Mapping[str, Any], max_batch_size: int = MAX_BATCH_SIZE) -> bytes:
    """Return the `config.pbtxt` of a model of Triton's Python backend: "serving_default" with the options of rows.

    Args:
        config: the settings of the export.
        max_batch_size: the largest batch that Triton forms of requests.
    """
    pipeline = ExportedPipeline.named(config["pipeline"])
    signatures = {} if pipeline is None else pipeline.tensors(dict(config))
    inputs, outputs = signatures.get(DEFAULT, ((), ()))
    if not inputs or any(tensor.dtype != "string" for tensor in inputs):
        raise ValueError(f"`text` needs an export of texts. Received: an export of a {config['pipeline']}")
    inputs, _ = signatures.get(GENERATE, (inputs, outputs))
    lines = ['backend: "python"', f"max_batch_size: {max_batch_size}"]
    for field, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            dims = [-1 if size is None else size for size in tensor.shape] or [1]
            optional = "" if tensor.required or field == "output" else "  optional: true\n"
            lines.append(
                f"{field} {{\n  name: {json.dumps(tensor.name)}\n  data_type: {TYPES[tensor.dtype]}\n"
                f"  dims: {dims}\n{optional}}}"
            )
    if max_batch_size:
        lines.append("dynamic_batching { max_queue_delay_microseconds: 2000 }")
    return ("\n".join(lines) + "\n").encode()


def _config(
    file: str,
    required: Mapping[str, Any],
    optional: Mapping[str, Any],
    outputs: Mapping[str, Any],
    max_batch_size: int,
) -> Iterator[str]:
    """Yield the lines of `config.pbtxt`."""
    first = 1 if max_batch_size else 0  # Triton adds the batch
    yield 'backend: "onnxruntime"'
    yield f"default_model_filename: {json.dumps(file)}"
    yield f"max_batch_size: {max_batch_size}"
    for field, tensors in (("input", required), ("input", optional), ("output", outputs)):
        for name, (dtype, shape) in tensors.items():
            dims = [size if isinstance(size, int) else -1 for size in shape[first:]]
            yield f"{field} {{"
            yield f"  name: {json.dumps(name)}"
            yield f"  data_type: {TYPES[dtype]}"
            yield f"  dims: {dims or [1]}"
            if not dims:
                yield "  reshape { shape: [] }"
            if tensors is optional:
                yield "  optional: true"
            yield "}"
    if max_batch_size:
        yield "dynamic_batching { max_queue_delay_microseconds: 2000 }"
    # The previous version is served until this request is answered. A file is needed for values that are not zero.
    yield 'model_warmup {\n  name: "one row"\n  batch_size: 1'
    for name, (dtype, shape) in required.items():
        yield f"  inputs {{ key: {json.dumps(name)} value {{"
        yield f"    data_type: {TYPES[dtype]}"
        yield f"    dims: {_warm_up_shape(shape)[first:] or [1]}"
        yield f"    input_data_file: {json.dumps(name)}"
        yield "  } }"
    yield "}"


def _is_batched(shapes: Sequence[Sequence[int | str | None]]) -> bool:
    """Return whether the first axis of all tensors has one name, or an unknown size."""
    axes = [shape[0] if shape else 1 for shape in shapes]
    return not any(isinstance(axis, int) for axis in axes) and len({*axes} - {None}) <= 1


def _warm_up_shape(shape: Sequence[int | str | None]) -> list[int]:
    """Return the sizes of an input of the warm-up request: one row, where the first axis has any size."""
    sizes = [size if isinstance(size, int) else _WARM_UP_SIZE for size in shape]
    if sizes and not isinstance(shape[0], int):
        sizes[0] = 1
    return sizes
