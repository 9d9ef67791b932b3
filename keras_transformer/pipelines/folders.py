"""A model, its tokenizer and its settings as one folder, which `pipelines.load` reads."""

import os
import pathlib
from typing import Any, ClassVar, Self

import keras

from keras_transformer import text
from keras_transformer_serving import bundle, files

CONFIG = "config.json"


class Saved:
    """What is saved of a pipeline: `model`, `tokenizer` where it has one, and `settings()`."""

    _settings_file: ClassVar[str] = "settings.json"

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments besides model and tokenizer."""
        raise NotImplementedError

    def save(self, folder: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write model, tokenizer and settings as one folder, which `pipelines.load` reads.

        Args:
            folder: made whole or not at all.
            overwrite: whether an existing pipeline may be replaced.

        Raises:
            FileExistsError: where `folder` exists and `overwrite` is False, or it is no pipeline.
            ValueError: where the model is quantised or an `Ensemble`, or a sampler has a model that drafts.
        """
        if not hasattr(self.model, "save"):
            raise ValueError(
                "`model` must be one that Keras saves; save each model of an ensemble in a pipeline of its own. "
                f"Received: a {type(self.model).__name__}"
            )
        if pathlib.Path(folder).exists() and overwrite and not is_pipeline(folder):
            raise FileExistsError(
                f"`folder` must be new or a pipeline where overwrite=True. Received: folder={str(folder)!r}"
            )
        if any(variable.dtype == "int8" for variable in self.model.variables):
            raise ValueError(
                "`model` must not be quantised yet: a file could not be loaded. Save it first, quantise what is "
                "loaded. Received: a model with int8 weights"
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
        """The pipeline that `save` has written to `folder`."""
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
    """Whether `save` has written the folder, as far as its `config.json` tells."""
    path = pathlib.Path(folder) / CONFIG
    if not path.is_file() or bundle.is_bundle(folder):  # an export has both
        return False
    config = files.read_json(path)
    return isinstance(config, dict) and "pipeline" in config


def _check_sha256(path: pathlib.Path, expected: str | None, found: str) -> None:
    if expected is None:
        raise ValueError(f"`{path.parent / CONFIG}` is damaged: it must name the sha256 of {path.name}")
    if found != expected:
        raise ValueError(f"`{path}` is damaged: its sha256 must be {expected}. Received: {found}")
