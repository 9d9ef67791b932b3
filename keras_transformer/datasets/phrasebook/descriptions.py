"""Sentences that say what things and people are like: ser, estar, tener, doler."""

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.families import Family
from keras_transformer.datasets.phrasebook.lexicon import (
    ASKED,
    BODY,
    CHARACTERS,
    CLOTHES,
    COLORS,
    COUNTRIES,
    DRINKS,
    EVERYONE,
    FEELINGS,
    HE,
    LOOKS,
    ME,
    MEALS,
    MINE,
    NAMED,
    NAMES,
    NATIONALITIES,
    OBJECTS,
    OTHERS,
    OURS,
    PLACE_QUALITIES,
    PLACES,
    PRICES,
    PROFESSIONS,
    SHE,
    SPEAKERS,
    STATES,
    THEY,
    VEHICLES,
    YOURS,
    Adjective,
    Noun,
    Phrase,
    Subject,
)
from keras_transformer.datasets.phrasebook.phrases import (
    Pair,
    as_subject,
    be,
    described,
    exclamation,
    inflected,
    of_owner,
    owned,
    pointed,
    question,
    statement,
    the,
)

Trait = tuple[Noun, Adjective]

_SPEEDS = (Adjective("rápido", "fast"), *PRICES)
_THINGS = (*CLOTHES, *OBJECTS)
_TRAITS = (
    tuple((noun, trait) for noun in _THINGS for trait in (*COLORS, *LOOKS, *PRICES))
    + tuple((noun, trait) for noun in PLACES for trait in PLACE_QUALITIES)
    + tuple((noun, trait) for noun in VEHICLES for trait in (*_SPEEDS, *LOOKS))
)
_OWNABLE_TRAITS = tuple((noun, trait) for noun in _THINGS for trait in (*COLORS, *LOOKS))
_DEGREES = (Phrase(), Phrase("muy", "very"), Phrase("demasiado", "too"))
_TASTED = tuple(
    (noun, Adjective(*row))
    for noun in (Noun("sopa", "f", "soup"), *MEALS, *DRINKS)
    for row, unfit in (
        (("frío", "cold"), ()),
        (("caliente", "hot"), ("fruta", "queso", "zumo", "vino", "cerveza")),
        (("salado", "salty"), ("fruta", "agua", "leche", "café", "té", "zumo", "vino", "cerveza")),
    )
    if noun.es not in unfit
)
_ONE_OF_MINE = tuple(person for person in MINE if not person.many)
_COMPARED_CLOTHES = tuple(
    (one, other, trait) for one in CLOTHES for other in CLOTHES for trait in (*LOOKS, *PRICES) if one != other
)
_COMPARED_PLACES = tuple(
    (one, other, trait) for one in PLACES for other in PLACES for trait in PLACE_QUALITIES if one != other
)
_COMPARED_VEHICLES = tuple(
    (one, other, trait) for one in VEHICLES for other in VEHICLES for trait in _SPEEDS if one != other
)
_COMPARED_PEOPLE = tuple(
    (one, other, trait) for one in (*NAMED, *MINE) for other in NAMED for trait in CHARACTERS if one != other
)


def _degree_fits(degree: Phrase, adjective: Adjective) -> bool:
    """Colours have no degrees, and too famous or too pretty is odd."""
    if adjective in COLORS:
        return not degree.es
    return degree.en != "too" or adjective.en in ("big", "small", "old", "expensive")


def _is(phrase: Phrase, noun: Noun, many: bool, degree: Phrase, adjective: Adjective) -> Pair | None:
    """A thing, with ser and an adjective."""
    if not _degree_fits(degree, adjective):
        return None
    subject = as_subject(phrase, noun.gender, many)
    return statement(be(subject, "ser"), degree, inflected(adjective, noun.gender, many))


def definite(trait: Trait, many: bool, degree: Phrase) -> Pair | None:
    """Las casas son muy grandes."""
    return _is(the(trait[0], many), trait[0], many, degree, trait[1])


def demonstrative(trait: Trait, many: bool, degree: Phrase, which: str) -> Pair | None:
    """Esos zapatos son demasiado caros."""
    return _is(pointed(which, trait[0], many), trait[0], many, degree, trait[1])


