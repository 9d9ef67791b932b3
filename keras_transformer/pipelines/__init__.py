"""Tokenizer, model and generation settings as one object: text in, text out."""

import os
import pathlib

from keras_transformer import files
from keras_transformer.pipelines.evaluation import evaluate as evaluate
from keras_transformer.pipelines.evaluation import scorers as scorers
from keras_transformer.pipelines.text_to_text import TextToText as TextToText

__all__ = ["TextToText", "evaluate", "load", "scorers"]

_CLASSES = {"TextToText": TextToText}


def load(folder: str | os.PathLike[str]) -> TextToText:
    """Load a pipeline that `save` has written.

    Args:
        folder: the folder.

    Returns:
        The pipeline.

    Raises:
        FileNotFoundError: where the folder is no pipeline.
        ValueError: where a file in it is damaged.
    """
    config_file = pathlib.Path(folder) / "config.json"
    if config_file.with_name("manifest.json").is_file():
        raise FileNotFoundError(
            "`folder` must be a pipeline, not an export, which `keras_transformer.serving.load` reads. "
            f"Received: folder={str(folder)!r}"
        )
    config = files.read_json(config_file) if config_file.is_file() else {}
    if not isinstance(config, dict) or str(config.get("pipeline")) not in _CLASSES:
        raise FileNotFoundError(
            f"`folder` must be one that a pipeline's `save` has written. Received: folder={str(folder)!r}, "
            f"which {'has no config.json' if not config_file.is_file() else 'is something else'}"
        )
    return _CLASSES[config["pipeline"]].load(folder)
