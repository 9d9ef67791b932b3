"""The manifest of an export: the size and SHA-256 digest of each file, its own digest, an optional signature.

    {"format": 1, "versions": {package: version}, "files": {name: {"size": bytes, "sha256": digest}},
     "source": {"name": id, "commit": commit, …}, "left_out": {precision: reason}, "digest": SHA-256,
     "signature": HMAC-SHA256}

Names are relative to the export, with forward slashes. `source` is that of a published model, `left_out` has the
precisions that were not close enough to the model, if there are any, those of other parts than "onnx" as
"litert/int8". `digest` and `signature`
are of the canonical JSON of the other entries: sorted keys, no spaces, ASCII.
"""

import hashlib
import hmac
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer_serving import files

FORMAT = 1


def entry(content: bytes) -> dict[str, Any]:
    """Return the size and SHA-256 digest of a file's content."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entry_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the size and SHA-256 digest of a file, without reading all of it into memory."""
    return {"size": os.path.getsize(path), "sha256": files.sha256(path)}


def sealed(
    versions: Mapping[str, str | None],
    entries: Mapping[str, Any],
    signature_key: bytes | None,
    source: Mapping[str, Any] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a manifest with its digest and, with a key, its signature.

    Args:
        versions: of the packages that wrote the export, by name.
        entries: size and digest of each file, by name.
        signature_key: the key of the signature.
        source: the published model of the export.
        left_out: why precisions are missing, by name.
    """
    content: dict[str, Any] = {
        "format": FORMAT,
        "versions": dict(versions),
        "files": dict(sorted(entries.items())),
    }
    if source is not None:
        content["source"] = dict(source)
    if left_out:
        content["left_out"] = dict(left_out)
    canonical = _canonical(content)
    content["digest"] = hashlib.sha256(canonical).hexdigest()
    if signature_key is not None:
        content["signature"] = _signature(canonical, signature_key)
    return content


def read(path: str | os.PathLike[str], signature_key: bytes | None = None) -> dict[str, Any]:
    """Read a manifest.

    Args:
        path: the file.
        signature_key: the key that the manifest must be signed with; by default any signature is ignored.

    Raises:
        FileNotFoundError: if it is missing.
        ValueError: if it is damaged, was edited, is of another format, or is not signed with the key.
    """
    check_key(signature_key)
    content: dict[str, Any] = files.read_json(path)
    files.check_format(path, content, FORMAT)
    if not _is_manifest(content):
        raise ValueError(f"`{path}` must be an export's manifest, and is something else. Export again")
    canonical = _canonical(
        {key: value for key, value in content.items() if key not in ("digest", "signature")}
    )
    digest = hashlib.sha256(canonical).hexdigest()
    if content.get("digest") != digest:
        raise ValueError(
            f"`{path}` must be as it was exported: it was edited or damaged. Restore it from a copy, or export again. "
            f"Received: content of sha256 {digest}, and the digest {content.get('digest')!r}"
        )
    outside = [name for name in content["files"] if not _is_inside(name)]
    if outside:
        raise ValueError(f"`{path}` must list files inside the export. Export again. Received: {outside}")
    if signature_key is not None:
        _check_signature(path, content.get("signature"), _signature(canonical, signature_key))
    return content


def check_key(signature_key: bytes | None) -> None:
    """Raise unless a value may be the key of a signature, or None. The message does not show it."""
    if signature_key is not None and (not isinstance(signature_key, bytes) or not signature_key):
        received = "no bytes" if signature_key == b"" else type(signature_key).__name__
        raise ValueError(f"`signature_key` must be None or bytes, at least one. Received: {received}")


def _check_signature(path: str | os.PathLike[str], signature: Any, expected: str) -> None:
    if signature is None:
        raise ValueError(
            f"`{path}` must be signed, because a key was passed. Export with that key, or omit it. "
            "Received: a manifest without a signature"
        )
    if not hmac.compare_digest(str(signature).encode(), expected.encode()):
        raise ValueError(
            f"`{path}` must be signed with the key that was passed. Pass the key of its export, or export again. "
            "Received: another signature"
        )


def _signature(canonical: bytes, key: bytes) -> str:
    return hmac.new(key, canonical, "sha256").hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _is_manifest(content: Mapping[str, Any]) -> bool:
    entries = content.get("files")
    return isinstance(entries, dict) and all(
        isinstance(entry, dict) and set(entry) == {"size", "sha256"} for entry in entries.values()
    )


def _is_inside(name: str) -> bool:
    path = pathlib.PurePosixPath(name)
    return (
        bool(path.parts)
        and path.as_posix() == name
        and not path.is_absolute()
        and not {"..", "\\", "\0", ":"} & {*path.parts, *name}
    )
