"""The languages of translation models: options of texts, and their errors."""

from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer_serving.tasks import Tensor, shown

SOURCE, TARGET = "source_language", "target_language"
NAMES = (SOURCE, TARGET)
_MOST_LISTED = 60


def options(config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Return the options of each text for the settings of an export: its language, and that of its output."""
    languages = tuple(config.get("languages", ()))
    if not languages:
        return ()
    return tuple(Tensor(name, "string", default=config.get(name) or "", choices=languages) for name in NAMES)


def expectation(name: str, languages: Iterable[str]) -> str:
    """Return the beginning of the error for a language that is none of the model's, to which it is appended."""
    languages = list(languages)
    first = languages if len(languages) <= _MOST_LISTED else languages[: _MOST_LISTED // 2]
    more = "" if len(first) == len(languages) else f", … ({len(languages)} languages)"
    return f"`{name}` must be one of {', '.join(first)}{more}. Received: "


def of_each(count: int, has_languages: bool, **languages: Any) -> dict[str, list[str]]:
    """Return the languages of each of `count` texts, by option; options that are None are left out.

    Args:
        count: the number of texts.
        has_languages: whether the model has languages.
        **languages: for each option a language, or one for each text.

    Raises:
        TypeError: if an option is of another type.
        ValueError: if the model has no languages, or there are not as many as texts.
    """
    chosen = {name: value for name, value in languages.items() if value is not None}
    for name, value in chosen.items():
        if not has_languages:
            raise ValueError(
                f"`{name}` must be None, as the model has no languages. Received: {name}={shown(value)}"
            )
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        chosen[name] = values = list(value) if is_list else [value] * count
        if not all(isinstance(language, str) for language in (values if is_list else [value])):
            raise TypeError(
                f"`{name}` must be a string, or one for each text. Received: {name}={shown(value)}"
            )
        if len(values) != count:
            raise ValueError(
                f"`{name}` must be one string, or one for each of {count} texts. Received: {len(values)} strings"
            )
    return chosen