def possessive(trait: Trait, many: bool, degree: Phrase, owner: str) -> Pair | None:
    """Nuestra mesa es vieja."""
    return _is(owned(owner, trait[0], many), trait[0], many, degree, trait[1])


def genitive(trait: Trait, many: bool, owner: Subject) -> Pair | None:
    """El coche de mi hermano es rojo."""
    return _is(of_owner(trait[0], owner, many), trait[0], many, Phrase(), trait[1])


def negated(trait: Trait, many: bool) -> Pair:
    """La maleta no es cara."""
    noun, adjective = trait
    subject = as_subject(the(noun, many), noun.gender, many)
    return statement(be(subject, "ser", negative=True), inflected(adjective, noun.gender, many))


def food(taste: Trait, degree: Phrase, which: str) -> Pair:
    """El agua está demasiado fría."""
    noun, adjective = taste
    phrase = pointed(which, noun) if which else the(noun)
    return statement(be(as_subject(phrase, noun.gender), "estar"), degree, inflected(adjective, noun.gender))


def state(subject: Subject, adjective: Adjective, degree: Phrase, negative: bool) -> Pair | None:
    """Mi hermana no está cansada; the adjective must not show the gender of who speaks."""
    if degree.es and (negative or adjective.en == "ready"):
        return None
    if not subject.gender and spanish.feminine(adjective.es) != adjective.es:
        return None
    word = inflected(adjective, subject.gender, subject.many)
    return statement(be(subject, "estar", negative), degree, word)


def why(subject: Subject, adjective: Adjective) -> Pair | None:
    """¿Por qué está triste tu hermana?"""
    if not subject.gender or subject in (HE, SHE, THEY) or adjective.en == "ready":
        return None
    word = inflected(adjective, subject.gender, subject.many)
    verb = spanish.present("estar", subject.person)
    to_be = english.to_be(subject.person)
    return question(Phrase(f"por qué {verb} {word.es} {subject.es}", f"why {to_be} {subject.en} {word.en}"))


def character(subject: Subject, adjective: Adjective, degree: Phrase, negative: bool) -> Pair | None:
    """Mis abuelos son muy amables."""
    if degree.es and negative:
        return None
    return statement(be(subject, "ser", negative), degree, inflected(adjective, subject.gender, subject.many))


def profession(subject: Subject, job: Adjective, negative: bool) -> Pair:
    """Mi tía es médica; English counts a person's job: a doctor."""
    noun = english.plural(job.en) if subject.many else english.with_article(job.en)
    word = Phrase(spanish.agree(job.es, subject.gender, subject.many), noun)
    return statement(be(subject, "ser", negative), word)


def nationality(subject: Subject, adjective: Adjective, negative: bool) -> Pair:
    """Ella es inglesa."""
    return statement(be(subject, "ser", negative), inflected(adjective, subject.gender, subject.many))


def origin(subject: Subject, country: Phrase, negative: bool) -> Pair:
    """Somos de México."""
    return statement(be(subject, "ser", negative), Phrase(f"de {country.es}", f"from {country.en}"))


def name(subject: Subject, called: str) -> Pair | None:
    """Mi hermana se llama Elena."""
    if subject.many or subject.gender != ("f" if called.endswith("a") else "m"):
        return None
    return statement(
        Phrase(f"{subject.es} se llama {called}", f"{english.possessive(subject.en)} name is {called}")
    )


def admired(trait: Trait, many: bool) -> Pair | None:
    """¡Qué flores tan bonitas!"""
    noun, adjective = trait
    if adjective in COLORS:
        return None
    phrase = described(noun, many=many)
    word = inflected(adjective, noun.gender, many)
    what = f"{adjective.en} {phrase.en}"
    what = what if many else english.with_article(what)
    return exclamation(Phrase(f"qué {phrase.es} tan {word.es}", f"what {what}"))


def compared_things(case: tuple[Noun, Noun, Adjective], many: bool) -> Pair:
    """El tren es más rápido que el autobús."""
    one, other, adjective = case
    subject = as_subject(the(one, many), one.gender, many)
    second = the(other, many)
    word = inflected(adjective, one.gender, many)
    return statement(
        be(subject, "ser"),
        Phrase(f"más {word.es} que {second.es}", f"{english.comparative(adjective.en)} than {second.en}"),
    )


