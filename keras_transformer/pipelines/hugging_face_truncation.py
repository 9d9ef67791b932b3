"""How long texts are truncated, in `tokenizer_config.json` of `transformers`."""

import inspect
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer_options.arguments import is_integer
from keras_transformer_serving import files
from keras_transformer_serving.pipelines.texts import LEFT, TRUNCATION_SIDES

_FILE = "tokenizer_config.json"
_LENGTH, _SIDE = (
    "model_max_length",
    "truncation_side",
)  # in the file; the argument of the side has the same name
_LIMITS = ("max_length", "max_source_tokens")  # the arguments of pipelines
_LARGE = 2**30  # `transformers` writes 1e30 for no maximum


def truncation_arguments(
    folder: pathlib.Path, pipeline: Any, model: Any, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a pipeline with the maximum number of tokens and the side of truncation of a folder.

    Args:
        folder: the folder.
        pipeline: the class of the pipeline. Prompts always keep their last tokens, and have no such arguments.
        model: its model, whose own maximum applies if it is less.
        known: arguments that are read from other files or given by the caller; they are not returned.
    """
    file, parameters = folder / _FILE, inspect.signature(pipeline).parameters
    config = files.read_json(file) if file.is_file() else {}
    if _SIDE not in parameters:
        return {}
    found: dict[str, Any] = {}
    length, limit = config.get(_LENGTH), getattr(getattr(model, "encoder", model), "max_length", None)
    if is_integer(length) and length < _LARGE:
        (name,) = (each for each in _LIMITS if each in parameters)
        found[name] = length if limit is None else min(length, limit)
    side = config.get(_SIDE)
    if side is not None:
        if side not in TRUNCATION_SIDES:
            raise ValueError(
                f"`{_SIDE}` in {file} must be one of {TRUNCATION_SIDES}. Received: {_SIDE}={side!r}"
            )
        found[_SIDE] = side
    return {name: value for name, value in found.items() if name not in known}


def truncation_config(pipeline: Any) -> dict[str, Any]:
    """Return the entries of the file for a pipeline, the inverse of `truncation_arguments`."""
    side = getattr(pipeline, _SIDE, None)
    own = [getattr(pipeline, name, None) for name in _LIMITS if side is not None]
    lengths = [
        length for length in (*own, getattr(pipeline.encoder, "max_length", None)) if length is not None
    ]
    return {**({_LENGTH: lengths[0]} if lengths else {}), **({_SIDE: side} if side == LEFT else {})}
