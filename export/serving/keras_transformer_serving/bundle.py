"""The format of an export: a folder of parts with a manifest, written atomically and verified when read."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_transformer_serving import files

MANIFEST = "manifest.json"
CONFIG = "config.json"
PARITY = "parity.json"
FORMAT = 1


class Bundle:
    """An export on disk, opened for reading.

    Args:
        folder: the export, as the functions of `keras_transformer.export` write it.

    Raises:
        FileNotFoundError: if the folder is not an export.
        ValueError: if its manifest is damaged or of another format.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        if not is_bundle(folder):
            raise FileNotFoundError(
                "`folder` must be an export, with a manifest.json, as `keras_transformer.export` writes it. "
                f"Received: folder={str(folder)!r}"
            )
        self.manifest: dict[str, Any] = files.read_json(self.folder / MANIFEST)
        if not _is_manifest(self.manifest):
            raise ValueError(
                f"`{self.folder / MANIFEST}` must be an export's manifest, and is something else"
            )
        if self.manifest.get("format") != FORMAT:
            raise ValueError(
                f"`{self.folder / MANIFEST}` must be of format {FORMAT}; a newer version of "
                f"keras-transformer-serving may read others. Received: {self.manifest.get('format')!r}"
            )

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the exported pipeline: special token ids, limits, the tokenizer's class."""
        config: dict[str, Any] = files.read_json(self.checked(CONFIG))
        return config

    @property
    def parity(self) -> dict[str, Any]:
        """The report of the comparison with the model, by part."""
        parity: dict[str, Any] = files.read_json(self.checked(PARITY))
        return parity

    @property
    def tokenizer_model(self) -> bytes:
        """The content of the tokenizer's file."""
        return self.checked(f"tokenizer/{self.config['tokenizer_file']}").read_bytes()

    def checked(self, name: str) -> pathlib.Path:
        """Return the path of a file after verifying its size and SHA-256 digest.

        Args:
            name: relative to the folder, with forward slashes.

        Raises:
            FileNotFoundError: if it is missing or not part of the export.
            ValueError: if it has changed.
        """
        error = self._file_error(name)
        if error is None:
            return self.folder / name
        error_class = (
            ValueError
            if (self.folder / name).is_file() and name in self.manifest["files"]
            else FileNotFoundError
        )
        raise error_class(f"`{self.folder / name}` {error}")

    def check(self) -> None:
        """Verify every file.

        Raises:
            ValueError: if any is missing or has changed; the message names all of them.
        """
        checks = ((name, self._file_error(name)) for name in self.manifest["files"])
        errors = [f"{name} {error}" for name, error in checks if error]
        if errors:
            raise ValueError(f"`{self.folder}` must be as it was exported. Received: {'; '.join(errors)}")

    def _file_error(self, name: str) -> str | None:
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


def is_bundle(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is an export, that is, has a manifest."""
    return (pathlib.Path(folder) / MANIFEST).is_file()


@contextlib.contextmanager
def new_part(
    folder: str | os.PathLike[str],
    part: str,
    config: Mapping[str, Any],
    versions: Mapping[str, str | None],
    write_shared: Callable[[pathlib.Path], None] = lambda _: None,
) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """Write a part of an export: all of it if the block ends without an error, or nothing.

    Args:
        folder: the export, which is created if it does not exist, is empty or has other parts of the same pipeline.
        part: the folder of the part, relative to `folder`, with forward slashes.
        config: the settings of the pipeline, for `config.json`.
        versions: of the packages that write the part, by name, for the manifest.
        write_shared: writes the files that all parts share, such as the tokenizer's, into the folder of a new export.

    Yields:
        A temporary folder to write into, and a dictionary to fill with the part's entry in `parity.json`.

    Raises:
        FileExistsError: if the part exists.
        ValueError: if `folder` is not an export, or one with other settings.
    """
    folder = pathlib.Path(folder)
    parity: dict[str, Any] = {}
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        with files.new_folder(folder) as new:
            (new / part).mkdir(parents=True)
            yield new / part, parity
            write_shared(new)
            files.write_json(new / CONFIG, config)
            _record(new, part, parity, versions)
        return
    _check_settings(folder, config)
    records = {name: (folder / name).read_bytes() for name in (PARITY, MANIFEST)}
    with files.new_folder(folder / part) as new:
        yield new, parity
    try:
        _record(folder, part, parity, versions)
    except BaseException:
        shutil.rmtree(folder / part)
        for name, content in records.items():
            (folder / name).write_bytes(content)
        raise


def write_manifest(folder: str | os.PathLike[str], versions: Mapping[str, str | None]) -> None:
    """Write the manifest: size and SHA-256 digest of every file, and versions of packages.

    The entries of files that an existing manifest lists are kept, so that damage stays visible.
    """
    folder = pathlib.Path(folder)
    known = files.read_json(folder / MANIFEST)["files"] if is_bundle(folder) else {}
    known.pop(PARITY, None)
    entries = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            name = path.relative_to(folder).as_posix()
            entries[name] = known.get(name) or {"size": path.stat().st_size, "sha256": files.sha256(path)}
    files.write_json(folder / MANIFEST, {"format": FORMAT, "versions": dict(versions), "files": entries})


def _check_settings(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Raise unless the folder is an intact export with these settings."""
    if not (folder / CONFIG).is_file() or not is_bundle(folder):
        raise ValueError(f"`folder` must be new, empty or an export. Received: folder={str(folder)!r}")
    bundle = Bundle(folder)
    bundle.check()
    existing = bundle.config
    differing = sorted(name for name in config if config[name] != existing.get(name))
    if differing:
        raise ValueError(
            "`folder` holds an export of another pipeline; choose another folder. "
            f"Received: folder={str(folder)!r}, which differs in {', '.join(differing)}"
        )


def _record(
    folder: pathlib.Path, part: str, parity: dict[str, Any], versions: Mapping[str, str | None]
) -> None:
    """Enter a part in `parity.json` and the manifest."""
    path = folder / PARITY
    parities = files.read_json(path) if path.exists() else {}
    files.write_json(path, {**parities, part: parity})
    write_manifest(folder, versions)


def _is_manifest(content: Any) -> bool:
    entries = content.get("files") if isinstance(content, dict) else None
    return isinstance(entries, dict) and all(
        isinstance(entry, dict) and {"size", "sha256"} <= set(entry) for entry in entries.values()
    )
