"""Translation pairs from lists, files and `tf.data` datasets."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.data.batches import is_tensorflow
from keras_transformer.data.examples import Examples
from keras_transformer.data.progress import ProgressBar
from keras_transformer_options.arguments import ArgumentError, Message
from keras_transformer_options.columns import ColumnPicker, Columns
from keras_transformer_options.examples import ADVICE, FileFormat, file_examples
from keras_transformer_options.files import format_of, matching
from keras_transformer_options.malformed import Malformed

if TYPE_CHECKING:
    import tensorflow as tf

_CHUNK = 8192

Pairs: TypeAlias = (
    "Iterable[tuple[str, str]] | str | os.PathLike[str] | list[str | os.PathLike[str]] | tf.data.Dataset"
)
Row = tuple[int, bytes, bytes]


class PairReader:
    """A reader of the pairs of several tasks, which reports the malformed lines of all files together.

    Args:
        columns: the columns of source and target in files, see `read_examples`.
        reverse: whether to swap source and target.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
    """

    def __init__(self, columns: Columns = None, reverse: bool = False, on_error: str = "raise") -> None:
        self._picker, self._malformed = ColumnPicker(columns, 2), Malformed("pairs", on_error, ADVICE)
        self.reverse, self._options = reverse, {"columns": columns, "on_error": on_error}

    def examples(self, tasks: Iterable[Pairs]) -> Examples:
        """Return the pairs of all tasks as (index of the task, source, target), strings in UTF-8.

        Args:
            tasks: for each task (source, target) strings, paths of files, or a finite dataset of (source, target)
                string scalars.

        Raises:
            FileNotFoundError: if no file matches a pattern.
            ValueError: if a dataset is infinite or has other elements; while examples are read, if a pair is not two
                strings, a task has no pairs, a line of a file is malformed, or `columns` are passed without a file.
        """
        sources = [_checked(pairs) for pairs in tasks]
        paths = [item for pairs in sources if isinstance(pairs, list) for item in pairs]
        in_files = all(isinstance(pairs, list) for pairs in sources) and all(map(_is_path, paths))
        lengths = [len(pairs) for pairs in sources if isinstance(pairs, list)]
        count = None if len(lengths) < len(sources) or any(map(_is_path, paths)) else sum(lengths)
        paths = paths if in_files else None
        return Examples(lambda progress: self._rows(sources, progress), paths, count, self._options)

    def _rows(self, tasks: Iterable[Pairs], progress: ProgressBar) -> Iterator[Row]:
        empty = None
        for task, pairs in enumerate(tasks):
            has_pairs = False
            for source, target in self._pairs(pairs, progress):
                has_pairs = True
                yield (task, target, source) if self.reverse else (task, source, target)
            if not has_pairs:
                empty = pairs
        self._picker.check_used("pairs")
        self._malformed.report()
        if empty is not None:
            raise ArgumentError("{pairs} must hold at least one pair", pairs=empty)

    def _pairs(self, pairs: Pairs, progress: ProgressBar) -> Iterator[tuple[bytes, bytes]]:
        if is_tensorflow(pairs):
            for chunk in pairs.batch(_CHUNK).as_numpy_iterator():
                yield from zip(*(side.tolist() for side in chunk), strict=True)
            return
        for index, item in enumerate(pairs):
            if _is_path(item):
                yield from self._of_file(item, progress)
                continue
            try:
                if isinstance(item, Mapping):  # it would be unpacked into its keys
                    raise TypeError
                source, target = item
                yield source.encode(), target.encode()
            except UnicodeEncodeError as error:
                raise ArgumentError(
                    "{pairs} must be text without lone surrogates. "
                    f"Received: {{pairs[{index}]=}}, with {{wrong!r}}",
                    **{f"pairs[{index}]": item},
                    wrong=error.object[error.start : error.end],
                ) from None
            except (TypeError, ValueError, AttributeError):
                raise ArgumentError(
                    "{pairs} must be (source, target), two str each", **{f"pairs[{index}]": item}
                ) from None

    def _of_file(self, path: str | os.PathLike[str], progress: ProgressBar) -> Iterator[tuple[bytes, bytes]]:
        # A file of pairs has two columns whatever its name, such as Tatoeba's "spa.txt".
        known = format_of(path)
        examples = file_examples(
            path,
            "pairs",
            self._picker,
            self._malformed,
            FileFormat("tsv" if known in (None, "text") else known),
            opened=progress.opened,
        )
        return ((source.encode(), target.encode()) for source, target in examples)


def _is_path(item: Any) -> bool:
    return isinstance(item, str | os.PathLike)


def _checked(pairs: Any) -> Any:
    """Validate the pairs of a task; replace paths and patterns by lists of files."""
    if is_tensorflow(pairs):
        import tensorflow as tf

        scalar = tf.TensorSpec((), tf.string)
        if pairs.element_spec != (scalar, scalar):
            raise ArgumentError(
                "{pairs} must be a dataset of (source, target), two string scalars. "
                "Received: a dataset of {spec!s}",
                spec=pairs.element_spec,
            )
        if pairs.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ArgumentError(
                "{pairs} must be finite. Received: an infinite dataset, such as one with repeat()"
            )
        return pairs
    if _is_path(pairs):
        return matching(pairs, "pairs")
    if not isinstance(pairs, Iterable) or isinstance(pairs, bytes | dict):
        raise TypeError(
            Message(
                "{pairs} must be (source, target) strings, a path of a file or a tf.data.Dataset", pairs=pairs
            )
        )
    if isinstance(pairs, list | tuple) and any(map(_is_path, pairs)):
        files = (matching(item, "pairs") if _is_path(item) else [item] for item in pairs)
        return list(itertools.chain.from_iterable(files))
    return pairs
