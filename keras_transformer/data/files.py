"""Examples from users' files: TSV, CSV, JSONL, plain text, and documents with summaries."""

import os
from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.columns import ColumnPicker, Columns
from keras_transformer_options.examples import ADVICE, FileFormat, file_examples
from keras_transformer_options.files import Paths, checked_paths
from keras_transformer_options.malformed import Malformed
from keras_transformer_options.summaries import SUMMARY_COLUMNS


class FileOptions(TypedDict, total=False):
    """The options of functions that read files; see `read_examples`."""

    format: str | None
    encoding: str | None
    delimiter: str | None
    header: bool | None
    on_error: str


def read_examples(
    paths: Paths,
    columns: Columns = None,
    *,
    format: str | None = None,  # noqa: A002
    encoding: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    on_error: str = "raise",
) -> list[tuple[str, ...]]:
    """Read examples from files of text, plain or compressed by gzip (".gz"), into memory.

    | format | suffix | an example |
    |---|---|---|
    | "tsv" | .tsv | a line, split at tabs, without quoting |
    | "csv" | .csv | a record of Python's `csv`, whose fields in quotes may contain line ends |
    | "jsonl" | .jsonl | the values of a JSON object on a line: strings, or numbers, which become strings |
    | "text" | .txt | a line that is not empty |
    | "story" | .story | a file of CNN/DailyMail: "article" and "highlights", see `read_summaries` |
    | "govreport" | | a file of GovReport: "report" and "summary" |

    The first row of a TSV or CSV file is its header if `columns` are names. Otherwise it is an example, unless it is
    clearly a header, which is then skipped with a warning of the logger "keras_transformer":

    - its fields are all usual names of columns or languages, such as "text" and "label" or "Opinión" and "Etiqueta"; or
    - a column has numbers in all other rows; or
    - its fields are a few words without punctuation; one is in a column of labels, which recur unlike this field, and
      another in a column of longer texts.

    Args:
        paths: the path of a file, or several; each may be a pattern such as "reviews-*.csv.gz", for the files that
            match it in alphabetical order.
        columns: the columns of an example: indices from 0, or names in the header of a TSV or CSV file or keys of the
            JSON objects; by default all columns. A TSV row may have more columns than the ones chosen by index; the
            rows of a CSV file must all have as many columns as the first.
        format: the format of all files, by default that of each file's suffix.
        encoding: their encoding, such as "cp1252" (Windows-1252, with the letters of Latin-1) or "utf-16"; by default
            UTF-8.
        delimiter: the character between the columns of CSV files; by default a comma, or a semicolon if the first line
            has semicolons but no commas outside of quotes.
        header: whether the first row of TSV and CSV files is their header; by default it is recognised as above.
        on_error: "raise" to raise an error for malformed lines, or "skip" to skip them with one warning of the logger
            "keras_transformer", which lists their number, their percentage and the first three. A line is malformed if
            it is empty, has another number of columns, an empty field or a missing key, or is not valid UTF-8, CSV or
            JSON.

    Returns:
        The examples in order, each a tuple of one string for each column.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a line is malformed and `on_error` is "raise", a file lacks one of `columns`, there are no
            examples, the format is unknown, a path is a directory, or a file is in another encoding or compressed
            although its name does not end in ".gz"; the error says how to convert it.

    Example:
        >>> kt.data.read_examples("reviews.csv", columns=("text", "label"), on_error="skip")  # doctest: +SKIP
        [('A fine film.', 'positive'), ...]
    """
    options = {"format": format, "encoding": encoding, "delimiter": delimiter, "header": header}
    return list(picked_examples(paths, ColumnPicker(columns), on_error, **options))


def stream_examples(
    paths: Paths,
    columns: Columns = None,
    **options: Unpack[FileOptions],
) -> Iterator[tuple[str, ...]]:
    """Read examples from files as `read_examples` does, but one by one, for files that are larger than memory.

    Args:
        paths: see `read_examples`.
        columns: see `read_examples`.
        **options: `format`, `encoding`, `delimiter`, `header` and `on_error`, see `read_examples`. Malformed lines are
            reported after the last example.

    Yields:
        The examples in order, each a tuple of one string for each column.

    Raises:
        FileNotFoundError: as `read_examples`, when the first example is read.
        TypeError: as `read_examples`.
        ValueError: as `read_examples`.

    Example:
        >>> texts = (text for text, _ in kt.data.stream_examples("reviews-*.csv.gz"))  # doctest: +SKIP
    """
    yield from picked_examples(paths, ColumnPicker(columns), **options)


def read_summaries(
    paths: Paths,
    columns: Columns = None,
    **options: Unpack[FileOptions],
) -> list[tuple[str, str]]:
    r"""Read documents with their summaries from files, as they are published, into memory.

    - Tables and JSONL: the columns "article" and "highlights" (CNN/DailyMail), "report" and "summary" (GovReport),
      "document" and "summary" (XSum, Multi-News), "text" and "summary" (BillSum), "dialogue" and "summary" (SAMSum),
      "article" and "abstract" (PubMed, arXiv), or "input" and "output" (SCROLLS); without these, the only two columns.
    - Files that end in .story, as of CNN/DailyMail: an article, then the line `@highlight` before each sentence of its
      summary.
    - JSON files as of GovReport, with `format="govreport"`: the text of all sections of "report" or "reports", and of
      "summary" or "highlight".

    Args:
        paths: see `read_examples`; a pattern such as "cnn/stories/*.story" for files of one document.
        columns: the columns of document and summary, by default as above; see `read_examples`.
        **options: as for `stream_examples`. An empty document or summary is malformed: CNN/DailyMail has some.

    Returns:
        The pairs (document, summary) in order.

    Raises:
        FileNotFoundError: as `read_examples`.
        TypeError: as `read_examples`.
        ValueError: as `read_examples`, or if the columns are not two.

    Example:
        >>> kt.data.read_summaries("cnn/stories/*.story", on_error="skip")  # doctest: +SKIP
        [('(CNN) -- The storm …', 'The storm is over .\nNobody was hurt .'), ...]

    References:
        Hermann et al., "Teaching Machines to Read and Comprehend" (2015); Huang et al., "Efficient Attentions for Long
        Document Summarization" (2021).
    """
    picker = ColumnPicker(columns, 2, known=SUMMARY_COLUMNS)
    return [(document, summary) for document, summary in picked_examples(paths, picker, **options)]


def picked_examples(
    paths: Paths, picker: ColumnPicker, on_error: str = "raise", **file_format: Any
) -> Iterator[tuple[str, ...]]:
    """Yield the examples of files, and report malformed lines after the last."""
    format_of_all = FileFormat(**file_format)
    malformed = Malformed("paths", on_error, ADVICE, has_options=True)
    paths = checked_paths(paths)
    has_examples = False
    for path in paths:
        for example in file_examples(path, "paths", picker, malformed, format_of_all):
            has_examples = True
            yield example
    malformed.report()
    if not has_examples:
        raise ArgumentError("{paths} must hold at least one example", paths=list(map(os.fspath, paths)))
