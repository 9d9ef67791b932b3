"""Saving and loading of pipelines as folders with model, tokenizer and settings."""

import os
import pathlib
from typing import Any, ClassVar, Self

import keras

from keras_transformer import text
from keras_transformer_serving import bundle, files

CONFIG = "config.json"


class Pipeline:
    """Base class of pipelines, which saves `model`, `tokenizer` (if any) and `settings()`."""

    _settings_file: ClassVar[str] = "settings.json"

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        raise NotImplementedError

    def save(self, folder: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Save model, tokenizer and settings to a folder, which `pipelines.load` reads.

        Args:
            folder: the folder, written atomically.
            overwrite: whether to replace an existing pipeline.

        Raises:
            FileExistsError: if `folder` exists and `overwrite` is False, or it is not a pipeline.
            ValueError: if the model is quantised or an `Ensemble`, or the sampler has a draft model.
        """
        if not hasattr(self.model, "save"):
            raise ValueError(
                "`model` must be a Keras model; save each model of an ensemble in a pipeline of its own. "
                f"Received: a {type(self.model).__name__}"
            )
        if pathlib.Path(folder).exists() and overwrite and not is_pipeline(folder):
            raise FileExistsError(
                f"`folder` must be new, or a pipeline if overwrite=True. Received: folder={str(folder)!r}"
            )
        if any(variable.dtype == "int8" for variable in self.model.variables):
            raise ValueError(
                "`model` must not be quantised, as its file could not be loaded. Save it before quantisation, and "
                "quantise after loading. Received: a model with int8 weights"
            )
        settings = self.settings()
        with files.new_folder(folder, overwrite) as new:
            self.model.save(new / "model.keras")
            files.write_json(new / self._settings_file, settings)
            config = {"pipeline": type(self).__name__, "model_sha256": files.sha256(new / "model.keras")}
            if hasattr(self, "tokenizer"):
                self.tokenizer.save(new / "tokenizer")
                config["tokenizer_sha256"] = self.tokenizer.sha256
            files.write_json(new / CONFIG, config)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load a pipeline from the folder written by `save`."""
        folder = pathlib.Path(folder)
        config = files.read_json(folder / CONFIG)
        _check_sha256(
            folder / "model.keras", config.get("model_sha256"), files.sha256(folder / "model.keras")
        )
        tokenizers = []
        if (folder / "tokenizer").exists() or "tokenizer_sha256" in config:
            tokenizers = [text.load(folder / "tokenizer")]
            _check_sha256(folder / "tokenizer", config.get("tokenizer_sha256"), tokenizers[0].sha256)
        model = keras.saving.load_model(folder / "model.keras")
        settings = files.read_json(folder / cls._settings_file)
        try:
            return cls(model, *tokenizers, **settings)
        except TypeError as error:
            raise ValueError(
                f"`{folder / cls._settings_file}` must hold a pipeline's settings. Received: {settings!r}"
            ) from error


def is_pipeline(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is a saved pipeline, by its `config.json`."""
    path = pathlib.Path(folder) / CONFIG
    if not path.is_file() or bundle.is_bundle(folder):  # an export has a config.json, too
        return False
    config = files.read_json(path)
    return isinstance(config, dict) and "pipeline" in config


def _check_sha256(path: pathlib.Path, expected: str | None, found: str) -> None:
    if expected is None:
        raise ValueError(f"`{path.parent / CONFIG}` must have the sha256 of {path.name}. Received: none")
    if found != expected:
        raise ValueError(f"`{path}` is damaged: its sha256 must be {expected}. Received: {found}")
