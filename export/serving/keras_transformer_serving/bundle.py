"""The format of an export: a folder of parts and their manifest, to which parts are added atomically.

    manifest.json  config.json  generation_config.json  tokenizer/      written once, with the first part
    saved_model/<name>/<version>/  onnx/                                the parts
    parity.json  README.md  serving/                                    derived from all parts, written with each
    .keras-transformer-export/                                          only while a part is written

An export is what `manifest.json` lists. `new_parts` writes parts in these steps, each on the disk before the next:

1. Lock `.keras-transformer-export/`; the lock ends with the process.
2. Write the files of the parts, and the new derived files, into `.keras-transformer-export/files/`.
3. Copy the derived files that they replace to `.keras-transformer-export/replaced/`, and write the next manifest to
   `.keras-transformer-export/manifest.json`: the record of what is intended.
4. Rename the files to their places.
5. Rename the next manifest to `manifest.json`: the commit.
6. Remove `.keras-transformer-export/`.

Readers take the files that `manifest.json` lists and ignore those that only the next manifest lists; a file in neither
is an error. After a crash before step 5, the next export finds the next manifest where step 3 wrote it and undoes
step 4. Nothing enters a manifest because it happens to be in the folder.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer_serving import files, manifest

MANIFEST = "manifest.json"
CONFIG = "config.json"
PARITY = "parity.json"
CARD = "README.md"
TOKENIZER = "tokenizer"
TOKENIZER_EXAMPLES = f"{TOKENIZER}/examples.json"
ONNX = "onnx"
SERVING = "serving"
WORK = ".keras-transformer-export"
_STAGED = "files"
_REPLACED = "replaced"


class Bundle:
    """An export on disk, opened for reading.

    Args:
        folder: the export, as the functions of `keras_transformer.export` write it.
        signature_key: the key that the export must be signed with; by default any signature is ignored.

    Raises:
        FileNotFoundError: if the folder is not an export.
        ValueError: if its manifest is damaged, was edited, is of another format or not signed with the key.
    """

    def __init__(self, folder: str | os.PathLike[str], signature_key: bytes | None = None) -> None:
        self.folder = pathlib.Path(folder)
        self._signature_key = signature_key
        if not is_bundle(folder):
            raise FileNotFoundError(
                "`folder` must be an export, with a manifest.json, as `keras_transformer.export` writes it. "
                f"Received: folder={str(folder)!r}"
            )
        self.manifest: dict[str, Any] = manifest.read(self.folder / MANIFEST, signature_key)

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the exported pipeline: special token ids, limits, the tokenizer's class."""
        config: dict[str, Any] = json.loads(self.read(CONFIG))
        return config

    @property
    def parity(self) -> dict[str, Any]:
        """The report of the comparison with the model, by part."""
        reports = json.loads(self.read(PARITY))  # of an interrupted part, too
        return {part: report for part, report in reports.items() if _has_part(self.manifest, part)}

    def left_out(self, part: str) -> dict[str, str]:
        """Return why precisions of a part are missing that were not close enough to the model, by name."""
        start = _left_out_name(part, "")
        return {
            name.removeprefix(start): reason
            for name, reason in self.manifest.get("left_out", {}).items()
            if name.startswith(start) and "/" not in name.removeprefix(start)
        }

    @property
    def tokenizer_model(self) -> bytes:
        """The content of the tokenizer's file."""
        return self.read(f"{TOKENIZER}/{self.config['tokenizer_file']}")

    def read(self, name: str) -> bytes:
        """Return the content of a file, after verifying its size and SHA-256 digest.

        Args:
            name: relative to the folder, with forward slashes.
        """
        path = self.folder / name
        if name not in self.manifest["files"]:
            raise FileNotFoundError(
                f"`{path}` is not part of this export: {MANIFEST} does not list it. Export again"
            )
        if not path.is_file():
            raise FileNotFoundError(
                f"`{path}` is missing from this export. Restore it from a copy, or export again"
            )
        for _ in _tries(name):
            content = path.read_bytes()
            error = self._difference(name, manifest.entry(content))
            if error is None:
                return content
        raise ValueError(f"`{path}` {error}. Restore it from a copy, or export again")

    def check(self) -> None:
        """Verify every file, and that there are no others."""
        self._raise([*self._differences(), *self._additions()])
        self._raise(self._unreported())

    def check_additions(self) -> None:
        """Verify that the folder has no file that the manifest does not list, and no symbolic link."""
        self._raise(self._additions())

    def _raise(self, errors: Iterable[str]) -> None:
        if errors := list(errors):
            raise ValueError(
                f"`{self.folder}` must be as it was exported. Restore it from a copy, or export into a new folder. "
                f"Received: {'; '.join(errors)}"
            )

    def _differences(self) -> Iterator[str]:
        for name in self.manifest["files"]:
            path = self.folder / name
            for _ in _tries(name):
                entry = manifest.entry_of(path) if path.is_file() else None
                error = "is missing" if entry is None else self._difference(name, entry)
                if error is None:
                    break
            else:
                yield f"{name} {error}"

    def _difference(self, name: str, entry: Mapping[str, Any]) -> str | None:
        expected = self.manifest["files"][name]
        if entry == expected or (_is_derived(name) and entry == self._latest()["files"].get(name)):
            return None
        if entry["size"] != expected["size"]:
            return f"is damaged: it must have {expected['size']} bytes. Received: {entry['size']}"
        return f"is damaged: its sha256 must be {expected['sha256']}. Received: {entry['sha256']}"

    def _additions(self) -> Iterator[str]:
        entries = files.entries(self.folder, ignored=WORK)
        # Read after the folder, so that a part that is committed meanwhile is listed.
        listed = {*self._latest()["files"], MANIFEST}
        for name, regular in entries.items():
            if (self.folder / name).is_symlink():
                yield f"{name} is a symbolic link: replace it with a copy of its target"
            elif not (regular and name in listed):
                yield f"{name} is not listed in {MANIFEST}: remove it"

    def _unreported(self) -> Iterator[str]:
        """Yield differences between the parts with files and those with a report of parity."""
        reports, latest = json.loads(self.read(PARITY)), self._latest()
        for name in self.manifest["files"]:
            shared = "/" not in name or name.startswith((f"{TOKENIZER}/", f"{SERVING}/"))
            if not shared and not any(name.startswith(f"{part}/") for part in reports):
                yield f"{name} is of a part without a report in {PARITY}"
        for part in reports:
            if not _has_part(latest, part):
                yield f"{PARITY} has a report of {part}, which has no files in {MANIFEST}"

    def _latest(self) -> dict[str, Any]:
        """Return the manifest of an export that is writing or has died, or the last that was committed."""
        for path in (self.folder / WORK / MANIFEST, self.folder / MANIFEST):
            with contextlib.suppress(FileNotFoundError):
                return manifest.read(path, self._signature_key)
        return self.manifest


