"""English morphology: plurals, articles, verb forms, numbers and ordinals in words."""

from keras_transformer.datasets.phrasebook.spanish import EL, YO

_PLURALS = {
    "knife": "knives",
    "mouse": "mice",
    "child": "children",
    "person": "people",
    "foot": "feet",
    "tomato": "tomatoes",
    "potato": "potatoes",
}
_THIRD_PERSONS = {"have": "has", "be": "is", "can": "can"}
_PASTS = {
    "be": "was",
    "break": "broke",
    "buy": "bought",
    "can": "could",
    "drink": "drank",
    "eat": "ate",
    "find": "found",
    "go": "went",
    "have": "had",
    "lose": "lost",
    "make": "made",
    "read": "read",
    "run": "ran",
    "see": "saw",
    "sell": "sold",
    "sing": "sang",
    "sleep": "slept",
    "swim": "swam",
    "write": "wrote",
}
_DOUBLED = ("run", "swim")
_COMPARATIVES = {
    "big": "bigger",
    "small": "smaller",
    "new": "newer",
    "old": "older",
    "young": "younger",
    "tall": "taller",
    "short": "shorter",
    "cheap": "cheaper",
    "pretty": "prettier",
    "fast": "faster",
    "slow": "slower",
    "strong": "stronger",
    "quiet": "quieter",
    "clean": "cleaner",
    "heavy": "heavier",
    "kind": "kinder",
    "nice": "nicer",
    "ugly": "uglier",
}
_UNITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
_TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth"}
_ORDINALS |= {"nine": "ninth", "twelve": "twelfth"}


def plural(noun: str) -> str:
    """Plural of a noun, of the last word in a compound: `box` boxes, `knife` knives, `city` cities."""
    if noun in _PLURALS:
        return _PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def with_article(phrase: str) -> str:
    """The phrase after a or an, by its first sound."""
    vowel = phrase[0] in "aeiouAEIOU" and not phrase.startswith(("uni", "use", "eu"))
    return f"{'an' if vowel else 'a'} {phrase}"


def possessive(owner: str) -> str:
    """The genitive: `Ana's`, `my boss's`, `my parents'`."""
    return owner + ("'" if owner.endswith("s") and not owner.endswith("ss") else "'s")


def _inflected(verb: str, form: str) -> str:
    """The verb with its first word replaced, so that `look for` gives `looks for`."""
    _, space, particle = verb.partition(" ")
    return form + space + particle


def third_person(verb: str) -> str:
    """Third person singular, present: `buys`, `washes`, `studies`."""
    base = verb.split()[0]
    if base in _THIRD_PERSONS:
        form = _THIRD_PERSONS[base]
    elif base.endswith(("s", "x", "ch", "sh", "o")):
        form = base + "es"
    elif base.endswith("y") and base[-2] not in "aeiou":
        form = base[:-1] + "ies"
    else:
        form = base + "s"
    return _inflected(verb, form)


def present(verb: str, person: int) -> str:
    """Simple present for a person."""
    return third_person(verb) if person == EL else verb


def past(verb: str) -> str:
    """Simple past: `bought`, `cleaned`, `studied`."""
    base = verb.split()[0]
    if base in _PASTS:
        form = _PASTS[base]
    elif base.endswith("e"):
        form = base + "d"
    elif base.endswith("y") and base[-2] not in "aeiou":
        form = base[:-1] + "ied"
    else:
        form = base + "ed"
    return _inflected(verb, form)


def participle(verb: str) -> str:
    """Present participle: `buying`, `writing`, `swimming`."""
    base = verb.split()[0]
    if base in _DOUBLED:
        form = base + base[-1] + "ing"
    elif base.endswith("e") and not base.endswith("ee"):
        form = base[:-1] + "ing"
    else:
        form = base + "ing"
    return _inflected(verb, form)


def to_be(person: int) -> str:
    """Present of to be: am, is or are."""
    return "am" if person == YO else "is" if person == EL else "are"


def to_do(person: int) -> str:
    """Present auxiliary: do or does."""
    return "does" if person == EL else "do"


def comparative(adjective: str) -> str:
    """Comparative: `bigger`, `more expensive`."""
    return _COMPARATIVES.get(adjective, f"more {adjective}")


def number(value: int) -> str:
    """A number from 0 to 100 in words: `twenty-one`."""
    if value == 100:
        return "one hundred"
    if value < 20:
        return _UNITS[value]
    return _TENS[value // 10] + (f"-{_UNITS[value % 10]}" if value % 10 else "")


def ordinal(value: int) -> str:
    """An ordinal from 1 to 99 in words: `twenty-first`."""
    head, hyphen, last = number(value).rpartition("-")
    if last in _ORDINALS:
        last = _ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return head + hyphen + last
