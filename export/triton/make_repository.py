"""Add an export to a model repository of NVIDIA Triton Inference Server.

    python export/triton/make_repository.py runs/quickstart/export model_repository --name es-en

writes `model_repository/es-en/config.pbtxt` and `model_repository/es-en/1/model.onnx`: the graph with the whole
generation loop, or `model` of a pipeline that does not generate. It needs `keras-transformer-serving[cpu]`.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving import FLOAT32, Bundle, Sessions
from keras_transformer_serving.bundle import ONNX
from keras_transformer_serving.external_data import file_name
from keras_transformer_serving.files import new_folder, write_bytes
from keras_transformer_serving.graph_files import graph_file, graph_reader
from keras_transformer_serving.graphs import MODEL, loop_name
from keras_transformer_serving.sessions import CPU

CONFIG, GRAPH, WARM_UP = "config.pbtxt", "model.onnx", "warmup"
_WARM_UP_SIZE = 8  # of axes of any size
# The types of Triton, by those of ONNX Runtime.
_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
}
_DTYPES = {
    "tensor(bool)": np.bool_,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
}


def make_repository(
    bundle: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: int = 1,
    precision: str = FLOAT32,
    max_batch_size: int = 32,
) -> pathlib.Path:
    """Add an export to a model repository: the whole version, or nothing.

    Args:
        bundle: the export.
        repository: the folder of models, which is created if it does not exist.
        name: the model's name, by default the name of the folder `bundle`.
        version: the version, a folder of the model. Other versions of the model must have an equal configuration.
        precision: "float32", or "float16" (for GPUs) or "int8" (for CPUs) if the export has them.
        max_batch_size: the largest batch that Triton forms of requests with inputs of equal shapes. With 0 it forms
            none, and requests may have the graph's inputs with defaults, such as `max_new_tokens`: Triton's backend
            of ONNX Runtime takes no such inputs in batches.

    Returns:
        The folder of the version.

    Raises:
        FileExistsError: if the version exists.
        FileNotFoundError: if `bundle` is not an export, or has no ONNX graphs.
        ValueError: if an argument is not as described, or the export was changed.
    """
    folder = pathlib.Path(bundle).resolve()
    name = folder.name if name is None else name
    target = pathlib.Path(repository).resolve() / name
    _check(folder, target, name, version, max_batch_size)
    export = Bundle(folder)
    config = export.config
    graph = loop_name(config) if "generation" in config else MODEL
    sessions = Sessions(graph_reader(export, precision), [CPU])
    text = model_config(name, sessions(graph), max_batch_size)
    if not target.exists():
        with new_folder(target) as new:
            write_bytes(new / CONFIG, text.encode())
            _write_warm_up(new / WARM_UP, sessions(graph), config)
            (new / str(version)).mkdir()
            _write_version(new / str(version), export, graph, precision)
    else:
        existing = (target / CONFIG).read_text(encoding="utf-8")
        if existing != text:
            raise ValueError(
                f"`name` must be of a new model, or of one with an equal {CONFIG}. Received: name={name!r}, "
                f"whose {target / CONFIG} differs"
            )
        with new_folder(target / str(version)) as new:
            _write_version(new, export, graph, precision)
    return target / str(version)


def model_config(name: str, session: Any, max_batch_size: int) -> str:
    """Return the configuration of a model, a `ModelConfig` of Triton in the text format of protocol buffers.

    Args:
        name: the model's name.
        session: ONNX Runtime's session of the graph.
        max_batch_size: as for `make_repository`; 0 if the first axis of a tensor is not the batch.
    """
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if not _is_batched([*inputs, *outputs]):
        max_batch_size = 0
    optional = [] if max_batch_size else session.get_overridable_initializers()
    lines = [f"name: {json.dumps(name)}", 'backend: "onnxruntime"', f"max_batch_size: {max_batch_size}"]
    for field, tensors, fields in [
        ("input", inputs, ()),
        ("input", optional, ("  optional: true",)),
        ("output", outputs, ()),
    ]:
        for tensor in tensors:
            lines += [f"{field} {{", *_tensor(tensor, bool(max_batch_size)), *fields, "}"]
    if max_batch_size:
        lines.append("dynamic_batching { max_queue_delay_microseconds: 2000 }")
    # The version before answers until this request is answered. A file is needed for values that are not zero.
    lines += ["model_warmup {", '  name: "one row"', "  batch_size: 1"]
    for tensor in inputs:
        lines.append(f"  inputs {{ key: {json.dumps(tensor.name)} value {{")
        lines.append(f"    data_type: {_TYPES[tensor.type]}")
        lines.append(f"    dims: {_warm_up_shape(tensor, bool(max_batch_size)) or [1]}")
        lines.append(f"    input_data_file: {json.dumps(tensor.name)}")
        lines.append("  } }")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _is_batched(tensors: Sequence[Any]) -> bool:
    """Return whether the first axis of all tensors has one name, or no known size."""
    axes = [tensor.shape[0] if tensor.shape else 1 for tensor in tensors]
    return not any(isinstance(axis, int) for axis in axes) and len({*axes} - {None}) <= 1


def _tensor(tensor: Any, batched: bool) -> Iterator[str]:
    """Yield the name, type and sizes of an input or output, without the batch where Triton adds it."""
    if tensor.type not in _TYPES:
        raise ValueError(
            f"`{tensor.name}` must be of one of the types {', '.join(_TYPES)}. Received: {tensor.type}"
        )
    dims = [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batched else 0 :]]
    yield f"  name: {json.dumps(tensor.name)}"
    yield f"  data_type: {_TYPES[tensor.type]}"
    yield f"  dims: {dims or [1]}"
    if not dims:
        yield "  reshape { shape: [] }"


def _warm_up_shape(tensor: Any, batched: bool) -> list[int]:
    """Return the sizes of an input of the warm-up request, without the batch where Triton adds it."""
    sizes = [size if isinstance(size, int) else _WARM_UP_SIZE for size in tensor.shape]
    if sizes and not isinstance(tensor.shape[0], int):
        sizes[0] = 1
    return sizes[1:] if batched else sizes


def _write_warm_up(folder: pathlib.Path, session: Any, config: dict[str, Any]) -> None:
    """Write the inputs of the warm-up request: a row of end tokens, none of them padding, and zeros."""
    folder.mkdir()
    fills = {"input_ids": config.get("end_id", 0), "attention_mask": 1}
    for tensor in session.get_inputs():
        values = np.full(
            _warm_up_shape(tensor, batched=False), fills.get(tensor.name, 0), _DTYPES[tensor.type]
        )
        write_bytes(folder / tensor.name, values.tobytes())


def _write_version(folder: pathlib.Path, bundle: Bundle, graph: str, precision: str) -> None:
    """Link or copy a graph, and its weights if they are in another file, into the folder of a version."""

    def exists(file: str) -> bool:
        return f"{ONNX}/{file}" in bundle.manifest["files"]

    source = bundle.folder / ONNX / graph_file(graph, exists, precision)
    weights = source.with_name(file_name(graph))
    _link(source, folder / GRAPH)
    if weights.exists():
        _link(weights, folder / weights.name)


def _link(source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _check(folder: pathlib.Path, target: pathlib.Path, name: str, version: int, max_batch_size: int) -> None:
    """Raise unless the arguments of `make_repository` are as described."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(
            "`name` must consist of letters, digits, '_', '-' and '.', and start with a letter, a digit or '_'. "
            f"Received: name={name!r}"
        )
    for argument, value, least in (("version", version, 1), ("max_batch_size", max_batch_size, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"`{argument}` must be an integer of at least {least}. Received: {value!r}")
    if target.is_relative_to(folder):
        raise ValueError(
            "`repository` must not be in the export, which would not be as it was exported any more. "
            f"Received: repository={str(target.parent)!r}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Add an export to a model repository of Triton.")
    parser.add_argument("bundle", help="the folder of the export")
    parser.add_argument("repository", help="the folder of models")
    parser.add_argument("--name", help="the model's name; by default the name of the export's folder")
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--precision", default=FLOAT32, help="float32, float16 or int8")
    parser.add_argument(
        "--max-batch-size",
        type=int,
        default=32,
        help="0: no batches, and requests may have the graph's inputs with defaults",
    )
    options = parser.parse_args(arguments)
    try:
        make_repository(**vars(options))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
