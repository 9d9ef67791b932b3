"""Writing parts of an export: settings, tokenizer and versions."""

import contextlib
import importlib.metadata
import json
import pathlib
from typing import Any

from keras_transformer.export.tokenizer_examples import tokenizer_examples
from keras_transformer.pipelines.base import Pipeline
from keras_transformer_serving import bundle, files
from keras_transformer_serving.text import reads_text

_PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-text",
    "sentencepiece",
    "tokenizers",
    "tf2onnx",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
)


def new_part(
    pipeline: Any, folder: pathlib.Path, part: str, signature_key: bytes | None = None
) -> contextlib.AbstractContextManager[tuple[pathlib.Path, dict[str, Any]]]:
    """Write a part of a pipeline's export atomically; see `keras_transformer_serving.bundle.new_part`.

    Args:
        pipeline: the pipeline.
        folder: the export, new or with other parts of the same pipeline.
        part: the folder of the part, relative to `folder`, with forward slashes.
        signature_key: the key to sign the manifest with.

    Returns:
        A context manager of a temporary folder to write into and the part's entry in `parity.json`.
    """
    config = config_of(pipeline)

    def write_shared(new: pathlib.Path) -> None:
        if pipeline.tokenizer is not None:
            pipeline.tokenizer.save(new / bundle.TOKENIZER)
        if reads_text(config):
            files.write_json(new / bundle.TOKENIZER_EXAMPLES, tokenizer_examples(pipeline.tokenizer))
        if pipeline.generates:
            files.write_json(new / "generation_config.json", pipeline.generation_config())

    versions = {name: _version(name) for name in _PACKAGES}
    return bundle.new_part(folder, part, config, versions, write_shared, signature_key)


def config_of(pipeline: Any) -> dict[str, Any]:
    """Return the settings in an export's `config.json`, as they are read from there."""
    return json.loads(json.dumps(pipeline.export_config()))


def check_pipeline(pipeline: Any) -> None:
    """Raise unless a value is a pipeline."""
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"`pipeline` must be one of keras_transformer.pipelines. Received: {type(pipeline).__name__}"
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
