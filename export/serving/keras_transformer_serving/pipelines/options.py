"""The options of the texts of a call: one value, or one for each text."""

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines.errors import RowErrors, as_list, check_string
from keras_transformer_serving.row_options import RowOptions
from keras_transformer_serving.tasks import Tensor, shown
from keras_transformer_serving.text import glossary, markup
from keras_transformer_serving.text.glossary import Glossary
from keras_transformer_serving.text.markup import Placeholders


class Options(RowOptions, total=False):
    """The options of texts that are generated from, with those of `RowOptions`.

    Attributes:
        prefixes: for an encoder–decoder, the beginning of the output, "" for none. The model continues it. If a text
            is split, it is that of the first part.
        source_language: for a model of many languages, the language of the text; by default the pipeline's setting.
        target_language: the language of the output, likewise.
    """

    prefixes: str | Iterable[str] | None
    source_language: str | Iterable[str] | None
    target_language: str | Iterable[str] | None


class TextOptions(Options, total=False):
    """The options of texts whose outputs are texts, and those of `Options`.

    Attributes:
        long_texts: for an encoder–decoder, "refuse" to raise an error for texts of more than `max_source_tokens`
            tokens, or "split" to split them into lines and sentences, whose outputs are joined; by default the
            pipeline's setting.
        tag_handling: for an encoder–decoder, "html" to keep HTML and XML tags and placeholders, or "placeholders" to
            keep placeholders such as `{name}` and `%s` only. They are put around or beside the words that translate
            theirs.
        placeholders: the kinds of placeholders that are kept: of "jinja", "icu", "python", "rails", "variables",
            "printf" and "url", by default all of them, "colon" and "at", and patterns of `re.compile`. With them,
            `tag_handling` is by default "placeholders".
        glossary: for an encoder–decoder, a mapping of at most 1,000 terms to their translations, or one for each text.
            Those whose term is in a text are in its output, in place of the words that translate the term.
        glossary_mode: "hard", or "soft" to keep other words if the model finds the translation of a term too
            improbable.
    """

    long_texts: str | None
    tag_handling: str | None
    placeholders: Any
    glossary: Any
    glossary_mode: str


def numbers_of(declared: Tensor, values: Any, count: int) -> list[Any]:
    """Return a number for each of `count` texts."""
    name, is_real = declared.name, declared.dtype == "float32"
    kind = numbers.Real if is_real else numbers.Integral
    values = values.item() if isinstance(values, np.ndarray) and values.ndim == 0 else values
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    listed = list(values) if is_list else [values]
    if not all(isinstance(value, kind) and not isinstance(value, bool) for value in listed):
        raise TypeError(
            f"`{name}` must be {'a number' if is_real else 'an integer'}, or one for each text. "
            f"Received: {name}={shown(values)}"
        )
    if not is_list:
        listed *= count
    if len(listed) != count:
        raise ValueError(
            f"`{name}` must be one number, or one for each of {count} texts. Received: {len(listed)} numbers"
        )
    return [float(value) if is_real else int(value) for value in listed]


def texts_of(name: str, texts: Any, count: int, errors: RowErrors) -> list[Any]:
    """Return a text for each of `count` texts."""
    listed = as_list(name, texts)
    if len(listed) != count:
        raise ValueError(
            f"`{name}` must have one item for each of {count} texts. Received: {len(listed)} items"
        )
    for index, text in enumerate(listed):
        with errors.catching(index):
            check_string(name, index, text)
    return listed


def tags_of(
    tag_handling: str | None, placeholders: Placeholders | None
) -> tuple[str | None, Placeholders | None]:
    """Return `tag_handling`, by default "placeholders" if there are kinds of placeholders, and these as a tuple."""
    if placeholders is None:
        return tag_handling, None
    markup.patterns_of(placeholders)
    return tag_handling or "placeholders", (*placeholders,)


def glossaries_of(count: int, entries: Any, mode: str) -> list[Glossary | None]:
    """Return the glossary of each of `count` texts, for a mapping, one for each text, or None."""
    glossary.check_mode(mode)
    if entries is None or isinstance(entries, Mapping | str) or not isinstance(entries, Iterable):
        return [None if entries is None else Glossary(entries, mode)] * count
    glossaries = [None if each is None else Glossary(each, mode) for each in entries]
    if len(glossaries) != count:
        raise ValueError(
            f"`glossary` must be a mapping, or one for each of {count} texts. Received: {len(glossaries)} items"
        )
    return glossaries
