"""The folder of a saved tokenizer: its file, and a description with the file's SHA-256."""

import hashlib
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer_options.arguments import Message
from keras_transformer_serving import files

DESCRIPTION = "tokenizer.json"
FORMAT_VERSION = 1


def write_tokenizer(
    folder: str | os.PathLike[str], description: Mapping[str, Any], name: str, content: bytes
) -> None:
    """Write a tokenizer's file, and then a description with the file's SHA-256, each atomically.

    Args:
        folder: the folder; created if it does not exist.
        description: the other entries of the description, which JSON can represent, including `class_name`.
        name: the name of the tokenizer's file.
        content: the content of the file.
    """
    path = files.as_folder(folder)
    path.mkdir(parents=True, exist_ok=True)
    complete = {
        "format_version": FORMAT_VERSION,
        **description,
        "file": name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    files.write_bytes(path / name, content)
    files.write_json(path / DESCRIPTION, complete)


def read_description(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the description of a saved tokenizer.

    Args:
        folder: the folder written by `write_tokenizer`.

    Returns:
        The description, with at least `class_name`, `format_version`, `file` and `sha256`.

    Raises:
        FileNotFoundError: if there is no description.
        ValueError: if the description is invalid or has a different format version.
    """
    path = pathlib.Path(folder) / DESCRIPTION
    if not path.is_file():
        raise FileNotFoundError(
            Message(
                f"{{folder}} must hold {DESCRIPTION}, as `save` writes it. Received: {{folder=}}, without that file",
                folder=os.fspath(folder),
            )
        )
    description = files.read_json(path)
    missing = {"class_name", "format_version", "file", "sha256"} - set(
        description if isinstance(description, dict) else ()
    )
    if missing:
        raise ValueError(
            f"{path} must hold an object with class_name, format_version, file and sha256. "
            f"Missing: {sorted(missing)}"
        )
    files.check_format(path, description, FORMAT_VERSION, "format_version")
    return description


def read_file(folder: str | os.PathLike[str], class_name: str) -> bytes:
    """Read the file of a saved tokenizer and verify its SHA-256.

    Args:
        folder: the folder written by `write_tokenizer`.
        class_name: the class that the description must name.

    Returns:
        The file's content.

    Raises:
        FileNotFoundError: if the description or the file does not exist.
        ValueError: if the description names a different class, or the SHA-256 does not match.
    """
    description = read_description(folder)
    if description["class_name"] != class_name:
        raise ValueError(
            f"{pathlib.Path(folder) / DESCRIPTION} must name the class {class_name!r}. "
            f"Found: {description['class_name']!r}"
        )
    # Use the name only: a description must not refer to files outside its folder.
    path = pathlib.Path(folder) / pathlib.Path(description["file"]).name
    if not path.is_file():
        raise FileNotFoundError(f"{path} must exist, as {DESCRIPTION} refers to it")
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != description["sha256"]:
        raise ValueError(f"{path} must have the sha256 {description['sha256']}. Found: {sha256}")
    return content
