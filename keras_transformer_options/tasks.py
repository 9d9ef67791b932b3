"""The options of each task of `keras-transformer train`, which the classes of `keras_transformer.recipes` extend."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

from keras_transformer_options.arguments import (
    ArgumentError,
    check,
    check_fraction,
    check_one_of,
    check_positive_finite,
)
from keras_transformer_options.examples import FileFormat
from keras_transformer_options.files import checked_paths
from keras_transformer_options.summaries import SUMMARY_COLUMNS
from keras_transformer_options.task_options import (
    CHARACTERS,
    SENTENCE_PIECE,
    Normalization,
    TableOptions,
    TaskOptions,
    option,
)
from keras_transformer_options.task_options import TASKS as TASKS

# The types of tokenizers, sizes of models and languages, as named in options.
WORD_PIECE, BYTE_PAIR, BYTES = ("wordpiece",), ("byte-bpe",), ("byte",)
BERT_SIZES = ("tiny", "mini", "small", "medium", "base", "large")
VIT_SIZES = ("ti16", "s16", "b16", "b32", "l16", "h14")
GPT_SIZES = ("gpt", "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl")
# The directions of the public datasets of pairs, the default first.
DIRECTIONS = {
    "phrasebook": ("es-en", "en-es"),
    "spa_eng": ("es-en", "en-es"),
    "multi30k": ("en-de", "en-fr", "de-en", "de-fr", "fr-de", "fr-en"),
}
TRANSCRIPT_COLUMNS = (
    ("path", "sentence"),  # Common Voice
    ("file_name", "transcription"),  # audio folders of `datasets`
    ("audio_filepath", "text"),  # NeMo
    ("path", "text"),
)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")


@dataclasses.dataclass(frozen=True)
class TextToTextOptions(TableOptions):
    """The options of tasks from text to text."""

    batch_size: int | None = None
    batch_tokens: int | None = option(
        None, "The maximum number of positions of each side of a batch, instead of {batch_size}."
    )
    max_new_tokens: int | None = option(
        None, "The maximum number of tokens of an output, by default 128, or that of the model in {from_}."
    )
    monitor: str = option(
        "loss",
        'What must improve on the validation examples for training to go on, see {patience}: "loss", or a metric of '
        "the report, for which at most 1,000 of them are generated after each epoch: bleu or chrf of translations, "
        "rouge1, rouge2 or rougeL of summaries.",
        metavar="NAME",
    )
    source_language: str | None = option(
        None,
        "The language of the sources, if {from_} is a translation model of many languages, such as eng_Latn; by "
        "default its own.",
        metavar="CODE",
    )
    target_language: str | None = option(None, "The language of the targets, likewise.", metavar="CODE")

    tokenizers: ClassVar[tuple[str, ...]] = (*SENTENCE_PIECE, *CHARACTERS)
    model_sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base", "big")
    default_batch_tokens: ClassVar[int] = 2048
    metrics: ClassVar[tuple[str, ...]] = ("bleu", "chrf")  # see `pipelines.evaluate`

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_one_of(("loss", *self.metrics), monitor=self.monitor)
        if self.from_ is None:
            for name in ("source_language", "target_language"):
                check(getattr(self, name) is None, "be None without {from_}", **{name: getattr(self, name)})

    @property
    def column_counts(self) -> tuple[int, ...]:
        """The number of columns of a pair."""
        return (2,)


@dataclasses.dataclass(frozen=True)
class TranslateOptions(TextToTextOptions):
    """The options of the task `translate`."""

    reverse: bool = option(False, "Whether to swap the two columns.")
    direction: str | None = option(None, "The languages of a public dataset, as source-target.")

    task: ClassVar[str] = "translate"
    summary: ClassVar[str] = "train an encoder-decoder on pairs of texts: TSV, CSV or JSONL"
    datasets: ClassVar[tuple[str, ...]] = tuple(DIRECTIONS)
    column_names: ClassVar[str] = "the columns of sources and targets"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.dataset is not None:
            checked_direction(self.dataset, self.direction)
        else:
            expectation = "be None without {dataset}; {reverse} swaps the columns of files"
            check(self.direction is None, expectation, direction=self.direction)


@dataclasses.dataclass(frozen=True)
class SummarizeOptions(TextToTextOptions):
    """The options of the task `summarize`."""

    max_length: int = option(512, "The maximum number of tokens of a document, the rest of which is cut off.")
    top_k: int | None = option(
        None,
        "The number of a document's states that each head attends to for a token of the summary: an Unlimiformer reads "
        "documents in chunks, so that {max_length} may exceed the model's.",
    )
    chunk_length: int = option(512, "The number of tokens of a chunk, with {top_k}.")

    task: ClassVar[str] = "summarize"
    summary: ClassVar[str] = (
        "train an encoder-decoder on documents and summaries: TSV, CSV, JSONL, or files of CNN/DailyMail and GovReport"
    )
    column_names: ClassVar[str] = "the columns of documents and summaries"
    known_columns: ClassVar[tuple[tuple[str, ...], ...]] = SUMMARY_COLUMNS
    default_batch_tokens: ClassVar[int] = 8192
    metrics: ClassVar[tuple[str, ...]] = ("rouge1", "rouge2", "rougeL")


@dataclasses.dataclass(frozen=True)
class TextsOptions(TableOptions):
    """The options of tasks on texts without labels."""

    lines: bool = option(
        False, "Whether each line of a plain text file is a separate text; otherwise a file is one text."
    )

    examples_are_texts: ClassVar[bool] = True

    def is_one_text(self, path: Any, argument: str = "paths") -> bool:
        """Return whether a file is one text, rather than a table or a list of lines."""
        return not self.lines and FileFormat(**self.file_format).format_of(path, argument) == "text"

    def check_paths(self, paths: Sequence[Any], argument: str) -> None:
        """Check the first rows of tables and lists, and the encoding of texts."""
        for path in checked_paths(paths, argument):
            checked = TaskOptions if self.is_one_text(path, argument) else TableOptions
            checked.check_paths(self, [path], argument)


@dataclasses.dataclass(frozen=True)
class LanguageModelOptions(TextsOptions):
    """The options of the task `language-model`."""

    max_length: int = 256
    max_new_tokens: int | None = option(
        None,
        "The maximum number of tokens of an output, by default half of {max_length}, or that of the model in {from_}.",
    )

    task: ClassVar[str] = "language-model"
    summary: ClassVar[str] = "train a GPT on texts: plain text, TSV, CSV or JSONL"
    tokenizers: ClassVar[tuple[str, ...]] = (*BYTE_PAIR, *SENTENCE_PIECE, *CHARACTERS, *BYTES)
    default_normalization: ClassVar[Normalization] = "identity"
    model_sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base", *GPT_SIZES)

    @property
    def column_counts(self) -> tuple[int, ...]:
        """The number of columns of a text, or of a prompt and a completion."""
        return (2,) if self.are_pairs else (1,)

    @property
    def are_pairs(self) -> bool:
        """True if there are two columns, for prompts and completions."""
        return self.columns is not None and len(self.columns) == 2


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModelOptions(TextsOptions):
    """The options of the task `masked-language-model`."""

    masked_share: float = option(0.15, "The fraction of tokens to predict.")
    whole_words: bool = option(False, "Whether to mask whole words.")

    task: ClassVar[str] = "masked-language-model"
    summary: ClassVar[str] = "pre-train a BERT on texts: plain text, TSV, CSV or JSONL"
    tokenizers: ClassVar[tuple[str, ...]] = WORD_PIECE
    model_sizes: ClassVar[tuple[str, ...]] = BERT_SIZES

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_fraction(masked_share=self.masked_share)


@dataclasses.dataclass(frozen=True)
class ClassifyOptions(TableOptions):
    """The options of the task `classify`."""

    class_weights: Literal["balanced", "none"] = option(
        "balanced",
        '"balanced" to weight classes by their inverse frequency if the largest is over 1.5 times as frequent as '
        'the smallest, or "none". Classes with one or two examples keep the weight 1.',
    )
    label_separator: str | None = option(
        None,
        "What separates the labels of a text that may have several, such as a comma; alone, it stands for no label. "
        "The classifier then decides each label by itself. By default each example has one label.",
        metavar="TEXT",
    )
    image_size: int = option(64, "The height and width that images are resized to.")
    patch_size: int | None = option(
        None,
        "The height and width of image patches, by default a divisor of the image size that gives about 7 × 7 "
        "patches.",
    )

    task: ClassVar[str] = "classify"
    summary: ClassVar[str] = (
        "train a classifier of texts, pairs of texts (TSV, CSV, JSONL), or a folder of images"
    )
    datasets: ClassVar[tuple[str, ...]] = ("sst2", "mnist")
    tokenizers: ClassVar[tuple[str, ...]] = (*WORD_PIECE, *SENTENCE_PIECE)
    model_sizes: ClassVar[tuple[str, ...]] = (*BERT_SIZES, *VIT_SIZES)
    column_names: ClassVar[str] = "the columns of the text, optionally a second text, and the label"

    @property
    def column_counts(self) -> tuple[int, ...]:
        """The number of columns of a labelled text, or of a pair of texts with its label."""
        return (2, 3)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        separator = self.label_separator
        if separator is not None:
            is_valid = isinstance(separator, str) and separator != ""
            check(is_valid, "be a string of at least one character", label_separator=separator)
            check(self.dataset is None, "be None with {dataset}", label_separator=separator)

    def check_one_label_of_images(self, are_images: bool) -> None:
        """Raise a ValueError if images are to have several labels."""
        is_valid = self.label_separator is None or not are_images
        check(is_valid, "be None for images", label_separator=self.label_separator)

    def check_paths(self, paths: Sequence[Any], argument: str) -> None:
        """Check that a folder has images, or check the first rows of files."""
        if not os.path.isdir(paths[0]):
            super().check_paths(paths, argument)
            return
        self.check_one_label_of_images(True)
        next(image_files(paths[0], argument))


@dataclasses.dataclass(frozen=True)
class TagOptions(TaskOptions):
    """The options of the task `tag`."""

    task: ClassVar[str] = "tag"
    summary: ClassVar[str] = "train a tagger of words: files in CoNLL's format"
    tokenizers: ClassVar[tuple[str, ...]] = (*WORD_PIECE, *SENTENCE_PIECE)
    model_sizes: ClassVar[tuple[str, ...]] = BERT_SIZES


@dataclasses.dataclass(frozen=True)
class AnswerOptions(TaskOptions):
    """The options of the task `answer`."""

    max_length: int = 384

    task: ClassVar[str] = "answer"
    summary: ClassVar[str] = "train a model to find answers in a context: files in SQuAD's JSON format"
    tokenizers: ClassVar[tuple[str, ...]] = (*WORD_PIECE, *SENTENCE_PIECE)
    model_sizes: ClassVar[tuple[str, ...]] = BERT_SIZES


@dataclasses.dataclass(frozen=True)
class RerankOptions(TableOptions):
    """The options of the task `rerank`."""

    task: ClassVar[str] = "rerank"
    summary: ClassVar[str] = (
        "train a cross-encoder on queries, texts and their relevance, from 0 to 1: TSV, CSV or JSONL"
    )
    tokenizers: ClassVar[tuple[str, ...]] = (*WORD_PIECE, *SENTENCE_PIECE)
    model_sizes: ClassVar[tuple[str, ...]] = BERT_SIZES
    column_names: ClassVar[str] = "the columns of the query, the text and its relevance"

    @property
    def column_counts(self) -> tuple[int, ...]:
        """The number of columns of a query, a text and its relevance."""
        return (3,)


@dataclasses.dataclass(frozen=True)
class SpeechOptions(TableOptions):
    """The options of the task `speech`."""

    max_length: int = option(512, "The maximum number of tokens of a transcript; longer ones are dropped.")
    batch_size: int | None = 16
    sample_rate: int = option(16000, "The number of samples in a second of audio.")
    resample: bool = option(False, "Resample WAV files of other sample rates; needs SciPy.")
    max_seconds: float = option(30.0, "The maximum duration of audio; longer audio is dropped.")

    task: ClassVar[str] = "speech"
    summary: ClassVar[str] = (
        "train a recognizer of speech on paths of WAV files and transcripts: TSV, CSV or JSONL"
    )
    tokenizers: ClassVar[tuple[str, ...]] = (*BYTES, *CHARACTERS, *SENTENCE_PIECE, *WORD_PIECE)
    column_names: ClassVar[str] = "the columns of the path of a WAV file and its transcript"
    known_columns: ClassVar[tuple[tuple[str, ...], ...]] = TRANSCRIPT_COLUMNS
    model_sizes: ClassVar[tuple[str, ...]] = ("tiny", "small", "base")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_positive_finite(max_seconds=self.max_seconds)

    @property
    def column_counts(self) -> tuple[int, ...]:
        """The number of columns of a path and a transcript."""
        return (2,)


def checked_direction(dataset: str, direction: str | None = None) -> str:
    """Return the direction (source-target) of a public dataset of pairs, by default its first."""
    directions = DIRECTIONS[dataset]
    if direction is not None:
        check_one_of(directions, direction=direction)
    return direction or directions[0]


def image_files(folder: str | os.PathLike[str], argument: str) -> Iterator[pathlib.Path]:
    """Yield the images of a folder with one folder of images for each class, in alphabetical order."""
    paths = (
        path for path in sorted(pathlib.Path(folder).glob("*/*")) if path.suffix.lower() in IMAGE_SUFFIXES
    )
    first = next(paths, None)
    if first is None:
        raise ArgumentError(
            "{} must be a folder with one folder of images ({suffixes!s}) for each class. "
            "Received: {folder!s}, without images in its folders",
            argument,
            suffixes=", ".join(IMAGE_SUFFIXES),
            folder=folder,
        )
    yield from itertools.chain([first], paths)
