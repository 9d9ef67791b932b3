"""Arrays of a dataset, in memory or in memory-mapped files.

Files are written into a locked working folder, which is renamed when it is complete, so that a process that dies leaves
no folder that looks complete. A second process that needs the same arrays waits for the first.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from keras_transformer_serving import files

_FORMAT = 1
_MANIFEST = "arrays.json"
_SPLITS = ".splits"
_WAIT = 0.2  # seconds between two checks whether another process has finished writing
_LOGGER = logging.getLogger("keras_transformer")


class RowsToStore(NamedTuple):
    """Rows of different lengths, to be appended to those that are stored.

    Attributes:
        values: int32, int64 or uint8 (N,), the concatenated rows.
        lengths: int64 (n,), their lengths.
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of_lists(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Concatenate rows that are sequences of ids."""
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return cls(values, np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def of_strings(cls, rows: Sequence[bytes]) -> Self:
        """Concatenate the bytes of strings, as uint8."""
        return cls(np.frombuffer(b"".join(rows), np.uint8), np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def of_tokens(cls, rows: Any) -> Self:
        """Take what a tokenizer returns: lists of ids, or a ragged tensor of TensorFlow (n, None)."""
        if isinstance(rows, Sequence):
            return cls.of_lists(rows)
        return cls(rows.values.numpy(), rows.row_lengths().numpy())

    @classmethod
    def repeated(cls, ids: Sequence[int], count: int) -> Self:
        """Return `count` equal rows."""
        return cls(np.tile(np.array(ids, np.int32), count), np.full(count, len(ids)))

    @property
    def ends(self) -> np.ndarray:
        """The end index of each row, exclusive, int64 (n,)."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def to_lists(self) -> list[list[int]]:
        """Return the rows as lists."""
        values, ends = self.values.tolist(), self.ends.tolist()
        return [values[start:end] for start, end in itertools.pairwise([0, *ends])]

    def truncated(self, length: int) -> Self:
        """Return the first `length` values of each row."""
        return self._replace(
            values=self.values[within(self.lengths) < length], lengths=np.minimum(self.lengths, length)
        )

    def followed_by(self, others: "RowsToStore") -> Self:
        """Return each row followed by the other row of the same index."""
        places = np.repeat(self.ends, others.lengths)
        return self._replace(
            values=np.insert(self.values, places, others.values), lengths=self.lengths + others.lengths
        )

    def to_rows(self) -> "RaggedRows":
        """Return the rows for random access."""
        return RaggedRows(self.values, np.append(0, self.ends))


class RaggedRows(NamedTuple):
    """Rows of different lengths in two arrays, in memory or mapped.

    Attributes:
        flat: int32, int64 or uint8 (N,), the concatenated rows.
        splits: int64 (n + 1,); row i is `flat[splits[i]:splits[i + 1]]`.
    """

    flat: np.ndarray
    splits: np.ndarray

    @property
    def count(self) -> int:
        """The number of rows, n."""
        return len(self.splits) - 1

    def lengths(self, start: int, end: int) -> np.ndarray:
        """Return the lengths of the rows from `start` up to `end`, exclusive, int64."""
        return np.diff(self.splits[start : end + 1])

    def strings(self, rows: np.ndarray) -> list[bytes]:
        """Return rows (B,) of bytes, uint8, as strings."""
        check_files(*self)
        return [self.flat[self.splits[row] : self.splits[row + 1]].tobytes() for row in rows]

    def padded(self, rows: np.ndarray, length: int, padding: int) -> np.ndarray:
        """Gather rows, as `gather` does, into an array (B, L) with `padding` after their ends."""
        ids, lengths = self.gather(rows, length)
        return np.where(np.arange(length) < lengths, ids, padding)

    def gather(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Gather rows into an array.

        Args:
            rows: int64 (B,), the indices of rows; -1 for a missing row.
            length: L, the number of positions.

        Returns:
            Ids (B, L), arbitrary after the end of a row, and int64 lengths (B, 1), -1 for a missing row.
        """
        check_files(*self)
        present = np.maximum(rows, 0)
        starts = self.splits[present]
        lengths = np.where(rows >= 0, self.splits[present + 1] - starts, -1)
        places = np.minimum(starts[:, None] + np.arange(length), max(len(self.flat) - 1, 0))  # (B, L)
        ids = self.flat[places] if len(self.flat) else np.zeros(places.shape, self.flat.dtype)
        return np.asarray(ids), np.asarray(lengths[:, None])


Chunk = Mapping[str, np.ndarray | RowsToStore]


class Arrays:
    """Named arrays of a dataset.

    Args:
        arrays: the arrays by name.
        folder: the folder of their files; `None` in memory.

    Attributes:
        content: the name of the folder, a hash of everything that the arrays depend on, or the arrays in memory; for
            `Epochs.fingerprint`.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], folder: pathlib.Path | None = None) -> None:
        self._arrays, self._folder = arrays, folder
        self.content = [arrays[name] for name in sorted(arrays)] if folder is None else [folder.name]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return an array."""
        return self._arrays[name]

    def get(self, name: str) -> np.ndarray | None:
        """Return an array, `None` if there is none of that name."""
        return self._arrays.get(name)

    def with_content(self, *more: str) -> "Arrays":
        """Return a copy with additional `content`."""
        arrays = Arrays(self._arrays, self._folder)
        arrays.content = [*self.content, *more]
        return arrays

    def has_rows(self, name: str) -> bool:
        """Return whether an array consists of rows of different lengths."""
        return name + _SPLITS in self._arrays

    def rows(self, name: str) -> RaggedRows:
        """Return an array of rows of different lengths."""
        return RaggedRows(self._arrays[name], self._arrays[name + _SPLITS])

    def derived(self, chunks: Iterator[Chunk], **options: Any) -> "Arrays":
        """Make arrays from these, and store them in the same way.

        Args:
            chunks: their chunks, see `in_memory`.
            **options: everything else that they depend on, as JSON can represent it.
        """
        if self._folder is None:
            return in_memory(chunks)
        return in_files(self._folder.parent, digest([self._folder.name, options]), chunks)


def in_memory(chunks: Iterable[Chunk]) -> Arrays:
    """Concatenate the chunks of arrays.

    Args:
        chunks: the next rows of each array by name; there must be at least one chunk.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for name, part in _parts(chunks):
        parts.setdefault(name, []).append(part)
    return Arrays({name: np.concatenate(parts.pop(name)) for name in list(parts)})


