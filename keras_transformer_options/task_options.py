"""The base classes of the options of tasks."""

import dataclasses
import os
import pathlib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from keras_transformer_options.arguments import (
    ArgumentError,
    Message,
    check,
    check_dropout_rate,
    check_fraction,
    check_one_of,
    check_positive_finite,
    check_positive_integer,
    check_seed,
)
from keras_transformer_options.columns import ColumnPicker
from keras_transformer_options.examples import ADVICE, FORMAT_NAMES, FileFormat, file_examples
from keras_transformer_options.files import check_encoding, checked_paths, file_lines, is_hub_id
from keras_transformer_options.malformed import Malformed

_FILES: dict[str, Any] = {"nargs": "+", "metavar": "FILE", "type": pathlib.Path}
_MAX_CHECKED = 20  # files whose first rows are read
_DELIMITERS = "|\t;"
# The types of tokenizers of SentencePiece, which have a normalization rule.
SENTENCE_PIECE, CHARACTERS = ("unigram", "bpe"), ("character",)

Normalization = Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"]
"""The normalization rules of SentencePiece."""

TASKS: dict[str, type["TaskOptions"]] = {}
"""The options of each task, by its name; recipes, which extend options, replace them when they are imported."""


def column(text: str) -> str | int:
    """Return a column as an option: an index, or a name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _delimiter(text: str) -> str:
    """Return a delimiter; a backslash and "t" are a tab, which is hard to pass in a shell."""
    return "\t" if text == "\\t" else text


def option(default: Any, description: str, **flag: Any) -> Any:
    """Return a field of a class of options.

    Args:
        default: its default.
        description: its description, a template of a `Message`.
        **flag: arguments of `argparse` for its flag that its type does not determine.
    """
    return dataclasses.field(default=default, metadata={"help": description, **flag})


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """The options of every task, which are the flags of `keras-transformer train`."""

    data: Any = option(None, "The files to train on, or a list of examples.", **_FILES)
    validation: Any = option(
        0.1,
        "The fraction of the data to hold out for validation, or files or examples.",
        nargs="+",
        metavar="FILE|FRACTION",
    )
    test: Any = option(
        None, "Files or examples for the report, by default the validation examples.", **_FILES
    )
    dataset: str | None = option(None, "The name of a public dataset, instead of {data}.")
    columns: tuple[str | int, ...] | None = option(
        None,
        "The names or indices of the columns of the files; by default all of them.",
        nargs="+",
        metavar="COLUMN",
        type=column,
    )
    on_error: Literal["raise", "skip"] = option(
        "raise",
        '"raise" to raise an error for malformed lines, or "skip" to skip them with a warning that has their '
        "percentage.",
    )
    from_: str | os.PathLike[str] | None = option(
        None,
        "The folder of a saved pipeline, a run, `transformers` or `sentence-transformers`, or the id of a model of the "
        "Hugging Face Hub, to start from its weights and tokenizer.",
        metavar="FOLDER|ID",
    )
    revision: str | None = option(
        None, "The branch, tag or commit of a model of the hub in {from_}, by default its main branch."
    )
    tokenizer: str | os.PathLike[str] | None = option(
        None,
        "The folder of a tokenizer, or the type of tokenizer to train on the data.",
        metavar="FOLDER|TYPE",
    )
    vocabulary_size: int | None = option(None, "The maximum size of a trained vocabulary, by default 8000.")
    normalization: Normalization | None = option(
        None,
        "How a trained SentencePiece tokenizer normalizes texts, by default nmt_nfkc: spaces, line breaks and letters "
        "that look the same have the same ids. Language models have identity, which keeps every character.",
    )
    model_size: str | None = option(None, "The size of a new model, by default tiny.")
    layers: int | None = option(None, "The number of blocks, which overrides the size's.")
    heads: int | None = option(None, "The number of attention heads, which overrides the size's.")
    model_dim: int | None = option(None, "The model dimension D, which overrides the size's.")
    hidden_dim: int | None = option(
        None,
        "The hidden dimension of the feed-forward networks, which overrides the size's; by default 4 D with "
        "{model_dim}.",
    )
    dropout: float | None = option(None, "The dropout rate of a new model, by default 0.1.")
    max_length: int = option(128, "The maximum number of tokens of an example.")
    batch_size: int | None = option(
        32, "The number of examples in a batch, in several processes the total of all processes."
    )
    accumulate: int = option(
        1,
        "The number of batches whose gradients are accumulated for one update of the weights, equivalent to a larger "
        "batch but with the memory of a single one.",
    )
    epochs: int = option(10, "The maximum number of epochs.")
    minutes: float | None = option(
        None,
        "The time of training and validation from the end of the first batch, instead of {epochs}; it does not "
        "include reading the data, training the tokenizer, compilation and the final evaluation.",
    )
    patience: int = option(
        3,
        "The number of epochs without a lower validation loss after which training stops; the weights of the best "
        "epoch are restored. Epochs of less than 50 updates count together, and none while the learning rate "
        "increases.",
    )
    learning_rate: float | None = option(
        None, "The peak learning rate, by default 1e-3, or 5e-5 with {from_}."
    )
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = option(
        "float32", "The dtype policy of training; the saved weights are float32."
    )
    jit_compile: bool | None = option(
        None,
        "Whether to compile training with XLA, which saves time if training takes minutes; by default Keras decides.",
    )
    seed: int = option(0, "The seed of weights, dropout, the held-out examples and the order of the data.")
    encoding: str | None = option(
        None, "The encoding of the files, such as cp1252 (Windows-1252, Latin-1) or utf-16, by default UTF-8."
    )

    task: ClassVar[str]
    summary: ClassVar[str]
    examples_are_texts: ClassVar[bool] = False
    datasets: ClassVar[tuple[str, ...]] = ()
    tokenizers: ClassVar[tuple[str, ...]] = ()
    default_normalization: ClassVar[Normalization] = "nmt_nfkc"
    model_sizes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register a class that names its task."""
        super().__init_subclass__(**kwargs)
        if "task" in vars(cls):
            TASKS[cls.task] = cls

    def __post_init__(self) -> None:
        """Check the options."""
        if (self.data is None) == (self.dataset is None):
            raise ArgumentError(
                "{data} or {dataset} is required, but not both",
                data=_shown(self.data),
                dataset=self.dataset,
            )
        if self.dataset is not None:
            check_one_of(sorted(self.datasets), dataset=self.dataset)
            check(self.test is None, "be None with {dataset}, which has a test split", test=_shown(self.test))
        check_seed(seed=self.seed)
        for name, hints in types_of(type(self)).items():
            value = getattr(self, name)
            if typing.get_origin(hints[0]) is Literal and value is not None:
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
            check(self.revision is None, "be None without {from_}", revision=self.revision)
            check_one_of(sorted(self.model_sizes), model_size=self.model_size or "tiny")
            tokenizer = self.tokenizer or (*self.tokenizers, None)[0]
            normalizing = (*SENTENCE_PIECE, *CHARACTERS)
            check(
                self.normalization is None or tokenizer in normalizing,
                f"be None for a {{tokenizer}} that is not one of {normalizing}",
                normalization=self.normalization,
            )
        else:
            names = ("model_size", "layers", "heads", "model_dim", "hidden_dim", "dropout")
            for name in (*names, "tokenizer", "vocabulary_size", "normalization"):
                value = getattr(self, name)
                check(value is None, "be None with {from_}, whose model determines it", **{name: value})

    def check_files(self) -> None:
        """Check the folders and files of the options, and the first rows of the files."""
        if self.from_ is not None and not os.path.isdir(self.from_) and not is_hub_id(self.from_):
            raise FileNotFoundError(
                Message(
                    "{from_} must be the folder of a saved pipeline, a run or `transformers`, or the id of a model of "
                    "the Hugging Face Hub. Received: {folder!r}, which is not a folder",
                    folder=os.fspath(self.from_),
                )
            )
        self.tokenizer_kind()
        for name in ("data", "validation", "test"):
            paths = self.as_paths(getattr(self, name))
            if paths is not None:
                self.check_paths(paths, name)

    def check_paths(self, paths: Sequence[Any], argument: str) -> None:
        """Check that files of examples are text in the right encoding; subclasses check more."""
        for path in checked_paths(paths, argument)[:_MAX_CHECKED]:
            next(file_lines(path, argument, encoding=self.encoding, has_encoding=True), None)

    def as_paths(self, source: Any) -> list[Any] | None:
        """Return the paths in an option, None if there are none; in options of texts, a list of str is not paths."""
        path = os.PathLike if self.examples_are_texts else str | os.PathLike
        if isinstance(source, str | os.PathLike):
            return [source]
        items = list(source) if isinstance(source, list | tuple) else []
        return items if items and all(isinstance(item, path) for item in items) else None

    def tokenizer_kind(self) -> str | None:
        """Return the type of tokenizer to train, by default the first; None if `tokenizer` is a folder."""
        tokenizer = os.fspath(self.tokenizer or self.tokenizers[0])
        if tokenizer in self.tokenizers:
            return tokenizer
        if not os.path.isdir(tokenizer):
            raise ArgumentError(
                "{tokenizer} must be a folder or one of {types!s}",
                types=sorted(self.tokenizers),
                tokenizer=tokenizer,
            )
        return None

    def options(self, changed: bool = True) -> dict[str, Any]:
        """Return the options, with descriptions in place of examples.

        Args:
            changed: whether to return only options that differ from their defaults.
        """
        return {
            field.name: _shown(value)
            for field in dataclasses.fields(self)
            if ((value := getattr(self, field.name)) is not field.default and value != field.default)
            or not changed
        }


