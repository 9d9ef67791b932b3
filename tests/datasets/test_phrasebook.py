import hashlib
import os
import re
import subprocess
import sys
import time
import unicodedata
from collections import Counter

import pytest

from keras_transformer.datasets import phrasebook
from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.split import words

DIGEST = """
import hashlib
from keras_transformer.datasets import phrasebook
print(hashlib.sha256(repr(phrasebook.load_data(seed=3)).encode()).hexdigest())
"""

# Written by hand, apart from the generator's tables: yo, tú, él, nosotros, ellos.
PRESENT = {
    "ser": "soy eres es somos son",
    "tener": "tengo tienes tiene tenemos tienen",
    "ir": "voy vas va vamos van",
    "querer": "quiero quieres quiere queremos quieren",
    "poder": "puedo puedes puede podemos pueden",
    "hacer": "hago haces hace hacemos hacen",
    "venir": "vengo vienes viene venimos vienen",
    "decir": "digo dices dice decimos dicen",
    "ver": "veo ves ve vemos ven",
    "preferir": "prefiero prefieres prefiere preferimos prefieren",
    "jugar": "juego juegas juega jugamos juegan",
    "empezar": "empiezo empiezas empieza empezamos empiezan",
    "cerrar": "cierro cierras cierra cerramos cierran",
    "perder": "pierdo pierdes pierde perdemos pierden",
    "pedir": "pido pides pide pedimos piden",
    "vivir": "vivo vives vive vivimos viven",
    "comer": "como comes come comemos comen",
    "hablar": "hablo hablas habla hablamos hablan",
    "salir": "salgo sales sale salimos salen",
    "doler": "duelo dueles duele dolemos duelen",
    "costar": "cuesto cuestas cuesta costamos cuestan",
}
PRETERITE = {
    "ir": "fui fuiste fue fuimos fueron",
    "ver": "vi viste vio vimos vieron",
    "hacer": "hice hiciste hizo hicimos hicieron",
    "leer": "leí leíste leyó leímos leyeron",
    "tocar": "toqué tocaste tocó tocamos tocaron",
    "jugar": "jugué jugaste jugó jugamos jugaron",
    "empezar": "empecé empezaste empezó empezamos empezaron",
    "perder": "perdí perdiste perdió perdimos perdieron",
    "comprar": "compré compraste compró compramos compraron",
    "escribir": "escribí escribiste escribió escribimos escribieron",
    "tener": "tuve tuviste tuvo tuvimos tuvieron",
}
SPANISH_NUMBERS = {
    16: "dieciséis",
    21: "veintiuno",
    22: "veintidós",
    23: "veintitrés",
    26: "veintiséis",
    30: "treinta",
    31: "treinta y uno",
    45: "cuarenta y cinco",
    60: "sesenta",
    100: "cien",
}
SPANISH_PLURALS = {
    "lápiz": "lápices",
    "jardín": "jardines",
    "habitación": "habitaciones",
    "autobús": "autobuses",
    "reloj": "relojes",
    "café": "cafés",
    "lunes": "lunes",
    "paraguas": "paraguas",
    "inglés": "ingleses",
    "marrón": "marrones",
    "gris": "grises",
    "joven": "jóvenes",
    "universidad": "universidades",
}
ENGLISH_PLURALS = {
    "knife": "knives",
    "mouse": "mice",
    "church": "churches",
    "box": "boxes",
    "city": "cities",
    "key": "keys",
    "potato": "potatoes",
    "traffic light": "traffic lights",
    "person": "people",
    "bus": "buses",
}
# Nouns whose ending does not tell the gender, with those whose ending does.
GENDERS = {
    "m": "libro coche reloj teléfono paraguas lápiz vestido abrigo sombrero zapato bolso museo hotel tren "
    "avión restaurante parque hospital aeropuerto puente perro ratón té café pan arroz tenedor padre",
    "f": "camisa mesa taza llave carta estación universidad habitación noche clase calle cabeza mano leche carne "
    "iglesia playa plaza farmacia botella sopa mochila cerveza",
}
GOLDEN = (
    ("clock", "Son las tres y cuarto.", "It is a quarter past three."),
    ("clock", "Es la una y media.", "It is half past one."),
    ("clock", "Son las ocho menos cinco de la mañana.", "It is five to eight in the morning."),
    ("ages", "Mi hermano tiene treinta y dos años.", "My brother is thirty-two years old."),
    ("counts", "Hay veintiuna sillas en la oficina.", "There are twenty-one chairs in the office."),
    ("counts", "Hay treinta y un libros en el hotel.", "There are thirty-one books in the hotel."),
    ("prices", "El libro cuesta doce euros con cincuenta.", "The book costs twelve euros and fifty cents."),
    ("food", "El agua está demasiado fría.", "The water is too cold."),
    ("likes", "Me gustan las manzanas.", "I like apples."),
    ("likes", "A Ana no le gusta el café.", "Ana does not like coffee."),
    ("past", "Ayer compramos pan.", "Yesterday we bought bread."),
    ("plans", "Mañana voy a comprar un libro.", "Tomorrow I am going to buy a book."),
    ("contacts", "Los domingos visito a mi abuela.", "On Sundays I visit my grandmother."),
    ("calendar", "Hoy es lunes, tres de mayo.", "Today is Monday, May third."),
    ("relations", "El banco está al lado del museo.", "The bank is next to the museum."),
    ("professions", "Mi tía es médica.", "My aunt is a doctor."),
    ("pains", "A mi hermana le duelen los pies.", "My sister's feet hurt."),
    ("purchases", "Me gusta esta camisa y la voy a comprar.", "I like this shirt and I am going to buy it."),
    (
        "requests",
        "¿Puedes traerme otra taza de té, por favor?",
        "Can you bring me another cup of tea, please?",
    ),
)


