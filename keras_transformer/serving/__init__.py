"""Runs an export with ONNX Runtime, in a process that needs neither TensorFlow nor Keras."""

import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.serving import noise as noise
from keras_transformer.serving.bundle import Bundle as Bundle
from keras_transformer.serving.graphs import Graphs as Graphs
from keras_transformer.serving.text_to_text import TextToText as TextToText
from keras_transformer.serving.tokenizer import Tokenizer as Tokenizer

__all__ = ["Bundle", "Graphs", "TextToText", "Tokenizer", "load"]


def load(folder: str | os.PathLike[str], providers: Sequence[Any] | None = None) -> TextToText:
    """Load the ONNX graphs of an export.

    Args:
        folder: what `keras_transformer.export.onnx` has written.
        providers: ONNX Runtime's execution providers, by default those that this machine has, GPUs first.

    Returns:
        A function from texts to texts.

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
    tokenizer = Tokenizer(bundle.checked(f"tokenizer/{config['tokenizer_file']}").read_bytes(), config)
    return TextToText(Graphs(lambda name: bundle.checked(f"onnx/{name}.onnx"), config, providers), tokenizer)
