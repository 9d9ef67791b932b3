"""Pipelines from folders of Hugging Face's `transformers`."""

import os
import pathlib
from typing import Any

from keras_transformer import files, interop, text
from keras_transformer.pipelines.text_generation import TextGeneration

# Of each architecture, the pipeline and the tokenizer.
_PIPELINES: dict[str, tuple[Any, Any]] = {"gpt2": (TextGeneration, text.BytePairTokenizer)}


def from_hugging_face(folder: str | os.PathLike[str], **settings: Any) -> Any:
    """Load model and tokenizer from a folder that `transformers` has written, or that was downloaded from its hub.

    Args:
        folder: with what `interop.from_hugging_face` reads, and the tokenizer's files.
        **settings: for the pipeline, such as `generation` and `max_new_tokens`.

    Returns:
        A `TextGeneration` for GPT-2.

    Raises:
        FileNotFoundError: where a file is absent.
        ImportError: where safetensors is not installed.
        ValueError: where a file is damaged, or there is no pipeline for the architecture; `interop.from_hugging_face`
            may still read the model.

    Example:
        >>> writer = from_hugging_face("downloads/gpt2", max_new_tokens=32)  # doctest: +SKIP
    """
    model = interop.from_hugging_face(folder)
    model_type = files.read_json(pathlib.Path(folder) / "config.json")["model_type"]
    if model_type not in _PIPELINES:
        raise ValueError(
            f"`folder` must hold one of {sorted(_PIPELINES)}, for which there is a pipeline; "
            f"`interop.from_hugging_face` reads the model alone. Received: model_type={model_type!r}"
        )
    pipeline, tokenizer = _PIPELINES[model_type]
    return pipeline(model, tokenizer.from_files(folder), **settings)