def _is_derived(name: str) -> bool:
    """Return whether a file is written with each part."""
    return name in (PARITY, CARD) or name.startswith(f"{SERVING}/")


def _tries(name: str) -> range:
    """Return the numbers of tries to read a file; another process may commit it again before it is compared."""
    return range(10 if _is_derived(name) else 1)


def is_bundle(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is an export, that is, has a manifest."""
    return (pathlib.Path(folder) / MANIFEST).is_file()


def has_part(folder: str | os.PathLike[str], part: str) -> bool:
    """Return whether a part is in a folder. An interrupted one, which the next export removes, does not count.

    Args:
        folder: an export, or a folder to be.
        part: relative to `folder`, with forward slashes.
    """
    folder = pathlib.Path(folder)
    interrupted, committed = (
        _lists_part(path, part) for path in (folder / WORK / MANIFEST, folder / MANIFEST)
    )
    return os.path.lexists(folder / part) and (committed or not interrupted)


def check_free(folder: str | os.PathLike[str], parts: Sequence[str]) -> None:
    """Raise unless a folder may become an export with new parts.

    Args:
        folder: an export, or a folder to be.
        parts: relative to `folder`, with forward slashes.

    Raises:
        FileExistsError: if a part exists.
        ValueError: if the folder holds anything but an export.
    """
    folder = pathlib.Path(folder)
    interrupted = (folder / WORK / MANIFEST).exists()
    other = folder.exists() and (not folder.is_dir() or {*os.listdir(folder)} - {WORK})
    if other and not is_bundle(folder) and not interrupted:
        raise ValueError(f"`folder` must be new, empty or an export. Received: folder={str(folder)!r}")
    for part in parts:
        if has_part(folder, part):
            raise FileExistsError(
                f"`{folder / part}` must be new; it exists already and is not changed. Choose another folder"
            )


def new_version(folder: str | os.PathLike[str], name: str, version: int) -> str:
    """Return the part of an export that a new version of its SavedModel is.

    Args:
        folder: the export's folder.
        name: the model's name in TensorFlow Serving, a plain folder name.
        version: a positive integer.
    """
    folder = pathlib.Path(folder)
    part = f"saved_model/{name}/{version}"
    if has_part(folder, part):
        taken = [int(path.name) for path in (folder / part).parent.iterdir() if path.name.isdigit()]
        raise FileExistsError(
            f"`{folder / part}` must be new; it exists already and is left as it is. "
            f"Received: the version {version}; the next free one is {max(taken) + 1}"
        )
    return part


@contextlib.contextmanager
def new_parts(
    folder: str | os.PathLike[str],
    parts: Sequence[str],
    config: Mapping[str, Any],
    versions: Mapping[str, str | None],
    write_shared: Callable[[pathlib.Path], None] = lambda _: None,
    signature_key: bytes | None = None,
    write_derived: Callable[[pathlib.Path, dict[str, Any]], None] = lambda *_: None,
    source: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, tuple[pathlib.Path, dict[str, Any]]]]:
    """Write several parts of an export in one commit: all of them if the block ends without an error, or nothing.

    Args:
        folder: the export, which is created if it does not exist, is empty or has other parts of the same pipeline.
        parts: the folders of the parts, relative to `folder`, with forward slashes.
        config: the settings of the pipeline, for `config.json`.
        versions: of the packages that write the part, by name, for the manifest.
        write_shared: writes the files that all parts share, such as the tokenizer's, into the folder of a new export.
        signature_key: the key to sign the manifest with.
        write_derived: writes `README.md` and `serving/` into the folder of new files, given the reports of all parts,
            to which it may add. Files of `serving/` that it does not write stay as they are.
        source: the published model from which the weights come, for the manifest.

    Yields:
        For each part a temporary folder to write into, and a dictionary to fill with the part's entry in `parity.json`.

    Raises:
        BlockingIOError: if another process is writing to the export.
        FileExistsError: if a part exists.
        OSError: if the disk is full; the error names `folder`.
        ValueError: if `folder` is not an export, or one with other settings, or signed with another key.
    """
    folder = pathlib.Path(folder)
    manifest.check_key(signature_key)
    check_free(folder, parts)
    files.nearest_folder(folder)
    with files.full_disk_named(folder), files.locked_folder(folder / WORK) as work:
        _roll_back(folder, work)
        try:
            check_free(folder, parts)
            current = _open(folder, config, signature_key)
            new = work / _STAGED
            written: dict[str, tuple[pathlib.Path, dict[str, Any]]] = {
                part: (new / part, {}) for part in parts
            }
            for path, _ in written.values():
                path.mkdir(parents=True)
            yield written
            if current is None:
                write_shared(new)
                files.write_json(new / CONFIG, config)
            reports = {part: report for part, (_, report) in written.items()}
            reports = {**(current.parity if current else {}), **reports}
            write_derived(new, reports)
            files.write_json(new / PARITY, reports)
            old = current.manifest["files"] if current else {}
            left_out = {
                _left_out_name(part, precision): reason
                for part, report in reports.items()
                for precision, reason in report.get("left_out", {}).items()
            }
            _commit(folder, work, old, versions, signature_key, source, left_out)
        finally:
            with contextlib.suppress(OSError):  # left for the next export
                _roll_back(folder, work)


def _left_out_name(part: str, precision: str) -> str:
    """Return the name of a precision of a part in the manifest's `left_out`."""
    return precision if part == ONNX else f"{part}/{precision}"


def _commit(
    folder: pathlib.Path,
    work: pathlib.Path,
    old: Mapping[str, Any],
    versions: Mapping[str, str | None],
    signature_key: bytes | None,
    source: Mapping[str, Any] | None,
    left_out: Mapping[str, str],
) -> None:
    """Add the files in the working folder to an export with these `old` files, some of which they may replace."""
    staged, replaced = work / _STAGED, work / _REPLACED
    files.sync_tree(staged)
    entries = {name: manifest.entry_of(staged / name) for name in files.entries(staged)}
    common = sorted(entries.keys() & old.keys())
    for name in common:
        (replaced / name).parent.mkdir(parents=True, exist_ok=True)
        (replaced / name).write_bytes((folder / name).read_bytes())
    files.sync_tree(replaced)
    files.write_json(
        work / MANIFEST, manifest.sealed(versions, {**old, **entries}, signature_key, source, left_out)
    )
    for name in [*_topmost(entries, old), *common]:
        files.move(staged / name, folder / name)
    files.move(work / MANIFEST, folder / MANIFEST)


def _roll_back(folder: pathlib.Path, work: pathlib.Path) -> None:
    """Remove the files of an export that failed or was killed: the uncommitted part and temporary files."""
    if (work / MANIFEST).exists():
        current = Bundle(folder) if is_bundle(folder) else None
        old = current.manifest["files"] if current else {}
        for name in _topmost(manifest.read(work / MANIFEST)["files"], old):
            if os.path.lexists(path := _without_links(folder, name)):
                files.move(path, pathlib.Path(tempfile.mkdtemp(dir=work)) / "removed")
        replaced = work / _REPLACED
        for path in sorted(file for file in replaced.rglob("*") if file.is_file()):
            files.move(path, _without_links(folder, path.relative_to(replaced).as_posix()))
        (work / MANIFEST).unlink()
    for path in work.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != files.LOCK:
            path.unlink()


def _without_links(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the path of a file or folder, or raise if it is in a folder that is a symbolic link."""
    for part in pathlib.PurePosixPath(name).parents:
        if (folder / part).is_symlink() and part.name:
            raise ValueError(f"`{folder / part}` must be a folder. Remove it. Received: a symbolic link")
    return folder / name


def _topmost(new: Iterable[str], old: Iterable[str]) -> list[str]:
    """Return the topmost files and folders that have `new` files and no `old` ones."""

    def folders(name: str) -> list[str]:
        """Return the folders of a file, from the outermost, and the file."""
        parts = name.split("/")
        return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]

    kept = {path for name in old for path in folders(name)}
    return sorted({next(path for path in folders(name) if path not in kept) for name in {*new} - {*old}})


def _lists_part(path: pathlib.Path, part: str) -> bool:
    """Return whether a manifest is there and lists files of a part."""
    try:
        return path.is_file() and _has_part(manifest.read(path), part)
    except FileNotFoundError:  # another process has committed it meanwhile
        return False


def _has_part(content: Mapping[str, Any], part: str) -> bool:
    """Return whether a manifest lists files of a part."""
    return any(name.startswith(f"{part}/") for name in content["files"])


def _open(folder: pathlib.Path, config: Mapping[str, Any], signature_key: bytes | None) -> Bundle | None:
    """Return the export, None if it is new, after checking that it is intact and has these settings."""
    if not is_bundle(folder):
        return None
    bundle = Bundle(folder, signature_key)
    if signature_key is None and "signature" in bundle.manifest:
        raise ValueError(f"`{folder}` must be extended with the key that it is signed with. Received: no key")
    bundle.check()
    existing = bundle.config
    differing = sorted(name for name in config if config[name] != existing.get(name))
    if differing:
        raise ValueError(
            "`folder` contains an export of another pipeline; choose another folder. "
            f"Received: folder={str(folder)!r}, which differs in {', '.join(differing)}"
        )
    return bundle
