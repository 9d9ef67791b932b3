"""Examples and labels, read as a stream and stored as arrays of ids that are reused for equal contents."""

import functools
import hashlib
import itertools
import json
import operator
import os
import pathlib
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from keras_transformer.data.progress import ProgressBar
from keras_transformer.data.storage import Arrays, Chunk, digest, explained, in_files, in_memory
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.files import format_of
from keras_transformer_serving import files

Path = str | os.PathLike[str]

_CHUNK = 8192
_MISSING = object()
_is_missing = functools.partial(operator.is_, _MISSING)


class Examples(NamedTuple):
    """The examples of a dataset.

    Attributes:
        read: a function from a progress bar to an iterator of the examples; it may be called once.
        paths: their files, if all examples are in files.
        count: their number, if it is known.
        options: the options of reading, as JSON can represent them.
    """

    read: Callable[[ProgressBar], Iterator[Any]]
    paths: Sequence[Path] | None = None
    count: int | None = None
    options: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, examples: Iterable[Any]) -> "Examples":
        """Wrap examples that are not in files."""
        count = len(examples) if isinstance(examples, Sequence) else None
        return cls(lambda progress: iter(examples), count=count)


def together(**iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the items of several arguments together.

    Raises:
        ValueError: if one ends before another, or all are empty.
    """
    count, received = -1, ""
    for count, items in enumerate(itertools.zip_longest(*iterables.values(), fillvalue=_MISSING)):
        if any(map(_is_missing, items)):
            missing = [name for name, item in zip(iterables, items, strict=True) if _is_missing(item)]
            more = [name for name in iterables if name not in missing]
            received = f"{count} {' and '.join(missing)}, and more {' and '.join(more)}"
            break
        yield items
    if received or count < 0:
        raise ArgumentError(
            f"{' and '.join('{}' for _ in iterables)} must have the same length, which must not be 0. "
            f"Received: {received or 'none'}",
            *iterables,
        )


class Labels:
    """The labels of examples, which are checked while they are read.

    Args:
        labels: classes, integers (n,); 0 or 1 for each of several, integers (n, C); or numbers, floats (n,) or (n, C).
        classes_only: whether only classes are valid.
    """

    def __init__(self, labels: Any, classes_only: bool = False) -> None:
        self._classes_only = classes_only
        self._first: np.ndarray | None = None
        in_memory = (
            isinstance(labels, Sequence) or hasattr(labels, "__array__") or not isinstance(labels, Iterable)
        )
        array = self._array(labels) if in_memory else None
        self._labels = labels if array is None else array if array.ndim else ()

    def paired_with(self, **examples: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield each example with its label; see `together`."""
        return together(**examples, labels=self._labels)

    def checked(self, labels: Sequence[Any]) -> np.ndarray:
        """Return consecutive labels as an array: classes, int32 (n,), or others, float32 (n, C)."""
        array = self._array(labels)
        integers = array.dtype.kind in "iub"
        classes = integers and array.ndim == 1 and (array >= 0).all()
        several = integers and array.ndim == 2 and np.isin(array, (0, 1)).all()
        numbers = array.dtype.kind == "f" and array.ndim in (1, 2) and np.isfinite(array).all()
        if not classes and (self._classes_only or not (several or numbers)):
            self._raise_error(f"labels {str(labels)[:50]}")
        first = self._first = array if self._first is None else self._first
        if (array.dtype.kind == "f", array.shape[1:]) != (first.dtype.kind == "f", first.shape[1:]):
            self._raise_error(f"{first[0]} and {array[0]}, which differ in type or shape")
        return array.astype("int32") if classes else array.reshape(len(array), -1).astype("float32")

    def _array(self, labels: Any) -> np.ndarray:
        try:
            return np.asarray(labels)
        except ValueError:  # of different shapes
            return self._raise_error(f"labels {str(labels)[:50]}")

    def _raise_error(self, received: str) -> NoReturn:
        also_valid = "" if self._classes_only else ", 0 or 1 for each of several, or finite floats"
        raise ArgumentError(
            "{labels} must be non-negative integers" + also_valid + ". Received: {received!s}",
            received=received,
        )


def stored(
    examples: Examples,
    to_arrays: Callable[[Iterator[list[Any]]], Iterator[Chunk]],
    cache_dir: Path | None,
    **options: Any,
) -> Arrays:
    """Read examples, convert them to arrays, and store these.

    Args:
        examples: the examples.
        to_arrays: a function from lists of consecutive examples to parts of the arrays; not called if the arrays are
            in `cache_dir`.
        cache_dir: the folder of the arrays' files; `None` to keep them in memory.
        **options: everything else that the arrays depend on: tokenizers, and values that JSON can represent.

    Raises:
        OSError: if files cannot be written; see `in_files`.
        ValueError: if files have been changed, or a tokenizer has no hash.
    """
    if cache_dir is None:
        return in_memory(
            to_arrays(_chunks(examples.read, ProgressBar("Tokenising", examples.paths or (), examples.count)))
        )
    if not isinstance(cache_dir, str | os.PathLike) or not os.fspath(cache_dir):
        raise TypeError(f"`cache_dir` must be a path or None. Received: cache_dir={cache_dir!r}")
    folder = pathlib.Path(cache_dir).absolute()
    options |= examples.options
    identity = {name: _identity(name, option) for name, option in options.items()}
    versions = [_version(path) for path in examples.paths or ()]
    source = None if examples.paths is None else [_of_file(path) for path in examples.paths]
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        progress = ProgressBar("Tokenising", examples.paths)
        chunks = _unless_changed(examples.paths, versions, to_arrays(_chunks(examples.read, progress)))
        return in_files(folder, digest([source, identity]), chunks)
    # An iterable may allow a single pass, so store the examples until their hash is known.
    with tempfile.TemporaryFile(dir=folder) as file:
        spool = _Spool(file, folder)
        spool.write(_chunks(examples.read, ProgressBar("Reading", rows=examples.count)))
        progress = ProgressBar("Tokenising", rows=spool.count)
        return in_files(folder, digest([spool.digest, identity]), to_arrays(_chunks(spool.read, progress)))


def _chunks(read: Callable[[ProgressBar], Iterator[Any]], progress: ProgressBar) -> Iterator[list[Any]]:
    """Yield lists of consecutive examples."""
    examples = read(progress)
    try:
        while chunk := list(itertools.islice(examples, _CHUNK)):
            yield chunk
            progress.add(len(chunk))
    finally:
        progress.finish()


def _unless_changed(
    paths: Sequence[Path], versions: Sequence[tuple[int, int]], chunks: Iterator[Chunk]
) -> Iterator[Chunk]:
    """Yield chunks that are read from files, then raise a ValueError if a file changed while it was read."""
    yield from chunks
    for path, version in zip(paths, versions, strict=True):
        if _version(path) != version:
            raise ValueError(
                f"Files must not change while they are read. Received: {os.fspath(path)}, which has changed"
            )


def _version(path: Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def _of_file(path: Path) -> Any:
    return [format_of(path), os.fspath(path).endswith(".gz"), files.sha256(path)]


def _identity(name: str, option: Any) -> Any:
    """Return an option as JSON can represent it."""
    if not hasattr(option, "tokenize"):
        return option
    if not isinstance(getattr(option, "sha256", None), str):
        raise ValueError(
            f"`{name}` must have an attribute `sha256`, the hash of its vocabulary and settings, to use `cache_dir`; "
            f"tokenizers of keras_transformer.text have it. Received: a {type(option).__name__} without `sha256`"
        )
    ids = ("pad_id", "unknown_id", "start_id", "end_id", "mask_id", "vocabulary_size")
    return [type(option).__name__, option.sha256, [getattr(option, id_, None) for id_ in ids]]


class _Spool:
    """Examples in a temporary file, and their hash."""

    def __init__(self, file: IO[bytes], folder: pathlib.Path) -> None:
        self._file, self._folder = file, folder
        self._hash, self.count = hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """The hash of the examples."""
        return self._hash.hexdigest()

    def write(self, chunks: Iterable[list[Any]]) -> None:
        """Write the examples."""
        for chunk in chunks:
            self.count += len(chunk)
            # Pickle may give different bytes for equal objects.
            for example in chunk:
                self._hash.update(json.dumps(example, default=_as_json).encode() + b"\n")
            with explained(self._folder):
                pickle.dump(chunk, self._file, pickle.HIGHEST_PROTOCOL)

    def read(self, progress: ProgressBar) -> Iterator[Any]:
        """Yield the examples."""
        self._file.seek(0)
        read = 0
        while read < self.count:
            chunk = pickle.load(self._file)
            read += len(chunk)
            yield from chunk


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return ["bytes", value.decode("latin-1")]
    return value.tolist() if hasattr(value, "tolist") else [type(value).__name__, repr(value)]