def in_files(folder: pathlib.Path, key: str, chunks: Iterator[Chunk]) -> Arrays:
    """Write arrays to files, unless they exist, and map them into memory.

    Args:
        folder: the folder of all arrays.
        key: a hash of everything that these arrays depend on, the name of their folder.
        chunks: their chunks, see `in_memory`; not read if the arrays exist.

    Raises:
        FileNotFoundError: if a file has disappeared since it was written.
        OSError: if a file cannot be written; incomplete files are removed.
        ValueError: if a file has been changed since it was written.
    """
    path, waits = folder / key, False
    while not path.exists():
        try:
            with files.locked_folder(folder / f".{key}") as work:
                if not path.exists():
                    _write(work / "new", path, chunks)
        except BlockingIOError:
            if not waits:
                _LOGGER.warning("`cache_dir`: waiting for another process that writes %s", path)
            waits = True
            time.sleep(_WAIT)
    return Arrays(_mapped(path), path)


def digest(value: Any) -> str:
    """Return a hash of a value that JSON can represent."""
    return hashlib.sha256(json.dumps([_FORMAT, value], sort_keys=True, default=str).encode()).hexdigest()[:32]


def _parts(chunks: Iterable[Chunk]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the next chunk of each array; rows of different lengths are two arrays."""
    ends: dict[str, int] = {}
    for chunk in chunks:
        for name, part in chunk.items():
            if not isinstance(part, RowsToStore):
                yield name, part
                continue
            if name not in ends:
                ends[name] = 0
                yield name + _SPLITS, np.zeros(1, np.int64)
            yield name, part.values
            yield name + _SPLITS, ends[name] + part.ends
            ends[name] += len(part.values)


def _write(new: pathlib.Path, path: pathlib.Path, chunks: Iterable[Chunk]) -> None:
    """Write a folder under a temporary name, and rename it when it is complete."""
    shutil.rmtree(new, ignore_errors=True)  # of a process that died
    written: dict[str, _File] = {}
    try:
        with explained(path):
            new.mkdir()
        for name, part in _parts(chunks):
            with explained(path):
                if name not in written:
                    written[name] = _File(new / f"{name}.bin")
                written[name].append(part)
        with explained(path):
            arrays = {name: file.finish() for name, file in written.items()}
            files.write_json(new / _MANIFEST, {"format": _FORMAT, "arrays": arrays})
            files.move(new, path)
    finally:
        for file in written.values():
            file.close()
        shutil.rmtree(new, ignore_errors=True)


@contextlib.contextmanager
def explained(folder: pathlib.Path) -> Iterator[None]:
    """Name the argument `cache_dir` in errors of writing to a folder in it."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            "`cache_dir` must be a folder that can be written, with enough space; nothing incomplete is left. "
            f"Received: {error.strerror or error} while writing",
            os.fspath(folder),
        ) from error


