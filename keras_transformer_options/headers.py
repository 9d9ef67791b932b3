"""Recognition of a header, a first row that names the columns of a table."""

import re
import statistics
import unicodedata
from collections.abc import Sequence

_NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?\s*")
# Words of usual names, in English, Spanish, German, French, Italian and Portuguese; languages, and their codes.
_NAME = re.compile(
    r"(id|idx|index|(text|sentence|question|frage|pregunta|col|column|columna)[\dab]?|review|tweet|comment|title|body|document"
    r"|content|label|class|category|sentiment|score|rating|star|tag|source|target|src|tgt|input|output|prompt|completion"
    r"|response|premise|hypothesis|context|answer|original|translation|language|lang"
    r"|traducci[oó]n|tradu[cç][aã]o|traduction|traduzione|[uü]bersetzung|idioma|sprache|langue|lingua"
    r"|texto|opini[oó]n|rese[nñ]a|frase|comentario|t[ií]tulo|etiqueta|clase|categor[ií]a|sentimiento|origen|destino"
    r"|respuesta|bewertung|satz|kommentar|titel|klasse|kategorie|stimmung|antwort|quelle|ziel"
    r"|texte|avis|commentaire|titre|[eé]tiquette|classe|cat[eé]gorie|r[eé]ponse|testo|recensione|etichetta|categoria"
    r"|risposta|opini[aã]o|r[oó]tulo|resposta"
    r"|english|german|french|spanish|italian|portuguese|catalan|dutch|ingl[eé]s|alem[aá]n|franc[eé]s|espa[nñ]ol"
    r"|castellano|italiano|portugu[eê]s|catal[aá]n?|englisch|deutsch|franz[oö]sisch|spanisch|italienisch|portugiesisch"
    r"|anglais|allemand|fran[cç]ais|espagnol|italien|portugais|inglese|tedesco|francese|spagnolo|portoghese"
    r"|ingl[eê]s|alem[aã]o|espanhol)(e?s)?|en|de|es|fr|it|pt|ca|nl",
    re.IGNORECASE,
)
_JOINING = frozenset(["1", "2", "a", "b", "in", "of", "en", "de", "auf"])
_MAX_NAME_WORDS, _MAX_WORDS, _MAX_LENGTH = 3, 5, 40
_MIN_ROWS, _MIN_REPEATS = 5, 3


def is_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row of a table is its header rather than an example.

    It is if its fields are all different, none is a number, and

    - each is a usual name, such as "text", "Etiqueta" or "frase en inglés"; or
    - a column has numbers in all other rows; or
    - each is a few words without punctuation, a column has labels that recur three times or more on average, unlike
      this field, and another column has texts that mostly differ, with a median length above that of this field.

    Args:
        first: the first row.
        rest: the next rows, with the same number of columns.
    """
    names = [unicodedata.normalize("NFC", field).strip().casefold() for field in first]
    if len(set(names)) < len(names) or any(not name or _NUMBER.fullmatch(name) for name in names):
        return False
    if all(map(_is_usual, names)):
        return True
    columns = [[row[column].strip() for row in rest] for column in range(len(first))]
    if len(rest) > 1 and any(all(map(_NUMBER.fullmatch, column)) for column in columns):
        return True
    if len(rest) < _MIN_ROWS or not all(map(_is_short, names)):
        return False
    unknown = list(map(_is_unknown_label, names, columns))
    shorter = list(map(_is_shorter_than_texts, names, columns))
    return any(unknown[c] and any(shorter[:c] + shorter[c + 1 :]) for c in range(len(names)))


def _is_usual(name: str) -> bool:
    """Return whether a field is at most three words of usual names."""
    words = re.findall(r"[^\W_]+", name)
    known = {word for word in words if _NAME.fullmatch(word)}
    return _is_short(name) and len(words) <= _MAX_NAME_WORDS and bool(known) and known | _JOINING >= {*words}


def _is_short(name: str) -> bool:
    """Return whether a field looks like a name: a few words without the punctuation of sentences."""
    return len(name) <= _MAX_LENGTH and len(name.split()) <= _MAX_WORDS and not re.search(r"[.!?¡¿;,]", name)


def _is_unknown_label(name: str, column: Sequence[str]) -> bool:
    """Return whether a column has recurring labels, of which `name` is none."""
    labels = {label.casefold() for label in column}
    return name not in labels and _MIN_REPEATS * len(labels) <= len(column)


def _is_shorter_than_texts(name: str, column: Sequence[str]) -> bool:
    """Return whether a column has texts that mostly differ, with a median length above that of `name`."""
    return 2 * len(set(column)) > len(column) and len(name) < statistics.median(map(len, column))
