"""Translation of files: texts, of which lines and paragraphs are kept, and subtitles."""

import dataclasses
import functools
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_transformer_cli.output import in_chunks, one_line
from keras_transformer_options.files import conversion, file_lines

_CHUNK = 256  # sentences between two progress lines
_BYTE_ORDER_MARK = "\ufeff"
_TIME = r"\d+:\d\d:\d\d[,.]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(\s.*)?")
_TAG = re.compile(r"<[^<>]*>|\{[^{}]*\}")
_EMPTY_PAIR = re.compile(r"<(\w+)[^<>]*></\1>")
# Tags, dialogue dashes and music notes around the words of a line.
_AROUND = rf"(?:{_TAG.pattern}|\s|[-‐–—♪♫](?!\d))*"
_LINE = re.compile(rf"({_AROUND})(.*?)({_AROUND})", re.DOTALL)
_DASH = re.compile(rf"(?:{_TAG.pattern}|\s)*[-‐–—](?!\d)")


@dataclasses.dataclass(frozen=True)
class Caption:
    """Lines of a subtitle that are translated together.

    Attributes:
        words: the words of each line, without tags.
        around: the strings before and after the words of each line; the last one ends the line.
    """

    words: tuple[str, ...]
    around: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        """The words of all lines, joined by spaces."""
        return " ".join(filter(None, self.words))

    def with_text(self, text: str) -> str:
        """Return the lines with a translation, split at spaces in the proportions of the original lines."""
        cuts = iter(_cut(text, [words for words in self.words if words]))
        translated_lines: list[list[str]] = []
        for words, (before, after, end) in zip(self.words, self.around, strict=True):
            translated = next(cuts) if words else ""
            if translated or not words or not translated_lines:
                translated_lines.append([before + translated + after, end])
            else:  # a blank line would end the subtitle
                translated_lines[-1] = [translated_lines[-1][0] + (before + after).strip(), end]
        return "".join(line + end for line, end in translated_lines)


def is_subtitles(path: str | None) -> bool:
    """Return whether a file has subtitles, by its suffix."""
    return path is not None and path.lower().endswith(".srt")


def read(path: str | None) -> str:
    """Return the text of a file, or of standard input, with its line ends.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        if path is None:
            return sys.stdin.read()
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None


def not_utf8(path: str | None, error: UnicodeDecodeError) -> ValueError:
    """Return the error for a file or standard input that is not UTF-8, with a command to convert it."""
    name, advice = "standard input", ""
    if path is not None:
        next(file_lines(path, "--input"), None)  # raises if it is UTF-16 or compressed
        name = path
        advice = f"; if it is Windows-1252 (Latin-1), {conversion(path, 'cp1252', has_encoding=False)}"
    return ValueError(f"`--input` must be UTF-8. Received: {name}, {error}{advice}")


def translate_text(content: str, pipeline: Any, **chosen: str) -> str:
    """Translate a text, keeping its lines, paragraphs and the spaces between sentences.

    Args:
        content: the text.
        pipeline: a `TextToText`, or its export.
        **chosen: the languages of the text and its translation, if the pipeline needs them.
    """
    mark, text = _split_byte_order_mark(content)
    (split,) = pipeline.split_texts([text])
    translate = functools.partial(pipeline, **chosen)
    return mark + split.join(list(in_chunks(translate, split.parts, _CHUNK, "sentences")))


def translate_document(content: str, pipeline: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """Translate a text with tags as one text, keeping its byte order mark."""
    mark, text = _split_byte_order_mark(content)
    return mark + pipeline([text])[0]


def read_glossary(path: str) -> dict[str, str]:
    """Return the terms and their translations of a file, which are separated by a tab in each line.

    Raises:
        ValueError: if the file is not UTF-8, or a line has not two texts.
    """
    entries = {}
    for number, line in enumerate(_split_byte_order_mark(read(path))[1].splitlines(), start=1):
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


def translate_subtitles(content: str, pipeline: Callable[[Sequence[str]], Sequence[str]], path: str) -> str:
    """Translate subtitles, keeping their numbers, times, tags at the ends of lines, and line ends.

    The lines of a subtitle are joined, translated and split again; lines that begin with a dash are translated
    separately.

    Args:
        content: the content of an .srt file.
        pipeline: a function from texts to their translations.
        path: the file, for errors.

    Raises:
        ValueError: if the file is malformed.
    """
    mark, text = _split_byte_order_mark(content)
    pieces = list(_pieces(text, path))
    captions = [piece for piece in pieces if isinstance(piece, Caption)]
    answers = in_chunks(pipeline, [caption.text for caption in captions], _CHUNK, "subtitles")
    return mark + "".join(
        piece.with_text(one_line(next(answers))) if isinstance(piece, Caption) else piece for piece in pieces
    )


def _pieces(text: str, path: str) -> Iterator[str | Caption]:
    """Yield the captions of an .srt file, and the strings between them, which are not translated."""
    lines = io.StringIO(text, newline="").readlines()
    row = 0

    def error(expected: str) -> ValueError:
        received = repr(lines[row].strip()[:80]) if row < len(lines) else "the end of the file"
        return ValueError(f"`{path}` must have {expected} in line {row + 1}. Received: {received}")

    while row < len(lines):
        if not lines[row].strip():
            yield lines[row]
            row += 1
            continue
        if not lines[row].strip().isdecimal():
            raise error("the number of a subtitle")
        row += 1
        if row == len(lines) or not _TIMES.fullmatch(lines[row].strip()):
            raise error("times such as 00:00:01,000 --> 00:00:02,000")
        yield lines[row - 1] + lines[row]
        row += 1
        begin = row
        while row < len(lines) and lines[row].strip():
            row += 1
        if begin < row:
            yield from _captions(lines[begin:row])


def _captions(lines: Sequence[str]) -> Iterator[str | Caption]:
    """Yield the lines of a subtitle as one caption, or as several if lines after the first begin with a dash."""
    starts = [row for row, line in enumerate(lines) if row == 0 or _DASH.match(line)]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        words, around = [], []
        for line in lines[start:stop]:
            content = line.rstrip("\r\n")
            match = _LINE.fullmatch(content)
            assert match is not None
            words.append(_TAG.sub("", match[2]))
            # Move tags between words after them, without pairs that enclosed some of the words.
            tags = _EMPTY_PAIR.sub("", "".join(_TAG.findall(match[2])))
            around.append((match[1], tags + match[3], line[len(content) :]))
        caption = Caption((*words,), (*around,))
        yield caption if any(map(str.isalpha, caption.text)) else "".join(lines[start:stop])


def _cut(text: str, words: Sequence[str]) -> list[str]:
    """Split a text at spaces into as many lines as `words`, in their proportions; the last lines may be empty."""
    total = len(" ".join(words))
    lines, begin, end_of_words = [], 0, -1
    for row, line_words in enumerate(words):
        end_of_words += 1 + len(line_words)
        target = end_of_words / total * len(text)
        spaces = [i for i in range(begin + 1, len(text)) if text[i] == " "]
        last = row == len(words) - 1 or not spaces
        cut = len(text) if last else min(spaces, key=lambda i: abs(i - target))
        lines.append(text[begin:cut])
        begin = min(cut + 1, len(text))
    return lines


def _split_byte_order_mark(content: str) -> tuple[str, str]:
    """Split a text into its byte order mark, which may be empty, and the rest."""
    text = content.removeprefix(_BYTE_ORDER_MARK)
    return content[: len(content) - len(text)], text
