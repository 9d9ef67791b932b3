"""Spanish morphology: gender, number, articles, conjugation, numbers in words."""

YO, TU, EL, NOSOTROS, ELLOS = range(5)

_UNACCENTED = str.maketrans("áéíóú", "aeiou")
_PLURALS = {"joven": "jóvenes", "paraguas": "paraguas", "gris": "grises"}
_STRESSED_A = ("agua", "hambre")

_PRESENT = {
    "ser": "soy eres es somos son",
    "estar": "estoy estás está estamos están",
    "ir": "voy vas va vamos van",
    "tener": "tengo tienes tiene tenemos tienen",
    "venir": "vengo vienes viene venimos vienen",
    "decir": "digo dices dice decimos dicen",
    "haber": "he has ha hemos han",
}
_FIRST_PERSON = {"hacer": "hago", "ver": "veo", "salir": "salgo", "conocer": "conozco", "saber": "sé"}
_STEM_CHANGES = {
    "querer": ("e", "ie"),
    "preferir": ("e", "ie"),
    "empezar": ("e", "ie"),
    "cerrar": ("e", "ie"),
    "perder": ("e", "ie"),
    "poder": ("o", "ue"),
    "encontrar": ("o", "ue"),
    "dormir": ("o", "ue"),
    "costar": ("o", "ue"),
    "doler": ("o", "ue"),
    "llover": ("o", "ue"),
    "jugar": ("u", "ue"),
    "pedir": ("e", "i"),
}
_PRESENT_ENDINGS = {
    "ar": ("o", "as", "a", "amos", "an"),
    "er": ("o", "es", "e", "emos", "en"),
    "ir": ("o", "es", "e", "imos", "en"),
}
_PRETERITE = {
    "ser": "fui fuiste fue fuimos fueron",
    "ir": "fui fuiste fue fuimos fueron",
    "ver": "vi viste vio vimos vieron",
    "hacer": "hice hiciste hizo hicimos hicieron",
    "leer": "leí leíste leyó leímos leyeron",
    "dormir": "dormí dormiste durmió dormimos durmieron",
    "pedir": "pedí pediste pidió pedimos pidieron",
    "preferir": "preferí preferiste prefirió preferimos prefirieron",
    "decir": "dije dijiste dijo dijimos dijeron",
}
_STRONG_STEMS = {
    "tener": "tuv",
    "estar": "estuv",
    "poder": "pud",
    "querer": "quis",
    "venir": "vin",
    "saber": "sup",
}
_STRONG_ENDINGS = ("e", "iste", "o", "imos", "ieron")
_PRETERITE_ENDINGS = {
    "ar": ("é", "aste", "ó", "amos", "aron"),
    "er": ("í", "iste", "ió", "imos", "ieron"),
    "ir": ("í", "iste", "ió", "imos", "ieron"),
}
_SPELLING_BEFORE_E = {"c": "qu", "g": "gu", "z": "c"}
_GERUNDS = {"leer": "leyendo", "dormir": "durmiendo", "pedir": "pidiendo", "ir": "yendo", "venir": "viniendo"}

_UNITS = (
    "cero",
    "uno",
    "dos",
    "tres",
    "cuatro",
    "cinco",
    "seis",
    "siete",
    "ocho",
    "nueve",
    "diez",
    "once",
    "doce",
    "trece",
    "catorce",
    "quince",
    "dieciséis",
    "diecisiete",
    "dieciocho",
    "diecinueve",
    "veinte",
    "veintiuno",
    "veintidós",
    "veintitrés",
    "veinticuatro",
    "veinticinco",
    "veintiséis",
    "veintisiete",
    "veintiocho",
    "veintinueve",
)
_TENS = {3: "treinta", 4: "cuarenta", 5: "cincuenta", 6: "sesenta", 7: "setenta", 8: "ochenta", 9: "noventa"}


def plural(word: str) -> str:
    """Plural of a noun or adjective: `luz` luces, `jardín` jardines, `lunes` lunes."""
    if word in _PLURALS:
        return _PLURALS[word]
    if word[-1] in "aeiouáéóú":
        return word + "s"
    if word.endswith("z"):
        return word[:-1] + "ces"
    if word[-2] in "áéíóú":
        return word[:-2] + word[-2:].translate(_UNACCENTED) + "es"
    if word.endswith("s"):
        return word
    return word + "es"