@pytest.fixture(scope="module")
def splits():
    return phrasebook.load_data()


@pytest.fixture(scope="module")
def pairs(splits):
    return [pair for split in splits for pair in split]


def test_sizes(splits):
    train, validation, test = splits
    assert (len(validation), len(test)) == (1000, 1500)
    assert 22_000 <= len(train) + len(validation) + len(test) <= 26_000


def test_is_quick():
    start = time.perf_counter()
    phrasebook.load_data(seed=1)
    assert time.perf_counter() - start < 5


def test_same_seed_same_data_in_another_process():
    digest = hashlib.sha256(repr(phrasebook.load_data(seed=3)).encode()).hexdigest()
    run = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == digest


def test_another_seed_gives_other_data(splits):
    train, _, test = phrasebook.load_data(seed=1)
    assert set(test) != set(splits[2])
    assert set(train) != set(splits[0])


def test_one_translation_each_way_over_all_combinations():
    to_english: dict[str, str] = {}
    to_spanish: dict[str, str] = {}
    for family in phrasebook.FAMILIES:
        for es, en in family.everything():
            assert to_english.setdefault(es, en) == en
            assert to_spanish.setdefault(en, es) == es


def test_generated_pairs_are_distinct():
    found = [pair for pairs in phrasebook.generate(seed=4).values() for pair in pairs]
    assert len({es for es, _ in found}) == len({en for _, en in found}) == len(found)


def test_no_sentence_in_two_splits(splits):
    for side in (0, 1):
        train, validation, test = ({pair[side] for pair in split} for split in splits)
        assert not train & validation
        assert not train & test
        assert not validation & test


@pytest.mark.parametrize("num_pairs", [None, 8000])
def test_held_out_words_are_seen(num_pairs):
    train, validation, test = phrasebook.load_data(num_pairs=num_pairs, seed=2)
    for side in (0, 1):
        counts = Counter(word for pair in train for word in words(pair[side]))
        assert min(counts[word] for pair in validation + test for word in words(pair[side])) >= 5


def test_families_are_many_and_none_dominates():
    families = phrasebook.generate()
    total = sum(map(len, families.values()))
    assert len(families) == len(phrasebook.FAMILIES) >= 25
    assert all(0 < len(found) <= 0.12 * total for found in families.values())


def test_held_out_pairs_follow_the_families(splits):
    family_of = {pair: name for name, found in phrasebook.generate().items() for pair in found}
    total, held = Counter(family_of.values()), Counter(family_of[pair] for pair in splits[1] + splits[2])
    for name, size in total.items():
        if size >= 200:
            assert 0.05 * size < held[name] < 0.2 * size, name


def test_num_pairs():
    train, validation, test = phrasebook.load_data(num_pairs=6000, num_validation=100, num_test=200)
    assert (len(train), len(validation), len(test)) == (5700, 100, 200)


def test_writing(pairs):
    for es, en in pairs:
        for text in (es, en):
            assert unicodedata.normalize("NFC", text) == text
            assert "  " not in text
            assert text.strip() == text
            assert 2 <= len(text.split()) <= 15
        assert re.fullmatch(r"[A-Z][^¿¡?!.]*[.?!]", en), en
        assert re.fullmatch(r"¿[A-ZÁÉ][^¿¡?!.]*\?|¡[A-ZÁÉ][^¿¡?!.]*!|[A-ZÁÉ][^¿¡?!.]*\.", es), es
        assert (es[-1], "¿" in es) == (en[-1], en[-1] == "?")


@pytest.mark.parametrize("infinitive", PRESENT)
def test_present(infinitive):
    assert [spanish.present(infinitive, person) for person in range(5)] == PRESENT[infinitive].split()


