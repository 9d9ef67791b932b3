"""Readers of translation pairs from lists, files and `tf.data` datasets."""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from keras_transformer.data.columns import ColumnPicker, Columns
from keras_transformer.data.files import ADVICE, file_examples
from keras_transformer.data.malformed import Malformed
from keras_transformer.text.training.files import format_of

_CHUNK = 8192

Pairs = Iterable[tuple[str, str]] | str | os.PathLike[str] | list[str | os.PathLike[str]] | tf.data.Dataset


class PairReader:
    """A reader of pairs from several sources, which reports the malformed lines of all files together.

    Args:
        columns: the columns of source and target in files, see `read_examples`.
        reverse: whether to swap source and target.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.

    Raises:
        ValueError: if `columns` are not two, or `on_error` is unknown.
    """

    def __init__(self, columns: Columns = None, reverse: bool = False, on_error: str = "raise") -> None:
        self.picker, self.malformed = ColumnPicker(columns, 2), Malformed("pairs", on_error, ADVICE)
        self.reverse = reverse

    def chunks(self, pairs: Pairs) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Read pairs in chunks, as string tensors.

        Args:
            pairs: (source, target) strings, paths of files, or a finite dataset of (source, target) string scalars.

        Yields:
            Sources and targets, two string tensors (n,).

        Raises:
            TypeError: if `pairs` is none of these.
            ValueError: if a pair is not two strings, or a dataset is infinite.
        """
        for sources, targets in _chunks(pairs, self.picker, self.malformed):
            yield (targets, sources) if self.reverse else (sources, targets)

    def finish(self) -> None:
        """Report malformed lines once all sources are read.

        Raises:
            ValueError: if there are any and `on_error` is "raise", or `columns` are given, but no file.
        """
        self.picker.check_used("pairs")
        self.malformed.report()


def _chunks(
    pairs: Pairs, picker: ColumnPicker, malformed: Malformed
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    if isinstance(pairs, tf.data.Dataset):
        yield from _dataset_chunks(pairs)
        return
    if isinstance(pairs, str | os.PathLike):
        pairs = [pairs]
    if not isinstance(pairs, Iterable) or isinstance(pairs, bytes | dict):
        raise TypeError(
            "`pairs` must be (source, target) strings, a path of a file or a tf.data.Dataset. "
            f"Received: pairs={pairs!r}"
        )
    rows = _rows(pairs, picker, malformed)
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


def _rows(pairs: Iterable[Any], picker: ColumnPicker, malformed: Malformed) -> Iterator[tuple[bytes, bytes]]:
    for index, item in enumerate(pairs):
        if isinstance(item, str | os.PathLike):
            # A file of pairs has two columns whatever its name, such as Tatoeba's "spa.txt".
            known = format_of(item)
            read = file_examples(
                item, "pairs", picker, malformed, format="tsv" if known in (None, "text") else known
            )
            yield from ((source.encode(), target.encode()) for source, target in read)
            continue
        try:
            source, target = None if isinstance(item, dict) else item  # not the keys of a dictionary
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
