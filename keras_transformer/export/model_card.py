"""The model card of an export: its README.md."""

import json
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from google.protobuf import text_format  # noqa: F401  (loads protobuf before TensorFlow's messages)
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer_serving as serving
from keras_transformer.export.serving_files import (
    TENSORFLOW_SERVING,
    TRITON,
    latest_versions,
    request_file,
)
from keras_transformer.export.tensorflow_serving import warmup
from keras_transformer.interop.source import Source
from keras_transformer.pipelines.base import BATCH, DEFAULT
from keras_transformer_serving import triton
from keras_transformer_serving.bundle import ONNX
from keras_transformer_serving.graphs import MODEL

_NOT_SETTINGS = ("pipeline", "tokenizer_sha256", "empty_ids")
_MAX_LENGTH = 500
_SERVED = (DEFAULT, "generate")
_CONFIGURATION = "/etc/tensorflow_serving"  # in the container


def signatures(path: pathlib.Path) -> dict[str, Any]:
    """Return the signatures of a part of an export, for `parity.json`.

    Args:
        path: the folder of a SavedModel, or of ONNX graphs.

    Returns:
        By signature or graph: "inputs" and "outputs", each a type and a shape by name, and the "defaults" of optional
        inputs. Signatures of a SavedModel also have an "example", one row of inputs, if it is short.
    """
    return _of_saved_model(path) if (path / "saved_model.pb").exists() else _of_graphs(path)


def model_card(name: str, pipeline: Any, reports: Mapping[str, Any]) -> str:
    """Return the model card of an export, in Markdown.

    Args:
        name: the export's name.
        pipeline: the exported pipeline.
        reports: the content of `parity.json`.
    """
    return "\n".join(
        [
            *_head(name, pipeline),
            *_saved_models(reports),
            *_onnx(pipeline, reports),
            *_triton(name, pipeline, reports),
            *_parity(reports),
        ]
    )


def _head(name: str, pipeline: Any) -> Iterator[str]:
    config, model = pipeline.export_config(), pipeline.model
    models = getattr(model, "models", [model])  # of an ensemble
    count, dtype = sum(part.count_params() for part in models), models[0].compute_dtype
    yield f"# {name}\n"
    description = f"a `{type(model).__name__}` with {count:,} parameters"
    yield f"A `{config['pipeline']}` of keras_transformer: {description} that computes in {dtype}.\n"
    if pipeline.source is not None:
        yield f"{_provenance(pipeline.source)}\n"
    yield "| setting | value |\n|---|---|"
    for key, value in config.items():
        if key not in _NOT_SETTINGS:
            shown = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
            yield f"| {key} | {shown if len(shown) <= _MAX_LENGTH else 'see config.json'} |"
    yield ""


def _provenance(source: Source) -> str:
    """Return where the weights come from, and their licence."""
    verb = "Fine-tuned" if source.fine_tuned else "Converted"
    if source.commit is None:
        sentences = [f"{verb} from the folder {_code(source.name)}."]
    else:
        revision = "" if source.revision in (None, source.commit) else f" (revision {_code(source.revision)})"
        address = f"https://huggingface.co/{source.name}/tree/{source.commit}"
        sentences = [
            f"{verb} from [{_code(source.name)}]({address}) at the commit {_code(source.commit)}{revision}."
        ]
    if source.conversion is not None:
        sentences.append(
            f"The weights are those of the hub's conversion to safetensors, a pull request with the commit "
            f"{_code(source.conversion)}."
        )
    if source.base_models:
        sentences.append(f"It is derived from {', '.join(map(_code, source.base_models))}.")
    if source.license is None:
        sentences.append("Its model card names no licence.")
    else:
        sentences.append(f"Its licence is {_code(source.license)}.")
    return " ".join(sentences)


def _code(text: str) -> str:
    """Return a string from outside as code in Markdown."""
    return f"`{text.replace('`', '')[:_MAX_LENGTH]}`"