@pytest.mark.parametrize("infinitive", PRETERITE)
def test_preterite(infinitive):
    assert [spanish.preterite(infinitive, person) for person in range(5)] == PRETERITE[infinitive].split()


def test_morphology():
    assert {n: spanish.number(n) for n in SPANISH_NUMBERS} == SPANISH_NUMBERS
    assert [spanish.number(n, "m") for n in (1, 21, 31)] == ["un", "veintiún", "treinta y un"]
    assert [spanish.number(n, "f") for n in (1, 21, 31)] == ["una", "veintiuna", "treinta y una"]
    assert {word: spanish.plural(word) for word in SPANISH_PLURALS} == SPANISH_PLURALS
    assert [
        spanish.feminine(w) for w in ("rojo", "inglés", "alemán", "español", "verde", "marrón", "gris")
    ] == (["roja", "inglesa", "alemana", "española", "verde", "marrón", "gris"])
    assert [spanish.gerund(v) for v in ("leer", "comer", "jugar")] == ["leyendo", "comiendo", "jugando"]
    assert {word: english.plural(word) for word in ENGLISH_PLURALS} == ENGLISH_PLURALS
    assert [english.ordinal(n) for n in (1, 2, 3, 5, 9, 12, 20, 21, 30)] == (
        ["first", "second", "third", "fifth", "ninth", "twelfth", "twentieth", "twenty-first", "thirtieth"]
    )
    assert [english.number(n) for n in (13, 40, 58, 100)] == [
        "thirteen",
        "forty",
        "fifty-eight",
        "one hundred",
    ]
    assert [english.third_person(v) for v in ("watch", "study", "play", "go", "have", "look for")] == [
        *("watches", "studies", "plays", "goes", "has"),
        "looks for",
    ]
    assert [english.participle(v) for v in ("write", "play", "see")] == ["writing", "playing", "seeing"]
    assert [english.past(v) for v in ("study", "live", "travel", "buy")] == [
        "studied",
        "lived",
        "traveled",
        "bought",
    ]
    assert [english.possessive(o) for o in ("Ana", "my boss", "my parents")] == [
        "Ana's",
        "my boss's",
        "my parents'",
    ]
    assert [english.with_article(w) for w in ("orange", "university", "box")] == [
        "an orange",
        "a university",
        "a box",
    ]


@pytest.mark.parametrize(("name", "es", "en"), GOLDEN)
def test_golden_pairs(name, es, en):
    (family,) = (family for family in phrasebook.FAMILIES if family.name == name)
    assert (es, en) in family.everything()


def test_determiners_agree_with_nouns(pairs):
    gender_of = {}
    for gender, nouns in GENDERS.items():
        for noun in nouns.split():
            gender_of[noun] = (gender, False)
            if spanish.plural(noun) != noun:
                gender_of[spanish.plural(noun)] = (gender, True)
    determiners = {
        ("m", False): "el un este ese nuestro otro del al veintiún",
        ("f", False): "la una esta esa nuestra otra",
        ("m", True): "los estos esos nuestros cuántos",
        ("f", True): "las estas esas nuestras cuántas veintiuna",
    }
    fits = {word: key for key, found in determiners.items() for word in found.split()}
    fits["veintiún"] = ("m", True)
    checked = 0
    for es, _ in pairs:
        tokens = words(es)
        for before, determiner, noun in zip(["", *tokens], tokens, tokens[1:], strict=False):
            # In "treinta y un libros" the numeral is singular and its noun plural.
            in_number = before == "y" and determiner in ("un", "una")
            if determiner in fits and noun in gender_of and noun != "paraguas" and not in_number:
                assert fits[determiner] == gender_of[noun], es
                checked += 1
    assert checked > 5000


def test_contractions_and_articles(pairs):
    for es, en in pairs:
        assert not re.search(r"\b(a|de) el\b", es), es
        assert not re.search(r"\ba [aeio]", en, re.IGNORECASE), en
        assert not re.search(r"\ban [^aeiou]", en, re.IGNORECASE), en
        assert not re.search(r"n't|'m|'re", en), en


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_pairs": 2500}, "num_pairs=2500"),
        ({"num_pairs": -1}, "num_pairs=-1"),
        ({"num_pairs": 10**6}, "num_pairs=1000000"),
        ({"num_validation": -1}, "num_validation=-1"),
        ({"num_test": -5}, "num_test=-5"),
        ({"num_test": 10**6}, "num_test=1000000"),
    ],
)
def test_bad_arguments(arguments, named):
    with pytest.raises(ValueError, match=rf"must .*Received: .*{named}"):
        phrasebook.load_data(**arguments)


def test_y_becomes_e_before_the_sound_i(splits):
    sentences = [spanish for split in splits for spanish, _ in split]
    assert any(" e inglés" in sentence for sentence in sentences)
    assert not [sentence for sentence in sentences if " y i" in sentence]
