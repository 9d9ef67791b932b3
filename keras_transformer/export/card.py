"""Parts of the sections of a model card."""

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import keras_transformer_serving as serving


def table(head: str, specs: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of signatures or graphs, their inputs and outputs."""
    yield f"| {head} | inputs | outputs |\n|---|---|---|"
    for name, tensors in specs.items():
        inputs = _tensors(tensors["inputs"], tensors["defaults"])
        yield f"| `{name}` | {inputs} | {_tensors(tensors['outputs'])} |"
    yield "\nSizes with a name, or ?, are dynamic. `{i}` is the index of a layer. Inputs with a value are optional.\n"


def call(pipeline: Any, report: Mapping[str, Any]) -> str:
    """Return a call of an export that generates, in Python, with an input that was compared, and its output."""
    example, output = (
        json.dumps(report["examples"][name][:1], ensure_ascii=False) for name in ("texts", "answers")
    )
    if serving.reads_text(pipeline.export_config()):
        return f"model({example})  # {output}"
    return f'model.generate({example})["ids"]'


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
