"""Arrays and their settings, which an export for CTranslate2 computes with beside the model."""

import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer_serving import files
from keras_transformer_serving.forward import OPTIONAL
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.tasks import Tensor


class Arrays(NamedTuple):
    """Settings, and arrays by name.

    Attributes:
        settings: values of JSON, among them the "inputs" and "outputs" of a row, their types and shapes by name.
        arrays: the arrays.
    """

    settings: dict[str, Any]
    arrays: Mapping[str, np.ndarray]

    def write(self, folder: pathlib.Path, name: str) -> None:
        """Write the files `NAME.json` and `NAME.npz`."""
        files.write_json(folder / f"{name}.json", self.settings)
        arrays: dict[str, Any] = {**self.arrays}
        np.savez(folder / f"{name}.npz", **arrays)

    @classmethod
    def read(cls, part: PartFiles, name: str) -> Self:
        """Read the files of a part."""
        with np.load(io.BytesIO(part.content(f"{name}.npz"))) as arrays:
            return cls(json.loads(part.content(f"{name}.json")), dict(arrays))

    def tensors(self, side: str) -> tuple[Tensor, ...]:
        """Return the "inputs" or "outputs"."""
        return tuple(
            Tensor(name, dtype, tuple(shape), optional=name in OPTIONAL)
            for name, (dtype, shape) in self.settings[side].items()
        )
