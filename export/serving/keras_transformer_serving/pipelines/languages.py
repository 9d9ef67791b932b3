"""The languages of translation models: options of texts, and their errors."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer_serving.tasks import Tensor, shown

SOURCE, TARGET = "source_language", "target_language"
NAMES = (SOURCE, TARGET)
_MOST_LISTED = 60
_PAIR = re.compile(r"(?:\A|[-_.])([a-z]{2,3})-([a-z]{2,3})\Z")  # in names such as opus-mt-es-en
_ENGLISH = """
af afr Afrikaans, ar arb Arabic, az azj Azerbaijani, be bel Belarusian, bg bul Bulgarian, bn ben Bengali, bs bos
Bosnian, ca cat Catalan, cs ces Czech, cy cym Welsh, da dan Danish, de deu German, el ell Greek, en eng English, eo
epo Esperanto, es spa Spanish, et est Estonian, eu eus Basque, fa pes Persian, fi fin Finnish, fr fra French, ga gle
Irish, gl glg Galician, gu guj Gujarati, he heb Hebrew, hi hin Hindi, hr hrv Croatian, hu hun Hungarian, hy hye
Armenian, id ind Indonesian, is isl Icelandic, it ita Italian, ja jpn Japanese, ka kat Georgian, kk kaz Kazakh, km khm
Khmer, kn kan Kannada, ko kor Korean, lt lit Lithuanian, lv lvs Latvian, mk mkd Macedonian, ml mal Malayalam, mn khk
Mongolian, mr mar Marathi, ms zsm Malay, my mya Burmese, nb nob Norwegian, ne npi Nepali, nl nld Dutch, pl pol Polish,
pt por Portuguese, ro ron Romanian, ru rus Russian, sk slk Slovak, sl slv Slovenian, sq als Albanian, sr srp Serbian,
sv swe Swedish, sw swh Swahili, ta tam Tamil, te tel Telugu, th tha Thai, tl tgl Tagalog, tr tur Turkish, uk ukr
Ukrainian, ur urd Urdu, uz uzn Uzbek, vi vie Vietnamese, xh xho Xhosa, zh zho Chinese, zu zul Zulu
"""  # with codes of two letters, and those of NLLB-200 with three
_NAMES = {
    code: name
    for *codes, name in (entry.strip().split(maxsplit=2) for entry in _ENGLISH.split(","))
    for code in codes
}


def name_of(code: str) -> str:
    """Return the English name of a language; its code if the name is not known."""
    return _NAMES.get(code, code)


def pair_of(name: str) -> tuple[str, str] | None:
    """Return the codes of the languages in the name of a translation model, such as "es-en"; None if it has none."""
    pair = _PAIR.search(name)
    return (pair[1], pair[2]) if pair else None


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


def of_each(
    count: int, is_known: bool, rows: str = "texts", choices: str = "languages", **options: Any
) -> dict[str, list[str]]:
    """Return the languages of each of `count` texts, by option; options that are None are left out.

    Args:
        count: the number of texts.
        is_known: whether the model has languages.
        rows: a noun for texts.
        choices: a noun for languages, or other values of options.
        **options: for each option a language, or one for each text.
    """
    of_rows = {name: value for name, value in options.items() if value is not None}
    for name, value in of_rows.items():
        if not is_known:
            raise ValueError(
                f"`{name}` must be None, as the model has no {choices}. Received: {name}={shown(value)}"
            )
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        of_rows[name] = values = list(value) if is_list else [value] * count
        if not all(isinstance(language, str) for language in (values if is_list else [value])):
            raise TypeError(
                f"`{name}` must be a string, or one for each {rows.removesuffix('s')}. Received: {name}={shown(value)}"
            )
        if len(values) != count:
            raise ValueError(
                f"`{name}` must be one string, or one for each of {count} {rows}. Received: {len(values)} strings"
            )
    return of_rows