class _File:
    """An array that is written chunk by chunk."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._hash, self._count = path, hashlib.sha256(), 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._dtype, self._shape = "", []

    def append(self, part: np.ndarray) -> None:
        """Write the next chunk."""
        part = np.ascontiguousarray(part)
        self._dtype, self._shape = part.dtype.str, list(part.shape[1:])
        self._count += len(part)
        if part.size:
            content = part.reshape(-1).view(np.uint8).data
            self._hash.update(content)
            self._file.write(content)

    def finish(self) -> dict[str, Any]:
        """Write all to the disk, and return the array's entry in the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return {
            "dtype": self._dtype,
            "shape": [self._count, *self._shape],
            "sha256": self._hash.hexdigest(),
            "mtime_ns": os.stat(self._path).st_mtime_ns,
        }

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _mapped(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Map the arrays of a folder into memory, after checking that its files are unchanged."""
    advice = f"Remove {path}, and make the dataset again"
    try:
        manifest = files.read_json(path / _MANIFEST)
        files.check_format(path / _MANIFEST, manifest, _FORMAT)
        files.check_entries(path / _MANIFEST, manifest, arrays=dict)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"`cache_dir` must keep its files. {advice}. Received: {error}") from None
    arrays = {}
    for name, entry in manifest["arrays"].items():
        file, dtype, shape = path / f"{name}.bin", np.dtype(entry["dtype"]), tuple(entry["shape"])
        size = int(np.prod(shape)) * dtype.itemsize
        try:
            stat = file.stat()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"`cache_dir` must keep its files. {advice}. Received: no {file}"
            ) from None
        # Hash the content only if the modification time differs, as it does for a copy.
        same = stat.st_mtime_ns == entry["mtime_ns"]
        if stat.st_size != size or not (same or files.sha256(file) == entry["sha256"]):
            raise ValueError(
                f"`cache_dir` must keep its files unchanged. {advice}. "
                f"Received: {file} of {stat.st_size} bytes, written with {size} and other content"
            )
        arrays[name] = np.memmap(file, dtype, "r", shape=shape) if size else np.zeros(shape, dtype)
    return arrays


def gathered(array: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the entries of an array, in memory or mapped, at indices into its first axis."""
    check_files(array)
    return np.asarray(array[indices])


def within(sizes: np.ndarray) -> np.ndarray:
    """Return the index of each element within its segment, for consecutive segments of `sizes`."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def check_files(*arrays: np.ndarray | None) -> None:
    """Raise an error if the file of a mapped array has disappeared or has been truncated.

    Reading after the end of a mapped file would end the process.
    """
    advice = "Remove its folder, and make the dataset again"
    for array in arrays:
        if not isinstance(array, np.memmap):
            continue
        try:
            size = os.stat(array.filename).st_size
        except FileNotFoundError:
            raise FileNotFoundError(
                f"`cache_dir` must keep its files while they are read. {advice}. Received: no {array.filename}"
            ) from None
        if size != array.nbytes:
            raise ValueError(
                f"`cache_dir` must keep its files unchanged. {advice}. "
                f"Received: {array.filename} of {size} bytes instead of {array.nbytes}"
            )
