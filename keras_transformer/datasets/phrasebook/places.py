"""Sentences about where things are, how to get there, and travel."""

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.families import Family
from keras_transformer.datasets.phrasebook.lexicon import (
    ANIMALS,
    CITIES,
    CLOTHES,
    EVERYONE,
    FURNITURE,
    IR,
    LANDMARKS,
    LUGGAGE,
    ME,
    OBJECTS,
    ON_WEEKDAYS,
    OTHERS,
    PLACES,
    SMALL_OBJECTS,
    TRANSPORT,
    WEEKDAYS,
    YOU,
    YOURS,
    Noun,
    Phrase,
    Subject,
    Verb,
)
from keras_transformer.datasets.phrasebook.phrases import (
    Pair,
    a,
    as_subject,
    be,
    future,
    owned,
    past,
    present,
    question,
    statement,
    the,
    to,
)

_VIAJAR, _VIVIR = Verb("viajar", "travel"), Verb("vivir", "live")
_RELATIONS = (
    Phrase("al lado de", "next to"),
    Phrase("cerca de", "near"),
    Phrase("lejos de", "far from"),
    Phrase("delante de", "in front of"),
    Phrase("detrás de", "behind"),
    Phrase("enfrente de", "across from"),
)
_POSITIONS = (
    *((Phrase("sobre", "on"), noun) for noun in FURNITURE[:3]),
    (Phrase("sobre", "on"), Noun("cama", "f", "bed")),
    *((Phrase("debajo de", "under"), noun) for noun in (*FURNITURE[:3], Noun("cama", "f", "bed"))),
    *((Phrase("detrás de", "behind"), noun) for noun in FURNITURE),
    *((Phrase("al lado de", "next to"), noun) for noun in FURNITURE),
    *((Phrase("dentro de", "inside"), noun) for noun in LUGGAGE),
)
_CROSSED = (
    *(noun for noun in LANDMARKS if noun.es in ("plaza", "parque", "puente")),
    Noun("calle", "f", "street"),
)
_SIDES = (Phrase("a la izquierda", "left"), Phrase("a la derecha", "right"))
_STREETS = (Phrase("primera", "first"), Phrase("segunda", "second"), Phrase("tercera", "third"))
_STARTS = (
    *(Phrase(f"sigue todo recto hasta {the(n).es}", f"go straight ahead to {the(n).en}") for n in LANDMARKS),
    *(Phrase(f"cruza {the(n).es}", f"cross {the(n).en}") for n in _CROSSED),
    *(
        Phrase(f"toma la {street.es} calle {side.es}", f"take the {street.en} street on the {side.en}")
        for street in _STREETS
        for side in _SIDES
    ),
)
_ENDS = (
    *(Phrase(f"gira {side.es}", f"turn {side.en}") for side in _SIDES),
    *(
        Phrase(f"gira {side.es} en {the(noun).es}", f"turn {side.en} at {the(noun).en}")
        for side in _SIDES
        for noun in LANDMARKS
    ),
    *(
        Phrase(f"toma la {street.es} calle {side.es}", f"take the {street.en} street on the {side.en}")
        for street in _STREETS
        for side in _SIDES
    ),
)
_BEFORE = (
    Phrase("ayer", "yesterday"),
    Phrase("la semana pasada", "last week"),
    *(Phrase(f"el {day.es} pasado", f"last {day.en}") for day in WEEKDAYS),
)
_AFTER = (
    Phrase("mañana", "tomorrow"),
    Phrase("la semana que viene", "next week"),
    *(Phrase(f"el {day.es}", f"on {day.en}") for day in WEEKDAYS),
)
_HOMES = tuple(Phrase(f"en {city.es}", f"in {city.en}") for city in CITIES) + tuple(
    Phrase(
        f"{relation.es.removesuffix(' de')} {spanish.after_de(the(noun).es)}", f"{relation.en} {the(noun).en}"
    )
    for relation in _RELATIONS[:3]
    for noun in PLACES
)


def _related(relation: Phrase, phrase: Phrase) -> Phrase:
    """The relation and its place, de contracted: `al lado del museo`."""
    if relation.es.endswith(" de"):
        return Phrase(f"{relation.es[:-3]} {spanish.after_de(phrase.es)}", f"{relation.en} {phrase.en}")
    return Phrase(f"{relation.es} {phrase.es}", f"{relation.en} {phrase.en}")


def where(subject: Subject) -> Pair:
    """¿Dónde están tus llaves?"""
    return question(
        Phrase(f"dónde {spanish.present('estar', subject.person)} {subject.es}".strip()),
        Phrase("", f"where {english.to_be(subject.person)} {subject.en}"),
    )


def nearest(noun: Noun) -> Pair:
    """¿Dónde está la farmacia más cercana?"""
    closest = spanish.agree("cercano", noun.gender)
    return question(Phrase(f"dónde está {the(noun).es} más {closest}", f"where is the nearest {noun.en}"))


def relation(one: Noun, how: Phrase, other: Noun) -> Pair | None:
    """El banco está al lado del museo."""
    if one == other:
        return None
    return statement(be(as_subject(the(one), one.gender), "estar"), _related(how, the(other)))


def relation_asked(one: Noun, how: Phrase, other: Noun) -> Pair | None:
    """¿El banco está lejos de la plaza?"""
    if one == other:
        return None
    place = _related(how, the(other))
    return question(Phrase(f"{the(one).es} está {place.es}", f"is {the(one).en} {place.en}"))


