"""Durable and atomic writing of files and folders, locks, listings and digests. Standard library only."""

import contextlib
import errno
import hashlib
import io
import json
import os
import pathlib
import platform
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

LOCK = "lock"
_MOST_FAILURES = 100
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[pathlib.Path]:
    """Create a folder atomically: it takes its name when the block ends without an error.

    Args:
        path: the name; its parents are created.
        overwrite: whether to replace an existing folder.

    Yields:
        A temporary folder to write into. After an error it is removed, and `path` is unchanged.

    Raises:
        FileExistsError: if `path` is a file, or a folder that is not empty and `overwrite` is False.
        NotADirectoryError: if `path` is below a file.
        OSError: if the disk is full; the error names `path`.
    """
    path = pathlib.Path(path).absolute()
    _check_free(path, overwrite)
    parent = nearest_folder(path)  # a failure leaves no empty parents
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    try:
        with full_disk_named(path):
            yield temporary
            temporary.chmod(0o755)  # mkdtemp makes it private; a server runs as another user
            path.parent.mkdir(parents=True, exist_ok=True)
            _check_free(path, overwrite)
            if path.exists():
                _replace(path, temporary, parent)
            else:
                os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def full_disk_named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name a file or folder in the error of a full disk, which has no name if it comes from writing to an open file.

    Raises:
        OSError: if the disk is full. h5py's error has no number, TensorFlow's is of another class.
    """
    try:
        yield
    except Exception as error:
        of_system = getattr(error, "errno", None)
        number = next((one for one in _FULL if of_system == one or os.strerror(one) in str(error)), None)
        if number is None:
            raise
        message = f"{os.strerror(number)}; the previous content is kept"
        raise OSError(number, message, os.fspath(path)) from error


def nearest_folder(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return the nearest existing folder above `path`."""
    path = pathlib.Path(path).absolute()
    nearest = next(parent for parent in path.parents if parent.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"`{path}` must be below a folder. Received: {nearest}, which is a file")
    return nearest


def _check_free(path: pathlib.Path, overwrite: bool) -> None:
    if path.is_dir() and (overwrite or not any(path.iterdir())):
        return
    if path.exists():
        raise FileExistsError(
            f"`{path}` must be new or an empty folder; it exists already and is not changed. Choose another folder"
        )


def _replace(path: pathlib.Path, new: pathlib.Path, parent: pathlib.Path) -> None:
    """Replace a folder by `new`, or restore it if that fails."""
    backup = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    try:
        os.replace(path, backup / "old")
        try:
            os.replace(new, path)
        except OSError:
            os.replace(backup / "old", path)
            raise
    finally:
        shutil.rmtree(backup, ignore_errors=True)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file atomically and durably: a reader sees the old content or the new one, never an incomplete one.

    Yields:
        A temporary file to write into, which replaces `path` when the block ends. After an error it is removed.

    Raises:
        OSError: if the disk is full; the error names `path`.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with full_disk_named(path):
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file as `new_file` does."""
    with new_file(path) as file:
        file.write(content)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write `content` as JSON, atomically."""
    write_bytes(path, json_bytes(content))


def json_bytes(content: Any) -> bytes:
    """Return `content` as JSON, indented."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file."""
    content = pathlib.Path(path).read_bytes()
    try:
        return json.loads(content)
    except ValueError as error:  # bad JSON or bad UTF-8
        raise ValueError(f"`{path}` must be JSON. Received: {error}") from error


def as_folder(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Return the path of a folder to write to.

    Raises:
        ValueError: if it is empty, which would be the current folder.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"`folder` must be a path. Received: folder={folder!r}")
    if not os.fspath(folder):
        raise ValueError("`folder` must not be empty. Received: folder=''")
    return pathlib.Path(folder)


def check_format(path: str | os.PathLike[str], content: Any, expected: int, name: str = "format") -> None:
    """Raise a ValueError unless the content of a JSON file has the expected format number.

    Args:
        path: the file, for the error.
        content: its content.
        expected: the number that this version reads.
        name: the name of the number.
    """
    number = content.get(name) if isinstance(content, dict) else type(content).__name__
    if number != expected or number is True:
        raise ValueError(
            f"`{path}` must be of format {expected}; a newer version of the package may read others. "
            f"Received: {number!r}"
        )


