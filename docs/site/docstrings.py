"""An extension of Griffe that reads the sections of this package's docstrings as Markdown."""

import re
from typing import Any

import griffe

# Sections that Griffe does not know: lists of `name: description`, and texts.
_LISTS = ("Call arguments", "Shapes")
_TEXTS = ("References",)
_SECTION = re.compile(rf"^({'|'.join(_LISTS + _TEXTS)}):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
_ITEM = re.compile(r"^([*\w.]+(?:, [*\w.]+)*): ", re.MULTILINE)


def sections(docstring: str) -> str:
    """Write the sections that Griffe does not know as Markdown, and call the section of examples as Griffe does."""
    docstring = re.sub(r"^Example:$", "Examples:", docstring, flags=re.MULTILINE)
    return _SECTION.sub(_section, docstring + "\n").rstrip("\n")


def _section(match: re.Match[str]) -> str:
    title, content = match[1], re.sub(r"^    ", "", match[2], flags=re.MULTILINE).strip("\n")
    if title in _LISTS:
        content = _ITEM.sub(lambda item: f"- `{item[1]}`: ", content)
    return f'<p class="doc-section-title">{title}:</p>\n\n{content}\n\n'


class Sections(griffe.Extension):
    """Apply `sections` to every docstring."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Rewrite the docstring of an object that Griffe has read."""
        if obj.docstring:
            obj.docstring.value = sections(obj.docstring.value)