def _saved_models(reports: Mapping[str, Any]) -> Iterator[str]:
    latest = latest_versions(reports)
    if not latest:
        return
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
        yield from _table("signature", specs)
        if any("error" in tensors["outputs"] for tensors in specs.values()):
            yield (
                '`error` is the reason why a row is invalid, or "". Its other outputs are empty, and\n'
                "other rows are answered.\n"
            )
        yield "```sh"
        for signature in _SERVED:
            if signature in specs:
                yield _curl(model, signature, specs[signature])
        yield "```\n"
        if any("example" in tensors for tensors in specs.values()):
            folder = pathlib.PurePosixPath(request_file(model, DEFAULT)).parent
            yield f"`{folder}/` has requests to the signatures: over REST, and over gRPC as `PredictRequest` in JSON.\n"


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


def _onnx(pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
    if ONNX not in reports:
        return
    specs, config = reports[ONNX].get("signatures", {}), pipeline.export_config()
    yield f"## ONNX Runtime: {ONNX}\n"
    yield from _table("graph", specs)
    texts = serving.reads_text(config)
    extras = "cpu,tokenizers" if texts else "cpu"
    yield f"In this folder, with `pip install 'keras-transformer-serving[{extras}]'` and no TensorFlow:\n\n```python"
    numpy = "" if texts or pipeline.generates else "import numpy\n"
    yield f'{numpy}import keras_transformer_serving as serving\n\nmodel = serving.load(".")'
    if pipeline.generates:
        example = json.dumps(reports[ONNX]["examples"]["texts"][:1], ensure_ascii=False)
        yield f"model({example})" if texts else f'model.generate({example})["ids"]'
    elif texts:
        inputs = pipeline.example_inputs()[DEFAULT][0].values()
        yield f"model({', '.join(json.dumps([str(column[0])], ensure_ascii=False) for column in inputs)})"
    else:
        inputs = next(graph["inputs"] for name, graph in specs.items() if name.endswith(MODEL)).items()
        required = {tensor.name for tensor in pipeline.graph_inputs(config) if tensor.required}
        yield f"model.run({', '.join(f'{key}={_array(key, *spec)}' for key, spec in inputs if key in required)})"
    yield "```\n"


def _triton(name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
    if not (graphs := reports.get(ONNX, {}).get("signatures")):
        return
    graph = f"{ONNX}/{triton.served_graph(pipeline.export_config(), graphs)}"
    model = shlex.quote(f"../model_repository/{name}")  # outside the export, whose files are verified
    yield f"## Triton: {TRITON}\n"
    yield "A model for a model repository of NVIDIA Triton Inference Server; it takes arrays. In this folder:\n\n```sh"
    yield f'model={model}\nmkdir -p "$model/1"\ncp -r {TRITON}/. "$model"\ncp {graph}* "$model/1"'
    yield "```\n"


def _array(name: str, dtype: str, shape: list[Any]) -> str:
    """Return a Python expression of an array with one row."""
    sizes = tuple(size if isinstance(size, int) else 1 for size in shape)
    return f'numpy.{"ones" if name == "input_ids" else "zeros"}({sizes}, "{dtype}")'


def _parity(reports: Mapping[str, Any]) -> Iterator[str]:
    yield "## Comparison with the model\n"
    yield "The outputs were compared with the pipeline's at export; `keras-transformer verify .` compares again.\n"
    yield "| part | graph | result |\n|---|---|---|"
    for part, report in reports.items():
        for graph, figures in report.get("graphs", {}).items():
            shown = ", ".join(f"{key.replace('_', ' ')} {_number(value)}" for key, value in figures.items())
            limit = f" (tolerance {_number(report['tolerance'])})" if "tolerance" in report else ""
            yield f"| {part} | {graph} | {shown}{limit} |"
        for precision, figures in report.get("precisions", {}).items():
            limits = figures["thresholds"]
            shown = ", ".join(
                f"{key.replace('_', ' ')} {_number(value)}"
                + (f" (threshold {_number(limits[key])})" if key in limits else "")
                for key, value in figures.items()
                if key != "thresholds"
            )
            yield f"| {part} | {precision} | {shown} |"
        if "vocabulary_shortlist" in report:
            figures = report["vocabulary_shortlist"]
            same = f"{figures['identical']} of {figures['outputs']} outputs"
            yield f"| {part} | vocabulary shortlist | {same} are the same with the whole vocabulary |"
    yield ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _table(head: str, specs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of signatures or graphs, their inputs and outputs."""
    yield f"| {head} | inputs | outputs |\n|---|---|---|"
    for name, tensors in specs.items():
        inputs = _tensors(tensors["inputs"], tensors["defaults"])
        yield f"| `{name}` | {inputs} | {_tensors(tensors['outputs'])} |"
    yield "\nSizes with a name, or ?, are dynamic; `{i}` is the index of a layer; inputs with a value are optional.\n"


def _tensors(specs: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return names, types, shapes and defaults, with one entry for all layers."""
    by_name = {re.sub(r"\.\d+\.", ".{i}.", name): spec for name, spec in specs.items()}
    return ", ".join(
        f"`{name}` {dtype} ({_sizes(shape)})" + (f" = {defaults[name]}" if name in defaults else "")
        for name, (dtype, shape) in by_name.items()
    )


def _sizes(shape: list[Any]) -> str:
    return ", ".join("?" if size is None else str(size) for size in shape)


def _of_saved_model(path: pathlib.Path) -> dict[str, Any]:
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())

    def specs(tensors: Any) -> dict[str, list[Any]]:  # "error" last
        return {
            key: [tf.as_dtype(tensor.dtype).name, [BATCH, *tf.TensorShape(tensor.tensor_shape).as_list()[1:]]]
            for key, tensor in sorted(tensors.items(), key=lambda item: (item[0] == "error", item[0]))
        }

    signatures_by_name = {
        name: {
            "inputs": specs(signature.inputs),
            "outputs": specs(signature.outputs),
            "defaults": {
                key: [_json(item) for item in tf.make_ndarray(value)]
                for key, value in sorted(signature.defaults.items())
            },
        }
        for name, signature in sorted(
            saved_model.meta_graphs[0].signature_def.items(), key=lambda item: (item[0] != DEFAULT, item[0])
        )
        if not name.startswith("__")  # the initialisation of tables
    }
    for request in warmup.requests(path):
        row = {key: _json(values[0]) for key, values in sorted(warmup.arrays(request.inputs).items())}
        if len(json.dumps(row)) <= _MAX_LENGTH:
            signatures_by_name[request.model_spec.signature_name].setdefault("example", row)
    return signatures_by_name


def _json(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value.tolist()


def _size(dimension: Any) -> str | int | None:
    """Return the name or size of a dimension of an ONNX graph, None if it has neither."""
    return dimension.dim_param or (dimension.dim_value if dimension.HasField("dim_value") else None)


def _dtype(element_type: int) -> str:
    """Return the name of a type of ONNX."""
    import onnx

    name = str(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    return "string" if name == "object" else name


def _of_graphs(path: pathlib.Path) -> dict[str, Any]:
    import onnx

    def specs(values: Any) -> dict[str, list[Any]]:
        return {
            value.name: [
                _dtype(value.type.tensor_type.elem_type),
                [_size(dimension) for dimension in value.type.tensor_type.shape.dim],
            ]
            for value in values
        }

    graphs = {}
    for file in sorted(path.rglob("*.onnx")):
        graph = onnx.load(file, load_external_data=False).graph
        name = file.relative_to(path).with_suffix("").as_posix()
        inputs = {value.name for value in graph.input}
        defaults = {
            constant.name: onnx.numpy_helper.to_array(constant)
            for constant in graph.initializer
            if constant.name in inputs
        }
        graphs[name] = {
            "inputs": specs(graph.input),
            "outputs": specs(graph.output),
            "defaults": {key: value.tolist() for key, value in defaults.items()},
        }
    return graphs
