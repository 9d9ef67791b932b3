"""Pretrained pipelines as the start of a training run."""

import os
import pathlib
from typing import Any

import keras

from keras_transformer import models, pipelines
from keras_transformer.pipelines.base import folder_of, is_pipeline
from keras_transformer_options.arguments import ArgumentError


def load_pipeline(folder: str | os.PathLike[str]) -> Any:
    """Load a pipeline from its folder, the folder of a training run, or a folder of `transformers`."""
    if is_pipeline(folder_of(folder)) or not pathlib.Path(folder).is_dir():
        return pipelines.load(folder)
    return pipelines.from_hugging_face(folder)


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
    return type(pipeline)(converted, *tokenizers, **pipeline.settings())


def encoder_of(pipeline: Any) -> Any:
    """Return the BERT encoder of a pipeline, for a new head.

    Raises:
        ValueError: if the model has none.
    """
    encoder = getattr(pipeline.model, "encoder", pipeline.model)
    if not isinstance(encoder, models.BERT):
        raise ArgumentError(
            "{from_} must be a pipeline with a BERT encoder for this task. "
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
