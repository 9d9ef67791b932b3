"""Write parts of an export, with settings, tokenizer, versions, model card and server configurations."""

import contextlib
import importlib.metadata
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.export import model_card
from keras_transformer.export.targets import ExportTarget, targets_of
from keras_transformer.export.tokenizer_examples import tokenizer_examples
from keras_transformer.generation import VocabularyShortlist
from keras_transformer.pipelines.pipeline import Pipeline
from keras_transformer_serving import bundle, files
from keras_transformer_serving.text import chat, reads_text

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


def new_parts(
    pipeline: Any, folder: pathlib.Path, parts: Sequence[str], signature_key: bytes | None = None
) -> contextlib.AbstractContextManager[dict[str, tuple[pathlib.Path, dict[str, Any]]]]:
    """Write parts of a pipeline's export in one commit; see `keras_transformer_serving.bundle.new_parts`.

    Args:
        pipeline: the pipeline.
        folder: the export's folder, new or with other parts of the same pipeline.
        parts: the folders of the parts, relative to `folder`, with forward slashes.
        signature_key: the key to sign the manifest with.

    Returns:
        A context manager that returns, for each part, a temporary folder to write into and the entry of `parity.json`.
    """
    config = config_of(pipeline)

    def write_shared(new: pathlib.Path) -> None:
        if pipeline.tokenizer is not None:
            pipeline.tokenizer.save(new / bundle.TOKENIZER)
        if reads_text(config):
            files.write_json(new / bundle.TOKENIZER_EXAMPLES, tokenizer_examples(pipeline.tokenizer))
        if getattr(pipeline, "chat_template", None) is not None:
            # For other programs: `config.json` has it, too.
            files.write_bytes(new / chat.FILE, pipeline.chat_template.default.encode())
        if pipeline.generates:
            files.write_json(new / "generation_config.json", pipeline.generation_config())

    def write_derived(new: pathlib.Path, reports: dict[str, Any]) -> None:
        for part, report in reports.items():
            if (new / part).exists():
                report["signatures"] = ExportTarget.named(part).signatures(new / part)
        write_serving_files(new, config, reports)
        card = model_card.model_card(folder.absolute().name, pipeline, reports)
        files.write_bytes(new / bundle.CARD, card.encode())

    versions = {name: _version(name) for name in _PACKAGES}
    source = None if pipeline.source is None else pipeline.source.as_json()
    return bundle.new_parts(
        folder, parts, config, versions, write_shared, signature_key, write_derived, source
    )


def write_serving_files(folder: pathlib.Path, config: dict[str, Any], reports: dict[str, Any]) -> None:
    """Write the folder `serving/` of an export: configurations of servers, and sample requests.

    Args:
        folder: the folder to write into.
        config: the settings of the export.
        reports: the content of `parity.json`.
    """
    for target in targets_of(reports):
        for name, content in target.serving_files(config, reports):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@contextlib.contextmanager
def without_tensorflow_warnings() -> Iterator[None]:
    """Hide TensorFlow's warnings about lookup tables and temporary folders."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def config_of(pipeline: Any) -> dict[str, Any]:
    """Return the settings of an export's `config.json`, as JSON represents them."""
    return json.loads(json.dumps(pipeline.export_config()))


def check_pipeline(pipeline: Any) -> None:
    """Raise a ValueError unless a value is a pipeline."""
    if not isinstance(pipeline, Pipeline):
        raise ValueError(
            f"`pipeline` must be a pipeline of keras_transformer.pipelines. Received: a {type(pipeline).__name__}"
        )


def with_shortlist(pipeline: Any, token_ids: Sequence[int] | None) -> Any:
    """Return a pipeline that generates tokens of a shortlist only, or the same pipeline for None.

    Raises:
        ValueError: if the pipeline does not generate, or its model or sampler does not support a shortlist.
    """
    check_pipeline(pipeline)
    if token_ids is None:
        return pipeline
    check_generates_tokens("vocabulary_shortlist", pipeline)
    return pipeline.with_settings(constraints=[*pipeline.constraints, VocabularyShortlist(tuple(token_ids))])


def check_generates_tokens(name: str, pipeline: Any) -> None:
    """Raise a ValueError unless a pipeline generates tokens one by one."""
    if not hasattr(pipeline, "with_settings"):
        raise ValueError(
            f"`{name}` requires a pipeline that generates tokens one by one. Received: a {type(pipeline).__name__}"
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
