import hashlib
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter

import pytest

from keras_transformer.datasets import phrasebook

DIGEST = """
import hashlib
from keras_transformer.datasets import phrasebook
print(hashlib.sha256(repr(phrasebook.load_data(seed=3)).encode()).hexdigest())
"""

# Singular and plural nouns: gender not shown by the ending, and gender shown by it.
NOUNS = {
    "masculine": """
        libro coche reloj teléfono lápiz vestido abrigo sombrero zapato bolso museo hotel tren avión restaurante parque
        hospital aeropuerto puente perro ratón té café pan arroz tenedor padre""",
    "feminine": """
        camisa mesa taza llave carta estación universidad habitación noche clase calle cabeza mano leche carne iglesia
        playa plaza farmacia botella sopa mochila cerveza""",
    "masculine plural": """
        libros coches relojes teléfonos lápices vestidos abrigos sombreros zapatos bolsos museos hoteles trenes aviones
        restaurantes parques hospitales aeropuertos puentes perros ratones cafés tenedores padres""",
    "feminine plural": """
        camisas mesas tazas llaves cartas estaciones universidades habitaciones noches clases calles cabezas manos
        iglesias playas plazas farmacias botellas sopas mochilas cervezas""",
}
DETERMINERS = {
    "masculine": "el un este ese nuestro otro del al",
    "feminine": "la una esta esa nuestra otra",
    "masculine plural": "los estos esos nuestros cuántos veintiún",
    "feminine plural": "las estas esas nuestras cuántas veintiuna",
}


def words(sentence):
    return [word.strip(".,?!¿¡'") for word in sentence.lower().split()]


@pytest.fixture(scope="module")
def splits():
    return phrasebook.load_data()


@pytest.fixture(scope="module")
def pairs(splits):
    return [pair for split in splits for pair in split]


def test_splits_have_the_documented_sizes(splits):
    train, validation, test = splits
    assert (len(validation), len(test)) == (1000, 1500)
    assert 22_000 <= len(train) + len(validation) + len(test) <= 26_000


@pytest.mark.slow
def test_the_same_seed_gives_the_same_data_in_another_process():
    digest = hashlib.sha256(repr(phrasebook.load_data(seed=3)).encode()).hexdigest()
    run = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == digest


def test_seed_chooses_the_split(splits, pairs):
    other = phrasebook.load_data(seed=1)
    assert set(other[2]) != set(splits[2])
    assert {pair for split in other for pair in split} == set(pairs)


def test_default_split_is_unchanged(splits):
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()
    assert digest == "f99949bc60515a68729692bfd53bacdcb78cad3cc5f5b00bc31090e84802ef07"


def test_each_sentence_has_one_translation_in_both_directions(pairs):
    assert len({es for es, _ in pairs}) == len({en for _, en in pairs}) == len(pairs)


def test_no_sentence_is_in_two_splits(splits):
    for side in (0, 1):
        train, validation, test = ({pair[side] for pair in split} for split in splits)
        assert not train & validation
        assert not train & test
        assert not validation & test


@pytest.mark.parametrize("num_pairs", [None, 8000])
def test_words_of_held_out_sentences_occur_in_training(num_pairs):
    train, validation, test = phrasebook.load_data(num_pairs=num_pairs, seed=2)
    for side in (0, 1):
        counts = Counter(word for pair in train for word in words(pair[side]))
        assert min(counts[word] for pair in validation + test for word in words(pair[side])) >= 5


def test_there_are_many_sentence_families_and_none_dominates(pairs):
    families = phrasebook._families()
    assert len(families) >= 25
    assert all(0 < len(found) <= 0.12 * len(pairs) for found in families.values())


def test_held_out_pairs_follow_the_families(splits):
    family_of = {pair: name for name, found in phrasebook._families().items() for pair in found}
    total, counts = Counter(family_of.values()), Counter(family_of[pair] for pair in splits[1] + splits[2])
    for name, size in total.items():
        if size >= 200:
            assert 0.05 * size < counts[name] < 0.2 * size, name


def test_num_pairs_sets_the_number_of_pairs():
    train, validation, test = phrasebook.load_data(num_pairs=6000, num_validation=100, num_test=200)
    assert (len(train), len(validation), len(test)) == (5700, 100, 200)


def test_sentences_are_well_formed(pairs):
    for es, en in pairs:
        for text in (es, en):
            assert unicodedata.normalize("NFC", text) == text
            assert "  " not in text
            assert text.strip() == text
            assert 2 <= len(text.split()) <= 15
        assert re.fullmatch(r"[A-Z][^¿¡?!.]*[.?!]", en), en
        assert re.fullmatch(r"¿[A-ZÁÉ][^¿¡?!.]*\?|¡[A-ZÁÉ][^¿¡?!.]*!|[A-ZÁÉ][^¿¡?!.]*\.", es), es
        assert (es[-1], "¿" in es) == (en[-1], en[-1] == "?")


def test_determiners_agree_with_nouns(pairs):
    form_of = {noun: form for form, nouns in NOUNS.items() for noun in nouns.split()}
    fits = {word: form for form, found in DETERMINERS.items() for word in found.split()}
    checked = 0
    for es, _ in pairs:
        tokens = words(es)
        for before, determiner, noun in zip(["", *tokens], tokens, tokens[1:], strict=False):
            # In "treinta y un libros" the numeral is singular and its noun plural.
            in_number = before == "y" and determiner in ("un", "una")
            if determiner in fits and noun in form_of and not in_number:
                assert fits[determiner] == form_of[noun], es
                checked += 1
    assert checked > 5000


def test_contractions_and_articles_are_correct(pairs):
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
def test_invalid_arguments_are_rejected(arguments, named):
    with pytest.raises(ValueError, match=rf"must .*Received: .*{named}"):
        phrasebook.load_data(**arguments)


def test_y_becomes_e_before_the_sound_i(splits):
    sentences = [spanish for split in splits for spanish, _ in split]
    assert any(" e inglés" in sentence for sentence in sentences)
    assert not [sentence for sentence in sentences if " y i" in sentence]
