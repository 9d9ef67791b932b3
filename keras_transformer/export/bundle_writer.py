"""Writing parts of an export: settings, tokenizer and versions."""

import contextlib
import importlib.metadata
import json
import pathlib
from typing import Any

from keras_transformer_serving import bundle, files

_PACKAGES = (
    "keras",
    "tensorflow",
    "tensorflow-text",
    "sentencepiece",
    "tf2onnx",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
)


def new_part(
    pipeline: Any, folder: pathlib.Path, part: str
) -> contextlib.AbstractContextManager[tuple[pathlib.Path, dict[str, Any]]]:
    """Write a part of a pipeline's export atomically; see `keras_transformer_serving.bundle.new_part`.

    Args:
        pipeline: the pipeline.
        folder: the export, new or with other parts of the same pipeline.
        part: the folder of the part, relative to `folder`, with forward slashes.

    Returns:
        A context manager of a temporary folder to write into and the part's entry in `parity.json`.
    """

    def write_shared(new: pathlib.Path) -> None:
        if hasattr(pipeline, "tokenizer"):
            pipeline.tokenizer.save(new / "tokenizer")
        if hasattr(pipeline, "generation_config"):
            files.write_json(new / "generation_config.json", pipeline.generation_config())

    versions = {name: _version(name) for name in _PACKAGES}
    return bundle.new_part(folder, part, settings_of(pipeline), versions, write_shared)


def settings_of(pipeline: Any) -> dict[str, Any]:
    """Return the settings that serving needs to run the export without this package."""
    model = pipeline.model
    known = getattr(pipeline, "encoder", model)
    settings = {"pipeline": type(pipeline).__name__}
    if hasattr(pipeline, "tokenizer"):
        tokenizer = pipeline.tokenizer
        settings |= {
            "tokenizer_class": type(tokenizer).__name__,
            "tokenizer_file": tokenizer.file_name,
            "tokenizer_sha256": tokenizer.sha256,
            "vocabulary_size": known.vocabulary_size,  # includes special tokens that the tokenizer may lack
            "empty_ids": list(tokenizer.empty_ids),
            "pad_id": known.pad_id,
            "start_id": getattr(known, "start_id", None),  # decoder-only and encoder-only models have none
            "end_id": getattr(known, "end_id", None),
        }
    if not hasattr(pipeline, "sampler"):
        names = ("max_length", "num_segments", "image_size", "num_channels", "value_range", "num_features")
        settings |= {name: getattr(known, name) for name in names if hasattr(known, name)}
    if hasattr(pipeline, "problem_type"):
        settings["problem_type"] = pipeline.problem_type
    own = pipeline.generation_config if hasattr(pipeline, "generation_config") else pipeline.settings
    return json.loads(json.dumps({**settings, **own()}))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
