"""Documents with their summaries: files of one document, and the columns of public datasets."""

import json
import re
from collections.abc import Iterator
from typing import Any

from keras_transformer_options.records import Record

SUMMARY_COLUMNS = (
    ("article", "highlights"),  # CNN/DailyMail
    ("report", "summary"),  # GovReport
    ("document", "summary"),  # XSum, Multi-News
    ("text", "summary"),  # BillSum
    ("dialogue", "summary"),  # SAMSum
    ("article", "abstract"),  # PubMed, arXiv
    ("input", "output"),  # SCROLLS
)
"""The names of the columns of documents and summaries in public datasets."""


def story_records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Read a file of CNN/DailyMail: an article, then the line `@highlight` before each sentence of its summary.

    The sentences of the summary are separated by line ends.
    """
    for line, text, error in _texts(lines):
        article, *highlights = (
            " ".join(part.split()) for part in re.split(r"^@highlight[ \t\r]*$", text, flags=re.MULTILINE)
        )
        error = error or ("" if highlights else "no line @highlight")
        fields: dict[str, object] = {"article": article, "highlights": "\n".join(highlights)}
        yield Record(1, line, {} if error else fields, error)


def report_records(lines: Iterator[bytes]) -> Iterator[Record]:
    """Read a file of GovReport: a JSON object with the sections of a report, and of its summary or highlights."""
    for line, text, error in _texts(lines):
        value: Any = None
        if not error:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as invalid:
                error = f"invalid JSON ({invalid})"
        names = [
            next((name for name in candidates if isinstance(value, dict) and name in value), None)
            for candidates in (("report", "reports"), ("summary", "highlight"))
        ]
        if not error and None in names:
            error = "not a JSON object with a report and a summary"
        fields: dict[str, object] = {}
        if not error:
            report, summary = (" ".join(" ".join(_paragraphs(value[name])).split()) for name in names)
            fields = {"report": report, "summary": summary}
        yield Record(1, line, fields, error)


def _texts(lines: Iterator[bytes]) -> Iterator[tuple[bytes, str, str]]:
    """Yield the content of a file that is not empty, as bytes, as text, and the reason why it is not UTF-8 or ""."""
    content = b"".join(lines)
    try:
        text, error = content.decode(), ""
    except UnicodeDecodeError:
        text, error = "", "not UTF-8"
    if text.strip() or error:
        yield content, text, error


def _paragraphs(section: Any) -> Iterator[str]:
    """Yield the titles and paragraphs of a section and its subsections, or of a list of them."""
    if isinstance(section, str):
        yield section
    elif isinstance(section, list):
        for each in section:
            yield from _paragraphs(each)
    elif isinstance(section, dict):
        for name in ("section_title", "paragraphs", "subsections"):
            yield from _paragraphs(section.get(name))
