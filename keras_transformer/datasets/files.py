"""Files of public data sets, from a local folder or their public address, verified by sha256."""

import hashlib
import os
import pathlib
from collections.abc import Callable

LOCAL_FOLDER_VARIABLE = "KERAS_TRANSFORMER_DATA"


def local_file(data_set: str, name: str) -> pathlib.Path | None:
    """Returns the path of a file in the folder that `KERAS_TRANSFORMER_DATA` names.

    Args:
        data_set: The data set's folder in it.
        name: The file's name.

    Returns:
        The path, or `None` where the variable is not set.

    Raises:
        FileNotFoundError: If the variable is set and the file does not exist.
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
    """Downloads a file into the cache of `keras.utils.get_file`, where it is not there yet.

    Args:
        data_set: The folder in the cache's `datasets`.
        name: The file's name.
        address: Where it is published.
        sha256: What it must hash to; a cached file that does not is downloaded again. `None` where the
            caller checks what is inside.

    Returns:
        The path in the cache.

    Raises:
        ValueError: If the downloaded file has another sha256; it is then removed from the cache.
    """
    # Importing Keras starts TensorFlow, which the embedded phrasebook beside this file does not need.
    import keras

    cache_subdir = os.path.join("datasets", "keras_transformer", data_set)
    try:
        return pathlib.Path(
            keras.utils.get_file(
                name, address, cache_subdir=cache_subdir, file_hash=sha256, hash_algorithm="sha256"
            )
        )
    except ValueError:
        # get_file refuses the file but keeps it; asked without a hash, it says where.
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
    """Returns what is in a file of a data set, once it is known to be the one that was published.

    Args:
        data_set: The data set's folder where `KERAS_TRANSFORMER_DATA` is set, and in the cache.
        name: The file's name.
        address: Where it is published.
        sha256: What the unpacked content must hash to.
        folder: Where the file lies; `None` looks where `KERAS_TRANSFORMER_DATA` says, or else downloads it.
        unpack: Takes the file's bytes to its content, such as `gzip.decompress`.

    Returns:
        The unpacked content.

    Raises:
        FileNotFoundError: If the file is not in the folder.
        ValueError: If the sha256 differs.
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
    """Raises where a file is not the one that was published.

    Args:
        content: The file's content.
        expected: The sha256 it must have.
        name: What the error calls the file.

    Raises:
        ValueError: If the sha256 differs.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(f"{name} must have the sha256 {expected}. Found: {found}")
