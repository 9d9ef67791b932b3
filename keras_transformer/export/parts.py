"""The parts of an export's folder: each is written whole, or not at all, and entered in the manifest."""

import contextlib
import importlib.metadata
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from keras_transformer import files
from keras_transformer.serving.bundle import CONFIG, MANIFEST, Bundle

PARITY = "parity.json"
_PACKAGES = ("keras", "tensorflow", "tensorflow-text", "sentencepiece", "tf2onnx", "onnx", "onnxruntime")


@contextlib.contextmanager
def new_part(pipeline: Any, folder: pathlib.Path, part: str) -> Iterator[tuple[pathlib.Path, dict[str, Any]]]:
    """A folder to fill, which becomes `folder/part` once the block has ended without an error.

    Args:
        pipeline: what is being exported.
        folder: the export's folder, new or with other parts of the same pipeline in it.
        part: relative to it, with forward slashes.

    Yields:
        The temporary folder, and a dictionary for what `parity.json` shall say of the part.

    Raises:
        FileExistsError: where the part exists already.
        ValueError: where `folder` is something else, or an export with another tokenizer or other settings.
    """
    settings = settings_of(pipeline)
    parity: dict[str, Any] = {}
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        with files.new_folder(folder) as new:
            (new / part).mkdir(parents=True)
            yield new / part, parity
            if hasattr(pipeline, "tokenizer"):
                pipeline.tokenizer.save(new / "tokenizer")
            if hasattr(pipeline, "generation_config"):
                files.write_json(new / "generation_config.json", pipeline.generation_config())
            files.write_json(new / CONFIG, settings)
            _record(new, part, parity)
        return
    _check_bundle(folder, settings)
    records = {name: (folder / name).read_bytes() for name in (PARITY, MANIFEST)}
    with files.new_folder(folder / part) as new:
        yield new, parity
    try:
        _record(folder, part, parity)
    except BaseException:
        shutil.rmtree(folder / part)
        for name, content in records.items():
            (folder / name).write_bytes(content)
        raise


def settings_of(pipeline: Any) -> dict[str, Any]:
    """What is needed to run the export without this package's models."""
    model = pipeline.model
    known = getattr(pipeline, "encoder", model)
    settings = {"pipeline": type(pipeline).__name__}
    if hasattr(pipeline, "tokenizer"):
        tokenizer = pipeline.tokenizer
        settings |= {
            "tokenizer_class": type(tokenizer).__name__,
            "tokenizer_file": tokenizer.file_name,
            "tokenizer_sha256": tokenizer.sha256,
            "vocabulary_size": known.vocabulary_size,  # that of marks included, which a tokenizer may not have
            "blank_ids": list(tokenizer.blank_ids),
            "pad_id": known.pad_id,
            "start_id": getattr(known, "start_id", None),  # what has no encoder, or only that, has none
            "end_id": getattr(known, "end_id", None),
        }
    if not hasattr(pipeline, "sampler"):
        names = ("max_length", "num_segments", "image_size", "num_channels", "value_range", "num_features")
        settings |= {name: getattr(known, name) for name in names if hasattr(known, name)}
    if hasattr(pipeline, "problem_type"):
        settings["problem_type"] = pipeline.problem_type
    own = pipeline.generation_config if hasattr(pipeline, "generation_config") else pipeline.settings
    return json.loads(json.dumps({**settings, **own()}))


def _check_bundle(folder: pathlib.Path, settings: dict[str, Any]) -> None:
    """Raise unless the folder is a sound export of the same kind of pipeline."""
    if not (folder / CONFIG).is_file() or not (folder / MANIFEST).is_file():
        raise ValueError(f"`folder` must be new, empty or an export. Received: folder={str(folder)!r}")
    bundle = Bundle(folder)
    problems = bundle.problems()
    if problems:
        raise ValueError(f"`{folder}` must be as it was exported. Received: {'; '.join(problems)}")
    differing = sorted(name for name in settings if settings[name] != bundle.config.get(name))
    if differing:
        raise ValueError(
            "`folder` holds an export of another pipeline; choose another folder. "
            f"Received: folder={str(folder)!r}, which differs in {', '.join(differing)}"
        )


def _record(folder: pathlib.Path, part: str, parity: dict[str, Any]) -> None:
    """Enter a part in `parity.json` and `manifest.json`."""
    parities = files.read_json(folder / PARITY) if (folder / PARITY).exists() else {}
    files.write_json(folder / PARITY, {**parities, part: parity})
    _write_manifest(folder)


def _write_manifest(folder: pathlib.Path) -> None:
    """List every file; what the files of earlier parts must be stays as it was."""
    known = files.read_json(folder / MANIFEST)["files"] if (folder / MANIFEST).exists() else {}
    known.pop(PARITY, None)
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MANIFEST)
    entries = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        entries[name] = known.get(name) or {"size": path.stat().st_size, "sha256": files.sha256(path)}
    versions = {name: _version(name) for name in _PACKAGES}
    files.write_json(folder / MANIFEST, {"format": 1, "versions": versions, "files": entries})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