def check_entries(path: str | os.PathLike[str], content: Any, **types: type) -> None:
    """Raise a ValueError unless the content of a JSON file is an object with entries of types."""
    for name, expected in types.items():
        entry = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entry, expected):
            raise ValueError(
                f"`{path}` must contain an object with {', '.join(types)}; it is damaged. Received: no {name}"
            )


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a file or folder durably within a file system, replacing a file or an empty folder at `target`."""
    os.replace(source, target)
    for folder in {pathlib.Path(source).parent, pathlib.Path(target).parent}:
        sync(folder)


def sync(path: str | os.PathLike[str]) -> None:
    """Write a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Write everything in a folder to the disk, and remove its empty folders."""
    for parent, _, names in os.walk(folder, topdown=False):
        if not os.listdir(parent):
            os.rmdir(parent)
            continue
        for name in names:
            sync(os.path.join(parent, name))
        sync(parent)


def entries(folder: str | os.PathLike[str], ignored: str | None = None) -> dict[str, bool]:
    """Return the files below a folder, and whether each is a regular file.

    Args:
        folder: the folder.
        ignored: the name of a folder in it to leave out.

    Returns:
        By name, relative to the folder with forward slashes; False for symbolic links, which are not followed, for
        empty folders and for devices.
    """
    listed: dict[str, bool] = {}
    with os.scandir(folder) as scanned:
        for entry in sorted(scanned, key=lambda entry: entry.name):
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and entry.name == ignored:
                continue
            below = entries(entry) if is_folder else {}
            listed |= {f"{entry.name}/{name}": regular for name, regular in below.items()}
            if not below:
                listed[entry.name] = entry.is_file(follow_symlinks=False)
    return listed


@contextlib.contextmanager
def locked_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Create a working folder that one process uses at a time; its lock ends with the process.

    Args:
        path: the folder. A process that died may have left it with content.

    Yields:
        The folder, with a file "lock". At the end both are removed if there is nothing else in the folder, and the
        parents too that were created for it and are empty.

    Raises:
        BlockingIOError: if another process, or another thread, uses the folder; `lock_holder` returns which.
    """
    path = pathlib.Path(path)
    created = [parent for parent in path.parents if not parent.exists()]
    with _lock(path):
        try:
            for parent in created:
                sync(parent.parent)
            yield path
        finally:
            with contextlib.suppress(OSError):  # not empty, or left for the next process
                if os.listdir(path) == [LOCK]:
                    os.unlink(path / LOCK)
                    for folder in (path, *created):
                        os.rmdir(folder)


def lock_holder(path: str | os.PathLike[str]) -> str:
    """Return the process and the host that use a folder of `locked_folder`."""
    try:
        return pathlib.Path(path, LOCK).read_text() or "another process"
    except OSError:
        return "another process"


def _lock(path: pathlib.Path) -> io.FileIO:
    """Create a folder with a locked file, and return the file; closing it unlocks it."""
    import fcntl  # absent on Windows, where exports are only read

    failures = 0
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (
            FileExistsError,
            FileNotFoundError,
        ):  # also if the process before removes the folder meanwhile
            failures += 1
            if failures == _MOST_FAILURES:
                raise
            continue
        if path.is_symlink():
            raise NotADirectoryError(f"`{path}` must be a folder. Remove it. Received: a symbolic link")
        try:
            file = open(path / LOCK, "ab", buffering=0)  # noqa: SIM115
        except FileNotFoundError:  # the process before has just removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path / LOCK)):
                with contextlib.suppress(OSError):  # on a full disk the file is empty
                    file.truncate(0)
                    file.write(f"process {os.getpid()} on {platform.node()}".encode())
                return file
        except BlockingIOError as error:
            file.close()
            raise BlockingIOError(
                f"`{path.parent}` must be written by one export at a time. Wait until the other has ended, or choose "
                f"another folder. Received: a folder that {lock_holder(path)} is writing"
            ) from error
        except FileNotFoundError:  # the process before has just removed the file
            pass
        except BaseException:
            file.close()
            raise
        file.close()
