"""The models of CTranslate2 of an export, run by it."""

from collections.abc import Mapping
from typing import Any

from keras_transformer_serving.ctranslate2_engines.encoder import HEAD, EncoderModel
from keras_transformer_serving.ctranslate2_engines.generation import CTranslate2Engine
from keras_transformer_serving.ctranslate2_engines.loading import CTRANSLATE2, file_of
from keras_transformer_serving.ctranslate2_engines.whisper import WhisperModel
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.targets import EngineOptions, ServedTarget


class ServedCTranslate2(ServedTarget):
    """CTranslate2."""

    name = CTRANSLATE2
    options = ("precision", "threads", "workers")

    @classmethod
    def engine(
        cls, files: PartFiles, config: dict[str, Any], options: EngineOptions
    ) -> CTranslate2Engine | EncoderModel | WhisperModel:
        """Return the model of a precision as an engine.

        Raises:
            ImportError: if CTranslate2 is not installed.
            ValueError: if the export lacks the precision, or `threads` is no positive integer.
        """
        if "generation" in config:
            return CTranslate2Engine(files, config, options)
        return (EncoderModel if f"{HEAD}.json" in files.names else WhisperModel)(files, config, options)

    @classmethod
    def size(cls, sizes: Mapping[str, int], options: EngineOptions) -> int:
        """Return the number of bytes of the model of a precision."""
        return sizes.get(file_of("model.bin", options.precision), 0)