def feminine(adjective: str) -> str:
    """Feminine of an adjective: `rojo` roja, `inglés` inglesa, `verde` verde."""
    if adjective.endswith("o"):
        return adjective[:-1] + "a"
    if adjective.endswith(("és", "án", "ol", "or")):
        return adjective[:-2] + adjective[-2:].translate(_UNACCENTED) + "a"
    return adjective


def agree(adjective: str, gender: str, many: bool = False) -> str:
    """The adjective in the gender ("m", "f") and number of its noun."""
    word = feminine(adjective) if gender == "f" else adjective
    return plural(word) if many else word


def definite_article(noun: str, gender: str, many: bool = False) -> str:
    """The article el, la, los or las; el before a feminine with a stressed a (`el agua`)."""
    if many:
        return "las" if gender == "f" else "los"
    return "la" if gender == "f" and noun not in _STRESSED_A else "el"


def indefinite_article(noun: str, gender: str) -> str:
    """The article un or una; un before a feminine with a stressed a."""
    return "una" if gender == "f" and noun not in _STRESSED_A else "un"


def after_a(phrase: str) -> str:
    """The phrase after the preposition a, contracted: `al museo`, `a la playa`."""
    return "al " + phrase[3:] if phrase.startswith("el ") else "a " + phrase


def after_de(phrase: str) -> str:
    """The phrase after the preposition de, contracted: `del museo`, `de la playa`."""
    return "del " + phrase[3:] if phrase.startswith("el ") else "de " + phrase


def after_y(phrase: str) -> str:
    """The phrase after the conjunction y, which is `e` before the sound i: `y francés`, `e inglés`."""
    starts_with_i = phrase.startswith(("i", "í", "hi")) and not phrase.startswith(("hie", "hia"))
    return ("e " if starts_with_i else "y ") + phrase


def present(infinitive: str, person: int) -> str:
    """Present indicative; `person` is one of YO, TU, EL, NOSOTROS, ELLOS."""
    if infinitive in _PRESENT:
        return _PRESENT[infinitive].split()[person]
    if person == YO and infinitive in _FIRST_PERSON:
        return _FIRST_PERSON[infinitive]
    stem = infinitive[:-2]
    if person != NOSOTROS and infinitive in _STEM_CHANGES:
        vowel, stressed = _STEM_CHANGES[infinitive]
        head, _, tail = stem.rpartition(vowel)
        stem = head + stressed + tail
    return stem + _PRESENT_ENDINGS[infinitive[-2:]][person]


def preterite(infinitive: str, person: int) -> str:
    """Preterite; `person` is one of YO, TU, EL, NOSOTROS, ELLOS."""
    if infinitive in _PRETERITE:
        return _PRETERITE[infinitive].split()[person]
    if infinitive in _STRONG_STEMS:
        return _STRONG_STEMS[infinitive] + _STRONG_ENDINGS[person]
    stem = infinitive[:-2]
    if person == YO and infinitive.endswith("ar") and stem[-1] in _SPELLING_BEFORE_E:
        stem = stem[:-1] + _SPELLING_BEFORE_E[stem[-1]]
    return stem + _PRETERITE_ENDINGS[infinitive[-2:]][person]


def gerund(infinitive: str) -> str:
    """Gerund: `comprando`, `comiendo`, `leyendo`."""
    if infinitive in _GERUNDS:
        return _GERUNDS[infinitive]
    return infinitive[:-2] + ("ando" if infinitive.endswith("ar") else "iendo")


def number(value: int, gender: str = "") -> str:
    """A number from 0 to 100 in words; with a gender, as before a noun: `veintiún`, `veintiuna`."""
    if value == 100:
        return "cien"
    unit = f" y {_UNITS[value % 10]}" if value % 10 else ""
    word = _UNITS[value] if value < 30 else _TENS[value // 10] + unit
    if not gender or not word.endswith("uno"):
        return word
    if gender == "f":
        return word[:-1] + "a"
    return "veintiún" if value == 21 else word[:-1]
