"""Runs an export with ONNX Runtime, in a process that needs neither TensorFlow nor Keras."""

import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.serving import graphs as graphs
from keras_transformer.serving import noise as noise
from keras_transformer.serving.bundle import Bundle as Bundle
from keras_transformer.serving.graphs import Graphs as Graphs
from keras_transformer.serving.model import Model as Model
from keras_transformer.serving.text_to_text import TextToText as TextToText
from keras_transformer.serving.tokenizer import Tokenizer as Tokenizer
from keras_transformer.serving.tokenizer import reads_text as reads_text
from keras_transformer.serving.tokenizer import tokenizer_of as tokenizer_of

__all__ = ["Bundle", "Graphs", "Model", "TextToText", "Tokenizer", "load"]


def load(folder: str | os.PathLike[str], providers: Sequence[Any] | None = None) -> Any:
    """Load the ONNX graphs of an export.

    Args:
        folder: what `keras_transformer.export.onnx` has written.
        providers: ONNX Runtime's execution providers, by default those that this machine has, GPUs first.

    Returns:
        Of a pipeline that generates, a `TextToText`: a function from texts to texts, or, where the tokenizer is not
        SentencePiece and so needs TensorFlow, from ids to ids by its `generate`. Of another a `Model`, whose `run`
        takes ids, images or graphs.

    Raises:
        FileNotFoundError: where the folder is no export or holds no ONNX graphs.
        ValueError: where a file is not the one that was exported.

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
    tokenizer = tokenizer_of(bundle.checked(f"tokenizer/{config['tokenizer_file']}").read_bytes(), config)
    return TextToText(Graphs(path, config, providers), tokenizer)
