"""Files of public data sets, from a local folder or downloaded, verified by sha256."""

import hashlib
import os
import pathlib
from collections.abc import Callable

LOCAL_FOLDER_VARIABLE = "KERAS_TRANSFORMER_DATA"


def local_file(data_set: str, name: str) -> pathlib.Path | None:
    """Return the path of a file in the folder of the environment variable `KERAS_TRANSFORMER_DATA`.

    Args:
        data_set: The data set's subfolder.
        name: The file's name.

    Returns:
        The path, or `None` if the variable is not set.

    Raises:
        FileNotFoundError: if the variable is set and the file does not exist.
    """
    folder = os.environ.get(LOCAL_FOLDER_VARIABLE)
    if not folder:
        return None
    path = pathlib.Path(folder) / data_set / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must exist, because the environment variable {LOCAL_FOLDER_VARIABLE} is set. "
            f"Received: {LOCAL_FOLDER_VARIABLE}={folder}; unset it to download the file"
        )
    return path


def download(data_set: str, name: str, address: str, sha256: str | None = None) -> pathlib.Path:
    """Download a file to the cache of `keras.utils.get_file`, unless it is there already.

    Args:
        data_set: The subfolder of the cache's `datasets`.
        name: The file's name.
        address: The file's URL.
        sha256: The file's hash; a cached file with another hash is downloaded again. `None` if the caller checks
            the content.

    Returns:
        The path in the cache.

    Raises:
        ValueError: if the downloaded file has another sha256; it is then removed from the cache.
    """
    # Importing Keras starts TensorFlow, which the embedded phrasebook does not need.
    import keras

    cache_subdir = os.path.join("datasets", "keras_transformer", data_set)
    try:
        return pathlib.Path(
            keras.utils.get_file(
                name, address, cache_subdir=cache_subdir, file_hash=sha256, hash_algorithm="sha256"
            )
        )
    except ValueError:
        # get_file keeps a file with the wrong hash; called without a hash, it returns the path.
        path = pathlib.Path(keras.utils.get_file(name, address, cache_subdir=cache_subdir))
        try:
            check_sha256(path.read_bytes(), sha256 or "", f"{path} (from {address})")
        except ValueError:
            path.unlink()
            raise
        return path


def content(
    data_set: str,
    name: str,
    address: str,
    sha256: str,
    folder: str | os.PathLike[str] | None = None,
    unpack: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """Return the content of a data set's file after verifying its sha256.

    Args:
        data_set: The data set's subfolder of `KERAS_TRANSFORMER_DATA` and of the cache.
        name: The file's name.
        address: The URL of the data set's folder.
        sha256: The hash of the unpacked content.
        folder: The file's folder; `None` uses that of `KERAS_TRANSFORMER_DATA` or, if not set, downloads the file.
        unpack: A function from the file's bytes to its content, such as `gzip.decompress`.

    Returns:
        The unpacked content.

    Raises:
        FileNotFoundError: if the file is not in the folder.
        ValueError: if the sha256 differs.
    """
    if folder is None:
        path = local_file(data_set, name)
        if path is None:
            path = download(data_set, name, f"{address}/{name}", sha256 if unpack is bytes else None)
    else:
        path = pathlib.Path(folder) / name
        if not path.is_file():
            raise FileNotFoundError(f"`folder` must hold {name}. Received: folder={os.fspath(folder)!r}")
    unpacked = unpack(path.read_bytes())
    check_sha256(unpacked, sha256, str(path))
    return unpacked


def check_sha256(content: bytes, expected: str, name: str) -> None:
    """Raise if a file's sha256 differs from that of the published file.

    Args:
        content: The file's content.
        expected: The expected sha256.
        name: The file's name for errors.

    Raises:
        ValueError: if the sha256 differs.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(f"{name} must have the sha256 {expected}. Found: {found}")
