"""Subtitles in SubRip's format (.srt) and WebVTT (.vtt), and their translation."""

import dataclasses
import html
import io
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_transformer_cli.input_files import CHUNK, split_byte_order_mark
from keras_transformer_cli.output import errors_at, in_chunks, one_line

SUFFIXES = (".srt", ".vtt")
_TIME = {".srt": r"\d+:\d\d:\d\d[,.]\d{1,3}", ".vtt": r"(?:\d+:)?\d\d:\d\d[,.]\d{1,3}"}
_EXAMPLES = {".srt": "00:00:01,000 --> 00:00:02,000", ".vtt": "00:01.000 --> 00:02.000"}
_HEADER = re.compile(r"WEBVTT(?:[ \t].*)?")
_NOT_TRANSLATED = re.compile(r"(?:NOTE|STYLE|REGION)(?:[ \t].*)?")
_TAG = re.compile(r"<[^<>]*>|\{[^{}]*\}")
_ELEMENT = re.compile(r"<(/?)([^\s./<>]+)[^<>]*>")
# Tags, dialogue dashes and music notes around the words of a line.
_AROUND = rf"(?:{_TAG.pattern}|\s|[-‐–—♪♫](?!\d))*"
_LINE = re.compile(rf"({_AROUND})(.*?)({_AROUND})", re.DOTALL)
_DASH = re.compile(rf"(?:{_TAG.pattern}|\s)*[-‐–—](?!\d)")
_PLACEHOLDER = re.compile(r"(</?x\d+/?>)")


@dataclasses.dataclass(frozen=True)
class Caption:
    """Lines of a subtitle that are translated together.

    Attributes:
        words: the words of each line. If there are tags between them, it is HTML, and each tag has a placeholder.
        around: the strings before and after the words of each line; the last one ends the line.
        tags: the tags between words, by their placeholders.
        escapes: whether `&`, `<` and `>` are entities in the file.
        number: the number of its first line in the file.
    """

    words: tuple[str, ...]
    around: tuple[tuple[str, str, str], ...]
    tags: dict[str, str]
    escapes: bool
    number: int

    @classmethod
    def of(cls, lines: Sequence[str], escapes: bool, number: int) -> "Caption":
        """Return lines, of which the first has this number, as a caption."""
        words, around = [], []
        for line in lines:
            content = line.rstrip("\r\n")
            match = _LINE.fullmatch(content)
            assert match is not None
            before, of_line, after = _with_counterparts(match[1], match[2], match[3])
            words.append(of_line)
            around.append((before, after, line[len(content) :]))
        if not any(map(_TAG.search, words)):
            return cls(
                tuple(map(html.unescape, words) if escapes else words), (*around,), {}, escapes, number
            )
        replaced, tags = _with_placeholders(words, escapes)
        return cls((*replaced,), (*around,), tags, escapes, number)

    @property
    def text(self) -> str:
        """The words of all lines, joined by spaces."""
        return " ".join(filter(None, self.words))

    def with_text(self, text: str) -> str:
        """Return the lines with a translation, split at spaces in the proportions of the original lines."""
        cuts = iter(_cut(text, [words for words in self.words if words]))
        translated_lines: list[list[str]] = []
        for words, (before, after, end) in zip(self.words, self.around, strict=True):
            translated = self._with_tags(next(cuts)) if words else ""
            if translated or not words or not translated_lines:
                translated_lines.append([before + translated + after, end])
            else:  # a blank line would end the subtitle
                translated_lines[-1] = [translated_lines[-1][0] + (before + after).strip(), end]
        return "".join(line + end for line, end in translated_lines)

    def _with_tags(self, text: str) -> str:
        """Return a part of a translation as it is written in the file."""
        strings = _PLACEHOLDER.split(text) if self.tags else [text]
        for place, string in enumerate(strings):
            if place % 2:
                strings[place] = self.tags[string]
                continue
            string = html.unescape(string) if self.tags else string
            strings[place] = html.escape(string, quote=False) if self.escapes else string
        return "".join(strings)


def suffix_of(path: str | None) -> str | None:
    """Return the suffix of a file with subtitles; None for other files."""
    suffix = "" if path is None else pathlib.Path(path).suffix.lower()
    return suffix if suffix in SUFFIXES else None


def translate(content: str, pipeline: Callable[..., Sequence[str]], path: str) -> str:
    """Translate subtitles, keeping their numbers, times, tags and line ends.

    The lines of a subtitle are joined, translated and split again; lines that begin with a dash are translated
    separately. Tags between words are kept around the words that translate theirs.

    Args:
        content: the content of a file.
        pipeline: a function from texts to their translations, with `tag_handling="html"` from texts with tags.
        path: the file, for its suffix and errors.
    """
    mark, text = split_byte_order_mark(content)
    pieces = list(_pieces(text, path))
    captions = [piece for piece in pieces if isinstance(piece, Caption)]

    def translated(captions: Sequence[Caption]) -> list[str]:
        outputs: dict[int, str] = {}
        for has_tags in (False, True):
            rows = [row for row, caption in enumerate(captions) if bool(caption.tags) == has_tags]
            options: dict[str, Any] = {"tag_handling": "html"} if has_tags else {}
            if rows:
                texts = [captions[row].text for row in rows]
                names = [f"texts[{row}]" for row in rows]
                with errors_at(names.__getitem__):
                    outputs |= zip(rows, pipeline(texts, **options), strict=True)
        return [outputs[row] for row in range(len(captions))]

    def place(row: int) -> str:
        return f"line {captions[row].number}"

    answers = in_chunks(translated, captions, CHUNK, "subtitles", place)
    return mark + "".join(
        piece.with_text(one_line(next(answers))) if isinstance(piece, Caption) else piece for piece in pieces
    )


