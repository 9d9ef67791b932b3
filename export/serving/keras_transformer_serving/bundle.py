"""The folder that an export consists of, and its manifest."""

import os
import pathlib
from typing import Any

from keras_transformer import files

MANIFEST = "manifest.json"
CONFIG = "config.json"


class Bundle:
    """An export's folder: where its files are, and whether they are what was written.

    Args:
        folder: what the functions of `keras_transformer.export` have written.

    Raises:
        FileNotFoundError: where it is no export.
        ValueError: where its manifest is damaged.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise FileNotFoundError(
                "`folder` must be an export, with a manifest.json, as `keras_transformer.export` writes it. "
                f"Received: folder={str(folder)!r}"
            )
        self.manifest: dict[str, Any] = files.read_json(self.folder / MANIFEST)
        if not _is_manifest(self.manifest):
            raise ValueError(
                f"`{self.folder / MANIFEST}` must be an export's manifest, and is something else"
            )

    @property
    def config(self) -> dict[str, Any]:
        """What is needed to run the export: special ids, limits, the tokenizer's kind."""
        return files.read_json(self.checked(CONFIG))

    def checked(self, name: str) -> pathlib.Path:
        """The path of a file, after a look at its sha256.

        Args:
            name: relative to the folder, with forward slashes.

        Raises:
            FileNotFoundError: where it is missing or was never exported.
            ValueError: where it has changed.
        """
        problem = self.problem(name)
        if problem is None:
            return self.folder / name
        kind = (
            ValueError
            if (self.folder / name).is_file() and name in self.manifest["files"]
            else FileNotFoundError
        )
        raise kind(f"`{self.folder / name}` {problem}")

    def problem(self, name: str) -> str | None:
        """What is wrong with a file, or None."""
        expected = self.manifest["files"].get(name)
        path = self.folder / name
        if expected is None:
            return "is not part of this export"
        if not path.is_file():
            return "is missing from this export"
        if path.stat().st_size != expected["size"]:
            return f"is damaged: it must have {expected['size']} bytes. Received: {path.stat().st_size}"
        found = files.sha256(path)
        if found != expected["sha256"]:
            return f"is damaged: its sha256 must be {expected['sha256']}. Received: {found}"
        return None

    def problems(self) -> list[str]:
        """What is wrong with any of the files, a line each."""
        checks = ((name, self.problem(name)) for name in self.manifest["files"])
        return [f"{name} {problem}" for name, problem in checks if problem]


def _is_manifest(content: Any) -> bool:
    entries = content.get("files") if isinstance(content, dict) else None
    return isinstance(entries, dict) and all(
        isinstance(entry, dict) and {"size", "sha256"} <= set(entry) for entry in entries.values()
    )