def compared_people(case: tuple[Subject, Subject, Adjective]) -> Pair:
    """Mi hermana es más alta que Pedro."""
    one, other, adjective = case
    word = inflected(adjective, one.gender, one.many)
    return statement(
        be(one, "ser"),
        Phrase(f"más {word.es} que {other.es}", f"{english.comparative(adjective.en)} than {other.en}"),
    )


def color_asked(noun: Noun, many: bool, owner: str) -> Pair:
    """¿De qué color son tus zapatos?"""
    phrase = pointed(owner, noun, many) if owner in ("this", "that") else owned(owner, noun, many)
    verb, to_be = ("son", "are") if many else ("es", "is")
    return question(Phrase(f"de qué color {verb} {phrase.es}", f"what color {to_be} {phrase.en}"))


def feeling(subject: Subject, sensation: Phrase, degree: str) -> Pair | None:
    """Mi hijo tiene mucha hambre."""
    if degree == "very" and sensation.es == "prisa":
        return None
    much = "mucha" if sensation.es in ("hambre", "sed", "prisa") else "mucho"
    very = Phrase(much, "very") if degree == "very" else Phrase()
    return statement(be(subject, "tener", negative=degree == "not"), very, sensation)


def pain(owner: Subject, part: Noun, many: bool, degree: str) -> Pair | None:
    """A Pedro le duelen los pies."""
    if many and part.es in ("cabeza", "espalda", "estómago"):
        return None
    verb, phrase = "duelen" if many else "duele", the(part, many).es
    clitic, possessor = ("me", "my") if owner.person == spanish.YO else ("le", english.possessive(owner.en))
    noun = (english.plural if many else str)(part.en)
    whom = f"{spanish.after_a(owner.es)} " if owner.es else ""
    if degree == "not":
        does = "do" if many else "does"
        return statement(Phrase(f"{whom}no {clitic} {verb} {phrase}", f"{possessor} {noun} {does} not hurt"))
    much = (" mucho", " a lot") if degree == "very" else ("", "")
    es = f"{whom}{clitic} {verb}{much[0]} {phrase}"
    return statement(Phrase(es, f"{possessor} {noun} {'hurt' if many else 'hurts'}{much[1]}"))


_MANY = (False, True)
FAMILIES = (
    Family("definite descriptions", 490, definite, (_TRAITS, _MANY, _DEGREES)),
    Family("demonstratives", 490, demonstrative, (_TRAITS, _MANY, _DEGREES, ("this", "that"))),
    Family("possessives", 420, possessive, (_OWNABLE_TRAITS, _MANY, _DEGREES, ("my", "your", "our"))),
    Family("genitives", 420, genitive, (_OWNABLE_TRAITS, _MANY, (*NAMED, *MINE))),
    Family("negated descriptions", 210, negated, (_TRAITS, _MANY)),
    Family("food", 240, food, (_TASTED, _DEGREES, ("", "this"))),
    Family("states", 490, state, ((*SPEAKERS, *OTHERS, *OURS), STATES, _DEGREES[:2], _MANY)),
    Family("reasons asked", 200, why, (ASKED, STATES)),
    Family("characters", 350, character, ((*OTHERS, *OURS), CHARACTERS, _DEGREES[:2], _MANY)),
    Family("professions", 340, profession, ((*OTHERS, *YOURS), PROFESSIONS, _MANY)),
    Family("nationalities", 200, nationality, (OTHERS, NATIONALITIES, _MANY)),
    Family("origins", 240, origin, (EVERYONE, COUNTRIES, _MANY)),
    Family("names", 100, name, ((*MINE, *YOURS), NAMES)),
    Family("admiration", 200, admired, (_TRAITS, _MANY)),
    Family("compared clothes", 200, compared_things, (_COMPARED_CLOTHES, _MANY)),
    Family("compared places", 200, compared_things, (_COMPARED_PLACES, (False,))),
    Family("compared vehicles", 150, compared_things, (_COMPARED_VEHICLES, _MANY)),
    Family("compared people", 240, compared_people, (_COMPARED_PEOPLE,)),
    Family("colors asked", 200, color_asked, (_THINGS, _MANY, ("my", "your", "our", "this", "that"))),
    Family("pains", 210, pain, ((ME, *NAMED, *_ONE_OF_MINE), BODY, _MANY, ("", "very", "not"))),
    Family("feelings", 350, feeling, (EVERYONE, FEELINGS, ("", "very", "not"))),
)