def _pieces(text: str, path: str) -> Iterator[str | Caption]:
    """Yield the captions of a file, and the strings between them, which are not translated."""
    suffix = suffix_of(path)
    assert suffix is not None
    is_vtt = suffix == ".vtt"
    times = re.compile(rf"\s*{_TIME[suffix]}\s*-->\s*{_TIME[suffix]}(\s.*)?")
    lines = io.StringIO(text, newline="").readlines()
    row = 0

    def is_times(index: int) -> bool:
        return index < len(lines) and times.fullmatch(lines[index].strip()) is not None

    def end_of_block(index: int) -> int:
        while index < len(lines) and lines[index].strip():
            index += 1
        return index

    def error(expected: str) -> ValueError:
        received = repr(lines[row].strip()[:80]) if row < len(lines) else "the end of the file"
        return ValueError(f"`{path}` must have {expected} in line {row + 1}. Received: {received}")

    if is_vtt:
        if not lines or not _HEADER.fullmatch(lines[0].rstrip("\r\n")):
            raise error("WEBVTT")
        row = end_of_block(0)
        yield "".join(lines[:row])
    while row < len(lines):
        begin = row
        if not lines[row].strip():
            row += 1
            yield lines[begin]
            continue
        if is_vtt and _NOT_TRANSLATED.fullmatch(lines[row].strip()) and not is_times(row + 1):
            row = end_of_block(row)
            yield "".join(lines[begin:row])
            continue
        if not is_vtt and not lines[row].strip().isdecimal():
            raise error("the number of a subtitle")
        if not (is_vtt and is_times(row)):  # after a number or a name
            row += 1
        if not is_times(row):
            raise error(f"times such as {_EXAMPLES[suffix]}")
        row += 1
        yield "".join(lines[begin:row])
        begin, row = row, end_of_block(row)
        if begin < row:
            yield from _captions(lines[begin:row], is_vtt, begin + 1)


def _captions(lines: Sequence[str], escapes: bool, number: int) -> Iterator[str | Caption]:
    """Yield the lines of a subtitle as one caption, or as several if lines after the first begin with a dash."""
    starts = [row for row, line in enumerate(lines) if row == 0 or _DASH.match(line)]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        caption = Caption.of(lines[start:stop], escapes, number + start)
        has_words = any(map(str.isalpha, _PLACEHOLDER.sub("", caption.text)))
        yield caption if has_words else "".join(lines[start:stop])


def _with_placeholders(lines: Sequence[str], escapes: bool) -> tuple[list[str], dict[str, str]]:
    """Return lines as HTML with placeholders, `<x0>…</x0>` for a pair of tags and `<x0/>` for others, and the tags."""
    found = [tag for line in lines for tag in _TAG.findall(line)]
    placeholders = [f"<x{index}/>" for index in range(len(found))]
    for start, end in _pairs(found):
        placeholders[start], placeholders[end] = f"<x{start}>", f"</x{start}>"
    remaining = iter(placeholders)
    replaced = []
    for line in lines:
        texts = _TAG.split(line)
        if escapes:
            texts = [html.unescape(text) for text in texts]
        strings = [html.escape(texts[0], quote=False)]
        for text in texts[1:]:
            strings += [next(remaining), html.escape(text, quote=False)]
        replaced.append("".join(strings))
    return replaced, dict(zip(placeholders, found, strict=True))


def _pairs(tags: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the indices of the start and end tags of elements."""
    opened: list[tuple[str, int]] = []
    for index, tag in enumerate(tags):
        match = _ELEMENT.fullmatch(tag)
        if match is None:
            continue
        if not match[1]:
            opened.append((match[2], index))
        elif match[2] in (name for name, _ in opened):
            while opened[-1][0] != match[2]:
                opened.pop()
            yield opened.pop()[1], index


def _with_counterparts(before: str, words: str, after: str) -> tuple[str, str, str]:
    """Move tags around words whose counterparts are between words to these."""
    tags = [*_TAG.finditer(before + words + after)]
    start, end = len(before), len(before + words)
    for first, last in _pairs([tag[0] for tag in tags]):
        opening, closing = tags[first].start(), tags[last].end()
        if opening < len(before) < closing <= len(before + words):
            start = min(start, opening)
        elif len(before) <= opening < len(before + words) < closing:
            end = max(end, closing)
    line = before + words + after
    return line[:start], line[start:end], line[end:]


def _cut(text: str, words: Sequence[str]) -> list[str]:
    """Split a text at spaces into as many lines as `words`, in their proportions; the last lines may be empty."""

    def size(string: str) -> int:
        return len(_PLACEHOLDER.sub("", string))

    total, length = size(" ".join(words)), size(text)
    lines, begin, end_of_words = [], 0, -1
    for row, line_words in enumerate(words):
        end_of_words += 1 + size(line_words)
        target = end_of_words / total * length
        spaces = [i for i in range(begin + 1, len(text)) if text[i] == " "]
        last = row == len(words) - 1 or not spaces
        cut = len(text) if last else min(spaces, key=lambda i: abs(size(text[:i]) - target))
        lines.append(text[begin:cut])
        begin = min(cut + 1, len(text))
    return lines