def position(thing: Subject, where: tuple[Phrase, Noun], negative: bool) -> Pair | None:
    """Las llaves están sobre la mesa."""
    how, noun = where
    if thing.es == the(noun).es:
        return None
    return statement(be(thing, "estar", negative), _related(how, the(noun)))


def _destination(leg: Phrase, preposition: str) -> str:
    """The landmark a step names, in English; the whole step if none."""
    return leg.en.rpartition(preposition)[2]


def directions(start: Phrase, end: Phrase) -> Pair | None:
    """Cruza la plaza y gira a la derecha."""
    if start.en.startswith("take") and end.en.startswith("take"):
        return None
    if _destination(start, " to ") == _destination(end, " at "):
        return None
    return statement(start, Phrase("y", "and"), end)


def step(only: Phrase) -> Pair:
    """Sigue todo recto hasta el puente."""
    return statement(only)


def nearby(noun: Noun, how: Phrase, other: Noun) -> Pair | None:
    """Hay un hospital cerca de la plaza."""
    if noun == other:
        return None
    return statement(Phrase("hay", "there is"), a(noun), _related(how, the(other)))


def nearby_asked(noun: Noun, how: Phrase, other: Noun | None) -> Pair | None:
    """¿Hay una farmacia cerca de aquí?"""
    if noun == other or (other is None and how.en != "near"):
        return None
    place = Phrase("aquí", "here") if other is None else the(other)
    return question(Phrase("hay", "is there"), a(noun), _related(how, place))


def outing(subject: Subject, place: Noun, when: Phrase, negative: bool) -> Pair:
    """Los sábados vamos al mercado."""
    return statement(when, present(subject, IR, negative), to(the(place)))


def commute(subject: Subject, place: Noun, by: Phrase, when: Phrase) -> Pair:
    """Mi padre va a la oficina en autobús todos los días."""
    return statement(present(subject, IR), to(the(place)), by, when)


def outing_done(when: Phrase, subject: Subject, place: Noun, by: Phrase, negative: bool) -> Pair | None:
    """Ayer fuimos al museo en tren."""
    if negative and by.es:
        return None
    return statement(when, past(subject, IR, negative), to(the(place)), by)


def trip(when: Phrase, subject: Subject, city: Phrase, by: Phrase) -> Pair:
    """El lunes vamos a viajar a Madrid en tren."""
    return statement(when, future(subject, _VIAJAR), to(city), by)


def trip_done(when: Phrase, subject: Subject, city: Phrase, by: Phrase) -> Pair:
    """La semana pasada viajé a Roma en tren."""
    return statement(when, past(subject, _VIAJAR), to(city), by)


def residence(subject: Subject, home: Phrase, negative: bool) -> Pair:
    """Mi abuela vive cerca de la playa."""
    return statement(present(subject, _VIVIR, negative), home)


_MANY = (False, True)
_THINGS = tuple(
    as_subject(phrase(noun, many), noun.gender, many)
    for noun in (*SMALL_OBJECTS, *ANIMALS)
    for phrase in (
        the,
        lambda noun, many: owned("my", noun, many),
        lambda noun, many: owned("your", noun, many),
    )
    for many in _MANY
)
_WANTED = (
    *(as_subject(the(noun), noun.gender) for noun in PLACES),
    *(as_subject(the(noun, True), noun.gender, True) for noun in SMALL_OBJECTS),
    *(
        as_subject(owned(owner, noun, many), noun.gender, many)
        for noun in (*CLOTHES, *OBJECTS)
        for owner in ("my", "your", "our")
        for many in _MANY
    ),
    *OTHERS,
    *YOURS,
)
FAMILIES = (
    Family("places asked", 210, where, (_WANTED,)),
    Family("nearest", 40, nearest, (PLACES,)),
    Family("relations", 490, relation, (PLACES, _RELATIONS, PLACES)),
    Family("relations asked", 210, relation_asked, (PLACES, _RELATIONS, PLACES)),
    Family("positions", 490, position, (_THINGS, _POSITIONS, _MANY)),
    Family("directions", 490, directions, (_STARTS, _ENDS)),
    Family("steps", 80, step, ((*_STARTS, *_ENDS),)),
    Family("nearby", 320, nearby, (PLACES, _RELATIONS, PLACES)),
    Family("nearby asked", 240, nearby_asked, (PLACES, _RELATIONS[:2], (*((None,) * 6), *PLACES))),
    Family("outings", 350, outing, (EVERYONE, PLACES, ON_WEEKDAYS, _MANY)),
    Family(
        "commutes",
        350,
        commute,
        (EVERYONE, PLACES, TRANSPORT, (Phrase(), Phrase("todos los días", "every day"))),
    ),
    Family("outings past", 320, outing_done, (_BEFORE, EVERYONE, PLACES, (Phrase(), *TRANSPORT), _MANY)),
    Family("trips", 280, trip, (_AFTER, EVERYONE, CITIES, TRANSPORT[:3])),
    Family("trips past", 280, trip_done, (_BEFORE, EVERYONE, CITIES, TRANSPORT[:3])),
    Family("residence", 240, residence, ((ME, YOU, *OTHERS), _HOMES, _MANY)),
)
