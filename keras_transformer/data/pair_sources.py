"""Readers of translation pairs from lists, TSV files and `tf.data` datasets."""

import codecs
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

_LISTED_LINES = 5
_CHUNK = 8192

Pairs = Iterable[tuple[str, str]] | str | os.PathLike[str] | list[str | os.PathLike[str]] | tf.data.Dataset


def string_chunks(pairs: Pairs) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Read pairs in chunks, as string tensors.

    Args:
        pairs: (source, target) strings, paths of TSV files, or a finite dataset of (source, target) string scalars.

    Yields:
        Sources and targets, two string tensors (n,).

    Raises:
        TypeError: if `pairs` is none of these.
        ValueError: if a pair is not two strings, a line of a file is malformed, or a dataset is infinite.
    """
    if isinstance(pairs, tf.data.Dataset):
        yield from _dataset_chunks(pairs)
        return
    if isinstance(pairs, str | os.PathLike):
        pairs = [pairs]
    if not isinstance(pairs, Iterable) or isinstance(pairs, bytes | dict):
        raise TypeError(
            "`pairs` must be (source, target) strings, a path of a TSV file or a tf.data.Dataset. "
            f"Received: pairs={pairs!r}"
        )
    rows = _rows(pairs)
    while chunk := list(itertools.islice(rows, _CHUNK)):
        yield tf.constant([row[0] for row in chunk]), tf.constant([row[1] for row in chunk])


def _dataset_chunks(pairs: tf.data.Dataset) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    scalar = tf.TensorSpec((), tf.string)
    if pairs.element_spec != (scalar, scalar):
        raise ValueError(
            "`pairs` must be a dataset of (source, target), two string scalars. "
            f"Received: a dataset of {pairs.element_spec}"
        )
    if pairs.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("`pairs` must be finite. Received: an infinite dataset, such as one with repeat()")
    yield from pairs.batch(_CHUNK)


def _rows(pairs: Iterable[Any]) -> Iterator[tuple[bytes, bytes]]:
    for index, item in enumerate(pairs):
        if isinstance(item, str | os.PathLike):
            yield from _lines(item)
            continue
        try:
            source, target = item
            yield source.encode(), target.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                "`pairs` must be text without lone surrogates. "
                f"Received: pairs[{index}]={item!r}, with {error.object[error.start : error.end]!r}"
            ) from None
        except (TypeError, ValueError, AttributeError):
            raise ValueError(
                f"`pairs` must be (source, target), two str each. Received: pairs[{index}]={item!r}"
            ) from None


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, bytes]]:
    broken, count = [], 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            line = line.rstrip(b"\r\n")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if error := _line_error(line):
                count += 1
                if count <= _LISTED_LINES:
                    broken.append(f"line {number}: {error}: {line[:200].decode(errors='backslashreplace')!r}")
            elif not count:
                source, target = line.split(b"\t")
                yield source, target
    if count:
        raise ValueError(
            "`pairs` must name files of lines source<TAB>target. "
            f"Received: {os.fspath(path)!r}, with {count} other lines; the first:\n" + "\n".join(broken)
        )


def _line_error(line: bytes) -> str | None:
    try:
        line.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    fields = line.split(b"\t")
    if len(fields) != 2:
        return f"{len(fields)} fields instead of 2"
    return None if all(field.strip() for field in fields) else "an empty field"
