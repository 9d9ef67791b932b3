"""Texts, glossaries and documents that commands read, and the translation of documents."""

import argparse
import functools
import io
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer_cli.output import in_chunks
from keras_transformer_options.files import conversion, file_lines

CHUNK = 256  # sentences or subtitles between two progress lines
_BYTE_ORDER_MARK = "\ufeff"
_HTML = (".html", ".htm", ".xhtml", ".xhtm", ".xml", ".svg")
# Plain text; codes of languages, such as .es, .pt-BR and .spa_Latn; numbers; no suffixes, but parts of names.
_PLAIN = re.compile(
    r"""\.(txt|text|tsv|tab|log|lst|list|lines|sents?|sentences|src|tgt|trg|source|target|in|out|input|output|ref|hyp|train
    |valid|val|dev|devtest|test|tok|bpe|spm|sp|raw|clean|norm|lc|tc|orig
    |[a-z]{2} | [a-z]{2,3}([-_][a-z\d]{2,4})+ | \d+ | .*[^a-z\d].* | .{12,} | )""",
    re.VERBOSE,
)
# What to do with files whose lines are not texts.
_ADVICE = {
    suffix: advice
    for suffixes, advice in (
        (" ".join(_HTML), "pass --tag-handling html to translate its text and keep its tags"),
        (".doc .docx .odt .rtf .pdf .epub .ppt .pptx .odp .pages", "convert it to HTML or plain text"),
        (
            ".csv .json .jsonl .xls .xlsx .ods .parquet .sql .tmx .tbx",
            "pass a file with one text in each line, or texts separated by tabs",
        ),
        (
            ".po .pot .xliff .xlf .sdlxliff .mqxliff .yaml .yml .toml .ini .cfg .conf .properties .strings "
            ".stringsdict .xcstrings .plist .resx .resw .arb .ftl .lang .ts .js .py .php .rb .go .sh",
            "extract its texts to a file with one in each line; --tag-handling placeholders keeps {name} and %s",
        ),
        (
            ".md .mdx .markdown .rst .adoc .asciidoc .org .tex .ipynb .dita",
            "convert it to HTML and pass --tag-handling html, or to plain text",
        ),
        (".ass .ssa .sub .sbv .ttml .dfxp .itt .smi .sami .stl .scc .lrc", "convert it to .srt or .vtt"),
        (".gz .bz2 .xz .zst .zip .7z .tar .tgz", "decompress it"),
        (
            ".png .jpg .jpeg .gif .bmp .webp .tif .tiff .wav .mp3 .flac .ogg .m4a",
            "give its name as an argument to an image classifier or a speech recognizer",
        ),
    )
    for suffix in suffixes.split()
}


class Texts(argparse.Action):
    """An argument of any number of texts, none for "-", by which commands name standard input."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        """Store the texts."""
        setattr(namespace, self.dest, [] if values == ["-"] else values)


def path_or_none(path: str) -> str | None:
    """Return the path of a file, None for "-", standard input."""
    return None if path == "-" else path


def check_suffix(path: str | None, tag_handling: str | None) -> None:
    """Check that a file is plain text by its suffix, or HTML with its tag handling."""
    suffix = "" if path is None else pathlib.Path(path).suffix.lower()
    if not suffix or (tag_handling == "html" and suffix in _HTML):
        return
    from keras_transformer_serving.pipelines import languages

    code = suffix[1:]
    is_plain = _PLAIN.fullmatch(suffix) or languages.name_of(code) != code
    if suffix in _ADVICE or not is_plain:
        advice = _ADVICE.get(suffix, "its name must end in .txt or in the code of a language, such as .es")
        raise ValueError(
            f"`--input` must be a file of texts, not {suffix}: {advice}. To read its lines as texts, pass it as "
            f"standard input: --input - < {shlex.quote(str(path))}. Received: {path}"
        )


def read(path: str | None = None) -> str:
    """Return the text of a file, or of standard input, with its line ends."""
    try:
        return (sys.stdin.buffer.read() if path is None else pathlib.Path(path).read_bytes()).decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from None


def read_lines(path: str | None = None) -> list[str]:
    """Return the lines of a file, or of standard input, without a byte order mark."""
    _, text = split_byte_order_mark(read(path))
    return _lines(text)


def _lines(text: str) -> list[str]:
    r"""Return the lines of a text, which end in "\n", "\r\n" or "\r", without their ends."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def _not_utf8(path: str | None, error: UnicodeDecodeError) -> ValueError:
    """Return the error for a file or standard input that is not UTF-8, with a command to convert it."""
    name, advice = "standard input", ""
    if path is not None:
        next(file_lines(path, "--input"), None)  # raises if it is UTF-16 or compressed
        name = path
        advice = f"; if it is Windows-1252 (Latin-1), {conversion(path, 'cp1252', has_encoding=False)}"
    return ValueError(f"`--input` must be UTF-8. Received: {name}, {error}{advice}")


def translate_text(content: str, pipeline: Any, **languages: str) -> str:
    """Translate a text, keeping its lines, paragraphs and the spaces between sentences.

    Args:
        content: the text.
        pipeline: a `TextToText`, or its export.
        **languages: the languages of the text and its translation, if the pipeline needs them.
    """
    mark, text = split_byte_order_mark(content)
    (split,) = pipeline.split_texts([text])
    translate = functools.partial(pipeline, **languages)

    def place(row: int) -> str:
        before = "".join([*split.between[: row + 1], *split.parts[:row]])
        return f"line {len(_lines(before + '.'))}"

    return mark + split.join(list(in_chunks(translate, split.parts, CHUNK, "sentences", place)))


def translate_document(content: str, pipeline: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """Translate a text with tags as one text, keeping its byte order mark."""
    mark, text = split_byte_order_mark(content)
    return mark + pipeline([text])[0]


def read_glossary(path: str) -> dict[str, str]:
    """Return the terms and their translations of a file, which are separated by a tab in each line."""
    entries = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        term, separator, translation = line.partition("\t")
        if not separator or "\t" in translation:
            raise ValueError(
                f"`{path}` must have a term and its translation, separated by a tab, in line {number}. "
                f"Received: {line[:80]!r}"
            )
        entries[term] = translation
    return entries


def split_byte_order_mark(content: str) -> tuple[str, str]:
    """Split a text into its byte order mark, which may be empty, and the rest."""
    text = content.removeprefix(_BYTE_ORDER_MARK)
    return content[: len(content) - len(text)], text
