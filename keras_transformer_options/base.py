"""The base classes of the options of tasks."""

import dataclasses
import os
import types
import typing
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from keras_transformer_options.arguments import (
    check_dropout_rate,
    check_fraction,
    check_one_of,
    check_positive_finite,
    check_positive_integer,
    check_seed,
)
from keras_transformer_options.columns import ColumnPicker
from keras_transformer_options.examples import ADVICE, FORMAT_NAMES, FileFormat, file_examples
from keras_transformer_options.files import check_encoding, checked_paths, file_lines
from keras_transformer_options.malformed import Malformed

# Fields' metadata are arguments of `argparse` for their flags.
_FILES = {"nargs": "+", "metavar": "FILE"}
_CHECKED = 20  # files whose first rows are read
_DELIMITERS = "|\t;"

TASKS: dict[str, type["TaskOptions"]] = {}
"""The options of each task, by its name; where recipes are imported, the recipes, which extend them."""


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """The options of every task, which are the flags of `keras-transformer train`.

    Attributes:
        data: the files to train on, or a list of examples.
        validation: the share of the data that is held out for validation, or files or examples.
        test: files or examples for the report, by default those of the validation.
        dataset: the name of a public data set, in place of `data`.
        columns: the names or indices of the columns of the files; by default all of them.
        on_error: "raise" to refuse files with malformed lines, or "skip" to skip these lines with a warning that has
            their share.
        from_: a folder of a saved pipeline, a run or `transformers`, whose weights and tokenizer are the start.
        tokenizer: the folder of a tokenizer, or the kind to train on the data.
        vocabulary_size: the maximum size of a trained vocabulary, by default 8000.
        model_size: the size of a new model, by default tiny.
        layers: the number of blocks, in place of the size's.
        heads: the number of attention heads, in place of the size's.
        model_dim: the model size D, in place of the size's.
        hidden_dim: the hidden size of the feed-forward networks, in place of the size's; 4 D with `model_dim`.
        dropout: the dropout rate of a new model, by default 0.1.
        max_length: the maximum number of tokens of an example.
        batch_size: the number of examples in a batch, in several processes of all of them.
        accumulate: the number of batches whose gradients are accumulated for one update of the weights, as if they were
            one batch, in the memory of one of them.
        epochs: the maximum number of epochs.
        minutes: the time of training and validation from the end of the first batch, in place of `epochs`; reading the
            data, training the tokenizer, compilation and the evaluation at the end take more.
        patience: the number of epochs without a lower validation loss after which training stops; the weights of the
            best epoch are restored.
        learning_rate: the peak learning rate, by default 1e-3, or 5e-5 with `from_`.
        precision: the dtype policy of training; the saved weights are float32.
        jit_compile: whether to compile training with XLA, which pays off if it takes minutes; by default Keras decides.
        seed: the seed of weights, dropout, the held-out examples and the order of the data.
        encoding: the encoding of the files, such as cp1252 (Windows-1252, Latin-1) or utf-16, by default UTF-8.
    """

    data: Any = dataclasses.field(default=None, metadata=_FILES)
    validation: Any = dataclasses.field(default=0.1, metadata={"nargs": "+", "metavar": "FILE|SHARE"})
    test: Any = dataclasses.field(default=None, metadata=_FILES)
    dataset: str | None = None
    columns: tuple[str | int, ...] | None = dataclasses.field(
        default=None, metadata={"nargs": "+", "metavar": "COLUMN"}
    )
    on_error: Literal["raise", "skip"] = "raise"
    from_: str | os.PathLike[str] | None = dataclasses.field(default=None, metadata={"metavar": "FOLDER"})
    tokenizer: str | os.PathLike[str] | None = dataclasses.field(
        default=None, metadata={"metavar": "FOLDER|KIND"}
    )
    vocabulary_size: int | None = None
    model_size: str | None = None
    layers: int | None = None
    heads: int | None = None
    model_dim: int | None = None
    hidden_dim: int | None = None
    dropout: float | None = None
    max_length: int = 128
    batch_size: int | None = 32
    accumulate: int = 1
    epochs: int = 10
    minutes: float | None = None
    patience: int = 3
    learning_rate: float | None = None
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    jit_compile: bool | None = None
    seed: int = 0
    encoding: str | None = None

    task: ClassVar[str]
    summary: ClassVar[str]
    examples_are_texts: ClassVar[bool] = False
    datasets: ClassVar[tuple[str, ...]] = ()
    tokenizers: ClassVar[tuple[str, ...]] = ()
    model_sizes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that names its task."""
        super().__init_subclass__(**kwargs)
        if "task" in vars(cls):
            TASKS[cls.task] = cls

    def __post_init__(self) -> None:
        """Check the options."""
        if (self.data is None) == (self.dataset is None):
            raise ValueError(
                "`data` or `dataset` must be given, and not both. "
                f"Received: data={_shown(self.data)}, dataset={self.dataset}"
            )
        if self.dataset is not None:
            check_one_of(sorted(self.datasets), dataset=self.dataset)
            if self.test is not None:
                raise ValueError(
                    f"`test` must not be given with `dataset`, which has one. Received: test={_shown(self.test)}"
                )
        check_seed(seed=self.seed)
        for name, hints in types_of(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(hints[0]) is Literal:
                check_one_of(typing.get_args(hints[0]), **{name: value})
            elif hints == (int,) and name != "seed" and value is not None:
                check_positive_integer(**{name: value})
        check_encoding(encoding=self.encoding)
        if self.learning_rate is not None:
            check_positive_finite(learning_rate=self.learning_rate)
        if self.minutes is not None:
            check_positive_finite(minutes=self.minutes)
        if self.dropout is not None:
            check_dropout_rate(dropout=self.dropout)
        if isinstance(self.validation, int | float):
            check_fraction(validation=self.validation)
        if self.from_ is None:
            check_one_of(sorted(self.model_sizes), model_size=self.model_size or "tiny")
        else:
            names = ("model_size", "layers", "heads", "model_dim", "hidden_dim", "dropout")
            for name in (*names, "tokenizer", "vocabulary_size"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}` must not be given with `from_`, whose model has one. "
                        f"Received: {name}={getattr(self, name)!r}"
                    )

    def check_files(self) -> None:
        """Check the folders and files of the options, and the first rows of the files.

        Raises:
            FileNotFoundError: if one does not exist.
            ValueError: if the first rows of a file are not as the options say.
        """
        if self.from_ is not None and not os.path.isdir(self.from_):
            raise FileNotFoundError(
                "`from_` must be the folder of a saved pipeline, a run or `transformers`. "
                f"Received: {os.fspath(self.from_)!r}, which is no folder"
            )
        self.tokenizer_kind()
        for name in ("data", "validation", "test"):
            paths = self.as_paths(getattr(self, name))
            if paths is not None:
                self.check_paths(paths, name)

    def check_paths(self, paths: Sequence[Any], argument: str) -> None:
        """Check files of examples; here, that they are text in the right encoding."""
        for path in checked_paths(paths, argument)[:_CHECKED]:
            next(file_lines(path, argument, encoding=self.encoding, has_encoding=True), None)

    def as_paths(self, source: Any) -> list[Any] | None:
        """Return the paths that an option holds, None if it holds none; an example that is a str is no path."""
        path = os.PathLike if self.examples_are_texts else str | os.PathLike
        if isinstance(source, str | os.PathLike):
            return [source]
        listed = list(source) if isinstance(source, list | tuple) else []
        return listed if listed and all(isinstance(one, path) for one in listed) else None

    def tokenizer_kind(self) -> str | None:
        """Return the kind of tokenizer to train, by default the first; None for the folder of a trained one.

        Raises:
            ValueError: if `tokenizer` is neither.
        """
        kind = os.fspath(self.tokenizer or self.tokenizers[0])
        if kind in self.tokenizers:
            return kind
        if not os.path.isdir(kind):
            raise ValueError(
                f"`tokenizer` must be a folder or one of {sorted(self.tokenizers)}. Received: tokenizer={kind!r}"
            )
        return None

    def options(self, changed: bool = True) -> dict[str, Any]:
        """Return the options, with descriptions in place of examples.

        Args:
            changed: whether to return only those that differ from their defaults.
        """
        return {
            field.name: _shown(value)
            for field in dataclasses.fields(self)
            if ((value := getattr(self, field.name)) is not field.default and value != field.default)
            or not changed
        }


@dataclasses.dataclass(frozen=True)
class TableOptions(TaskOptions):
    """The options of tasks whose examples are rows of tables.

    Attributes:
        format: the format of all files, by default that of each file's suffix.
        delimiter: the character between the columns of CSV files; by default a comma, or a semicolon if the first line
            has no commas but semicolons.
        header: whether the first row of TSV and CSV files is their header; by default it is one if `columns` are names,
            or if it clearly is no example, which a warning says.
    """

    format: str | None = dataclasses.field(default=None, metadata={"choices": FORMAT_NAMES})
    delimiter: str | None = dataclasses.field(default=None, metadata={"metavar": "CHARACTER"})
    header: bool | None = None

    column_names: ClassVar[str] = "the column of the texts"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        FileFormat(**self.file_format)
        ColumnPicker(self.columns)

    @property
    def file_format(self) -> dict[str, Any]:
        """The arguments of functions that read files."""
        fields = dataclasses.fields(FileFormat)
        return {field.name: getattr(self, field.name) for field in fields}

    @property
    def column_counts(self) -> tuple[int, ...]:
        """The possible numbers of columns of an example."""
        return (1,)

    def check_paths(self, paths: Sequence[Any], argument: str) -> None:
        """Check the first rows of files of examples."""
        malformed = Malformed(argument, self.on_error, ADVICE, has_options=True)
        picker, file_format = ColumnPicker(self.columns), FileFormat(**self.file_format)
        for path in checked_paths(paths, argument)[:_CHECKED]:
            rows = list(file_examples(path, argument, picker, malformed, file_format, only_first=True))
            self.check_columns(rows)
        malformed.refuse()

    def check_columns(self, rows: Sequence[Sequence[Any]]) -> None:
        """Raise a ValueError if rows do not have one of the numbers of columns."""
        counts = self.column_counts
        if not rows or len(rows[0]) in counts:
            return
        width = len(rows[0])
        common = [mark for mark in _DELIMITERS if width == 1 and all(mark in row[0] for row in rows)]
        advice = (
            f", each with {common[0]!r}: if it is between columns, pass delimiter={common[0]!r}"
            if common
            else ""
        )
        raise ValueError(
            f"`columns` must name {self.column_names}, such as columns=({', '.join(map(str, range(counts[0])))}). "
            f"Received: rows of {width} column{'s' * (width != 1)}{advice}"
        )


def types_of(options: type[TaskOptions]) -> dict[str, tuple[Any, ...]]:
    """Return the types of each field except None."""
    found = {}
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        hint = hints[field.name]
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        possible = typing.get_args(hint) if is_union else (hint,)
        found[field.name] = tuple(one for one in possible if one is not types.NoneType)
    return found


def _shown(value: Any) -> Any:
    """Return an option for a report: paths as str, and the number of examples in place of them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        short = len(value) <= 20 and all(isinstance(one, str | int | os.PathLike) for one in value)
        return [_shown(one) for one in value] if short else f"{len(value)} examples"
    return value