@dataclasses.dataclass(frozen=True)
class TableOptions(TaskOptions):
    """The options of tasks whose examples are rows of tables."""

    format: str | None = option(
        None, "The format of all files, by default determined by each file's suffix.", choices=FORMAT_NAMES
    )
    delimiter: str | None = option(
        None,
        "The character between the columns of CSV files; by default a comma, or a semicolon if the first line has "
        "no commas but semicolons.",
        metavar="CHARACTER",
        type=_delimiter,
    )
    header: bool | None = option(
        None,
        "Whether the first row of TSV and CSV files is their header; by default if {columns} are names, or, with a "
        "warning, if it is clearly not an example.",
    )

    column_names: ClassVar[str] = "the column of the texts"
    known_columns: ClassVar[tuple[tuple[str, ...], ...]] = ()  # see `ColumnPicker`

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
        picker = ColumnPicker(self.columns, known=self.known_columns)
        file_format = FileFormat(**self.file_format)
        for path in checked_paths(paths, argument)[:_MAX_CHECKED]:
            rows = list(file_examples(path, argument, picker, malformed, file_format, only_first=True))
            self.check_columns(rows, malformed.has_ids)
        malformed.check()

    def check_columns(self, rows: Sequence[Sequence[Any]], has_ids: bool = False) -> None:
        """Raise a ValueError if the rows have a wrong number of columns, of which the first can have ids."""
        counts = self.column_counts
        if not rows or len(rows[0]) in counts:
            return
        width = len(rows[0])
        common = [
            delimiter for delimiter in _DELIMITERS if width == 1 and all(delimiter in row[0] for row in rows)
        ]
        start = int(has_ids and width > counts[0])
        count = width - 1 if start and width - 1 in counts else counts[0]
        advice = ", each with {delimiter!r}: if it is between columns, pass {delimiter=}" if common else ""
        raise ArgumentError(
            f"{{columns}} must name {self.column_names}, such as {{columns={(*range(start, start + count),)}}}. "
            f"Received: rows of {width} column{'s' * (width != 1)}{advice}",
            **({"delimiter": common[0]} if common else {}),
        )


def flags_of(options: type[TaskOptions]) -> dict[str, Mapping[str, Any]]:
    """Return the arguments of `argparse` for each field, inherited by fields that only change the default."""
    flags: dict[str, Mapping[str, Any]] = {}
    for class_ in filter(dataclasses.is_dataclass, reversed(options.__mro__)):
        for field in dataclasses.fields(class_):
            flags[field.name] = field.metadata or flags.get(field.name, {})
    return flags


def types_of(options: type[TaskOptions]) -> dict[str, tuple[Any, ...]]:
    """Return the types of each field except None."""
    types_by_field = {}
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        hint = hints[field.name]
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        possible = typing.get_args(hint) if is_union else (hint,)
        types_by_field[field.name] = tuple(type_ for type_ in possible if type_ is not types.NoneType)
    return types_by_field


def _shown(value: Any) -> Any:
    """Return an option for a report, with paths as str and the number of examples instead of the examples."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        short = len(value) <= 20 and all(isinstance(item, str | int | os.PathLike) for item in value)
        return [_shown(item) for item in value] if short else f"{len(value)} examples"
    return value
