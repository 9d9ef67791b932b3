"""Pretrained pipelines as the start of a training run."""

import dataclasses
import os
from typing import Any

import keras

from keras_transformer import models, pipelines
from keras_transformer.interop.hub import CARD, local_folder
from keras_transformer.interop.source import Source
from keras_transformer.pipelines.pipeline import CONFIG, folder_of, is_pipeline
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_serving import files


def load_pipeline(source: str | os.PathLike[str], revision: str | None = None) -> Any:
    """Load a pipeline.

    Args:
        source: the folder of a pipeline or of a training run, a folder of `transformers` or `sentence-transformers`, or
            the id of a model of the Hugging Face Hub.
        revision: a branch, a tag or a commit of the hub.
    """
    if is_pipeline(folder_of(source)):
        return pipelines.load(source)
    return pipelines.from_hugging_face(source, revision)


def fine_tuned_source(source: str | os.PathLike[str], revision: str | None = None) -> Source | None:
    """Return the published model from which training starts, None if it starts from a pipeline without one."""
    folder = folder_of(source)
    if is_pipeline(folder):
        published = Source.of_json(files.read_json(folder / CONFIG).get("source"))
    else:
        published = Source.of_folder(local_folder(source, [CARD], revision=revision), revision)
    return published and dataclasses.replace(published, fine_tuned=True)


def with_precision(pipeline: Any, precision: str) -> Any:
    """Return a pipeline with the same weights in another dtype policy."""
    return pipeline if pipeline.model.dtype_policy.name == precision else copied(pipeline, precision)


def copied(pipeline: Any, precision: str | None = None) -> Any:
    """Copy a pipeline and its model, by default in the same dtype policy."""
    model = pipeline.model
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    converted = keras.saving.deserialize_keras_object(
        config if precision is None else _replaced(config, precision)
    )
    converted.set_weights(model.get_weights())
    tokenizers = [] if pipeline.tokenizer is None else [pipeline.tokenizer]
    copy = type(pipeline)(converted, *tokenizers, **pipeline.settings())
    copy.source = pipeline.source
    return copy


def encoder_of(pipeline: Any) -> Any:
    """Return the encoder of a pipeline, for a new head."""
    encoder = getattr(pipeline.model, "encoder", pipeline.model)
    if not isinstance(encoder, models.BERT | models.ModernBERT):
        raise ArgumentError(
            "{from_} must be a pipeline with an encoder, such as a BERT, for this task. "
            f"Received: a {type(pipeline).__name__} with a {type(pipeline.model).__name__}"
        )
    return encoder


def check_pipeline(pipeline: Any, expected: type) -> Any:
    """Return a pipeline of the expected class, or raise a ValueError."""
    if not isinstance(pipeline, expected):
        raise ArgumentError(
            f"{{from_}} must be a {expected.__name__} for this task. Received: a {type(pipeline).__name__}"
        )
    return pipeline


def _replaced(config: Any, precision: str) -> Any:
    """Replace every dtype policy of a serialised model."""
    if isinstance(config, list):
        return [_replaced(item, precision) for item in config]
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        return {**config, "config": {"name": precision}}
    return {name: _replaced(value, precision) for name, value in config.items()}
