"""Run exports of `keras_transformer` with ONNX Runtime, without TensorFlow or Keras."""

import os
from collections.abc import Sequence
from typing import Any

from keras_transformer_serving.bundle import Bundle as Bundle
from keras_transformer_serving.graphs import Graphs as Graphs
from keras_transformer_serving.graphs import uniform_noise as uniform_noise
from keras_transformer_serving.model import Model as Model
from keras_transformer_serving.text_to_text import TextToText as TextToText
from keras_transformer_serving.tokenizer import Tokenizer as Tokenizer
from keras_transformer_serving.tokenizer import reads_text as reads_text
from keras_transformer_serving.tokenizer import tokenizer_of as tokenizer_of

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "Graphs",
    "Model",
    "TextToText",
    "Tokenizer",
    "load",
    "reads_text",
    "tokenizer_of",
    "uniform_noise",
]


def load(folder: str | os.PathLike[str], providers: Sequence[Any] | None = None) -> Any:
    """Load the ONNX graphs of an export.

    Args:
        folder: the export, as `keras_transformer.export.onnx` writes it.
        providers: ONNX Runtime's execution providers, by default all that are available, GPUs first.

    Returns:
        A `TextToText` for a pipeline that generates: a function from texts to texts, or, where the tokenizer is not
        SentencePiece and so needs TensorFlow, from token ids to token ids by its `generate`. A `Model` for any other
        pipeline, whose `run` takes token ids, images or graphs.

    Raises:
        FileNotFoundError: if the folder is not an export or has no ONNX graphs.
        ImportError: if ONNX Runtime is not installed.
        ValueError: if a file is not the one that was exported.

    Example:
        >>> translate = load("export/es-en")
        >>> translate(["¿Dónde está la estación?"])
        ['Where is the station?']
    """
    bundle = Bundle(folder)
    config = bundle.config

    def path(name: str) -> os.PathLike[str]:
        return bundle.checked(f"onnx/{name}.onnx")

    if "generation" not in config:
        return Model(path, config, providers)
    return TextToText(Graphs(path, config, providers), tokenizer_of(bundle.tokenizer_model, config))
