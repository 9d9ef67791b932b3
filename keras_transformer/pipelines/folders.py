"""A model, its tokenizer and its settings as one folder, which `pipelines.load` reads."""

import os
import pathlib
from typing import Any

import keras

from keras_transformer import files, text
from keras_transformer.pipelines.text_to_text import CONFIG, is_pipeline


class Saved:
    """What is saved of a pipeline: `model`, `tokenizer` where it has one, and `settings()`."""

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
            ValueError: where the model is quantised.
        """
        if pathlib.Path(folder).exists() and overwrite and not is_pipeline(folder):
            raise FileExistsError(
                f"`folder` must be new or a pipeline where overwrite=True. Received: folder={str(folder)!r}"
            )
        if any(variable.dtype == "int8" for variable in self.model.variables):
            raise ValueError(
                "`model` must not be quantised yet: a file could not be loaded. Save it first, quantise what is "
                "loaded. Received: a model with int8 weights"
            )
        with files.new_folder(folder, overwrite) as new:
            self.model.save(new / "model.keras")
            config = {
                "pipeline": type(self).__name__,
                "settings": self.settings(),
                "model_sha256": files.sha256(new / "model.keras"),
            }
            if hasattr(self, "tokenizer"):
                self.tokenizer.save(new / "tokenizer")
                config["tokenizer_sha256"] = self.tokenizer.sha256
            files.write_json(new / CONFIG, config)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Any:
        """The pipeline that `save` has written to `folder`."""
        folder = pathlib.Path(folder)
        config = files.read_json(folder / CONFIG)
        _check(folder / "model.keras", config.get("model_sha256"), files.sha256(folder / "model.keras"))
        parts = [keras.saving.load_model(folder / "model.keras")]
        if "tokenizer_sha256" in config:
            tokenizer = text.load(folder / "tokenizer")
            _check(folder / "tokenizer", config["tokenizer_sha256"], tokenizer.sha256)
            parts.append(tokenizer)
        try:
            return cls(*parts, **config["settings"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"`{folder / CONFIG}` must hold a pipeline's settings. Received: {config.get('settings')!r}"
            ) from error


def _check(path: pathlib.Path, expected: str | None, found: str) -> None:
    if found != expected:
        raise ValueError(f"`{path}` is damaged: its sha256 must be {expected}. Received: {found}")
