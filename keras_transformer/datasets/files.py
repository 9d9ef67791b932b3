"""Files of public datasets, read from a local folder or downloaded, and verified by their SHA-256."""

import hashlib
import os
import pathlib
from collections.abc import Callable

LOCAL_FOLDER_VARIABLE = "KERAS_TRANSFORMER_DATA"


def local_file(dataset: str, name: str) -> pathlib.Path | None:
    """Return the path of a file in the folder of the environment variable `KERAS_TRANSFORMER_DATA`.

    Returns:
        The path, or `None` if the variable is not set.

    Raises:
        FileNotFoundError: if the variable is set and the file does not exist.
    """
    folder = os.environ.get(LOCAL_FOLDER_VARIABLE)
    if not folder:
        return None
    path = pathlib.Path(folder) / dataset / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must exist, because the environment variable {LOCAL_FOLDER_VARIABLE} is set. "
            f"Received: {LOCAL_FOLDER_VARIABLE}={folder}; unset it to download the file"
        )
    return path


def download(dataset: str, name: str, address: str, sha256: str | None = None) -> pathlib.Path:
    """Download a file to the cache of `keras.utils.get_file`, unless it is already there.

    Args:
        dataset: the subfolder of the cache's `datasets`.
        name: the file's name.
        address: the file's URL.
        sha256: the file's hash; a cached file with a different hash is downloaded again. `None` if the caller verifies
            the content.

    Returns:
        The path in the cache.

    Raises:
        ValueError: if the SHA-256 of the downloaded file does not match; the file is then removed from the cache.
    """
    # Importing Keras starts TensorFlow, which the embedded phrasebook does not need.
    import keras

    cache_subdir = os.path.join("datasets", "keras_transformer", dataset)
    try:
        return pathlib.Path(
            keras.utils.get_file(
                name, address, cache_subdir=cache_subdir, file_hash=sha256, hash_algorithm="sha256"
            )
        )
    except ValueError:
        # `get_file` keeps a file with the wrong hash; called without a hash, it returns the file's path.
        path = pathlib.Path(keras.utils.get_file(name, address, cache_subdir=cache_subdir))
        try:
            check_sha256(path.read_bytes(), sha256 or "", f"{path} (from {address})")
        except ValueError:
            path.unlink()
            raise
        return path


def content(
    dataset: str,
    name: str,
    address: str,
    sha256: str,
    folder: str | os.PathLike[str] | None = None,
    unpack: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """Return the content of a dataset's file after verifying its SHA-256.

    Args:
        dataset: the dataset's subfolder of `KERAS_TRANSFORMER_DATA` and of the cache.
        name: the file's name.
        address: the URL of the dataset's folder.
        sha256: the hash of the unpacked content.
        folder: the file's folder. If `None`, the file is read from the dataset's subfolder of
            `KERAS_TRANSFORMER_DATA` or, if this variable is not set, downloaded.
        unpack: a function from the file's bytes to its content, such as `gzip.decompress`.
    """
    if folder is None:
        path = local_file(dataset, name)
        if path is None:
            path = download(dataset, name, f"{address}/{name}", sha256 if unpack is bytes else None)
    else:
        path = pathlib.Path(folder) / name
        if not path.is_file():
            raise FileNotFoundError(f"`folder` must hold {name}. Received: folder={os.fspath(folder)!r}")
    unpacked = unpack(path.read_bytes())
    check_sha256(unpacked, sha256, str(path))
    return unpacked


def check_sha256(content: bytes, expected: str, name: str) -> None:
    """Verify the SHA-256 of a file.

    Args:
        content: the file's content.
        expected: the SHA-256 of the published file.
        name: the file's name, for error messages.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != expected:
        raise ValueError(f"{name} must have the sha256 {expected}. Received: {sha256}")
