"""Parts of the sections of a model card."""

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import keras_transformer_serving as serving
from keras_transformer_serving.tasks import DEFAULT


def table(head: str, specs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of signatures or graphs, their inputs and outputs."""
    yield f"| {head} | inputs | outputs |\n|---|---|---|"
    for name, tensors in specs.items():
        inputs = _tensors(tensors["inputs"], tensors["defaults"])
        yield f"| `{name}` | {inputs} | {_tensors(tensors['outputs'])} |"
    yield "\nSizes with a name, or ?, are dynamic. `{i}` is the index of a layer. Inputs with a value are optional.\n"


def call(pipeline: Any, report: Mapping[str, Any]) -> str:
    """Return a call of an export that generates, in Python, with an input that was compared.

    Its output stands in a comment, unless it is drawn anew in each call.
    """
    config = pipeline.export_config()
    example, output = (
        json.dumps(report["examples"][name][:1], ensure_ascii=False) for name in ("texts", "answers")
    )
    if serving.reads_text(config):
        is_drawn = config["generation"].get("seed", 0) is None
        return f"model({example})" + ("" if is_drawn else f"  # {output}")
    return f'model.generate({example})["ids"]'


def forward_call(pipeline: Any, tensors: Mapping[str, Any]) -> str:
    """Return a call of an export of a pipeline that runs its model once, in Python.

    Args:
        pipeline: the pipeline.
        tensors: the "inputs" of its graph, which a call takes if the pipeline does not read texts.
    """
    config = pipeline.export_config()
    if pipeline.reads == "audio" and serving.reads_text(config):
        return 'model("speech.wav")'
    if serving.reads_text(config):
        # Each text is in a list; the labels of a text are one.
        columns = (column[:1].tolist() for column in pipeline.example_inputs()[DEFAULT][0].values())
        rows = (column[0] if isinstance(column[0], list) else column for column in columns)
        return f"model({', '.join(json.dumps(row, ensure_ascii=False) for row in rows)})"
    required = {tensor.name for tensor in pipeline.graph_inputs(config) if tensor.required}
    inputs = (f"{key}={_array(key, *spec)}" for key, spec in tensors["inputs"].items() if key in required)
    return f"model.run({', '.join(inputs)})"


def outputs(reports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs that the parity check has stored, by text."""
    for report in reports.values():
        examples = report.get("examples", {})
        if examples and all(isinstance(text, str) for text in examples["texts"]):
            return dict(zip(examples["texts"], examples["answers"], strict=True))
    return {}


def cell(value: Any) -> str:
    """Return a string, or the JSON of another value, in a cell of a Markdown table."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(text.split()))


def _tensors(specs: Mapping[str, Any], defaults: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return names, types, shapes and defaults, with one entry for all layers."""
    by_name = {re.sub(r"\.\d+\.", ".{i}.", name): spec for name, spec in specs.items()}
    return ", ".join(
        f"`{name}` {dtype} ({_sizes(shape)})" + (f" = {defaults[name]}" if name in defaults else "")
        for name, (dtype, shape) in by_name.items()
    )


def _sizes(shape: list[Any]) -> str:
    return ", ".join("?" if size is None else str(size) for size in shape)


def _array(name: str, dtype: str, shape: list[Any]) -> str:
    """Return a Python expression of an array with one row."""
    sizes = tuple(size if isinstance(size, int) else 1 for size in shape)
    return f'numpy.{"ones" if name == "input_ids" else "zeros"}({sizes}, "{dtype}")'
