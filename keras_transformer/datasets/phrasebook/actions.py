"""Sentences about what people do, did, are going to do, want and like."""

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.families import Family
from keras_transformer.datasets.phrasebook.lexicon import (
    ACTIVITIES,
    ASKED,
    CLOTHES,
    CONTACTS,
    DRINKS,
    EVERYONE,
    FOODS,
    LANGUAGES,
    LOSSES,
    ME,
    MEALS,
    MINE,
    MODALS,
    NAMED,
    OBJECTS,
    OCCASIONS,
    ON_WEEKDAYS,
    PRICES,
    ROUTINES,
    WE,
    WEEKDAYS,
    Action,
    Adjective,
    Noun,
    Phrase,
    Subject,
    Verb,
)
from keras_transformer.datasets.phrasebook.phrases import (
    Pair,
    as_subject,
    asked,
    be,
    future,
    inflected,
    is_open_in_time,
    join,
    kind,
    past,
    pointed,
    present,
    progressive,
    question,
    statement,
)

Good = tuple[Noun, bool]

_REGULARLY = (
    Phrase("todos los días", "every day"),
    Phrase("por la mañana", "in the morning"),
    Phrase("por la tarde", "in the afternoon"),
    *ON_WEEKDAYS,
)
_FREQUENCIES = (
    Phrase("siempre", "always"),
    Phrase("nunca", "never"),
    Phrase("casi siempre", "almost always"),
)
_BEFORE = (
    Phrase("ayer", "yesterday"),
    Phrase("anoche", "last night"),
    Phrase("la semana pasada", "last week"),
    *(Phrase(f"el {day.es} pasado", f"last {day.en}") for day in WEEKDAYS),
)
_AFTER = (
    Phrase("mañana", "tomorrow"),
    Phrase("esta noche", "tonight"),
    Phrase("la semana que viene", "next week"),
    *(Phrase(f"el {day.es}", f"on {day.en}") for day in WEEKDAYS),
)
_NOW = (Phrase(), Phrase("ahora", "now"), Phrase("en este momento", "at the moment"))
_GOODS = tuple((noun, False) for noun in (*MEALS, *DRINKS)) + tuple((noun, True) for noun in FOODS)
_RIVALS = tuple(
    ((one, many), (other, many))
    for group, many in ((MEALS, False), (DRINKS, False), (FOODS, True))
    for one in group
    for other in group
    if one != other
)
_BODIES = (*NAMED, *MINE)


def routine(subject: Subject, action: Action, when: Phrase) -> Pair:
    """Mi padre compra pan todos los días."""
    return statement(present(subject, action.verb), action.rest, when)


def frequency(subject: Subject, action: Action, how_often: Phrase) -> Pair | None:
    """Mis hijos nunca comen pescado."""
    if is_open_in_time(subject, action.verb):
        return None
    person = subject.person
    return statement(
        Phrase(subject.es, subject.en),
        how_often,
        Phrase(spanish.present(action.verb.es, person), english.present(action.verb.en, person)),
        action.rest,
    )


def routine_negated(subject: Subject, action: Action, when: Phrase) -> Pair | None:
    """No como carne los viernes."""
    if not when.es and is_open_in_time(subject, action.verb):
        return None
    return statement(present(subject, action.verb, negative=True), action.rest, when)


def routine_asked(subject: Subject, action: Action, when: Phrase) -> Pair:
    """¿Tu hermano come carne?"""
    return question(asked(subject, action.verb), action.rest, when)


def happening(subject: Subject, action: Action, when: Phrase, negative: bool) -> Pair | None:
    """Ella está leyendo un libro."""
    if negative and when.es:
        return None
    return statement(progressive(subject, action.verb, negative), action.rest, when)


def planned(when: Phrase, subject: Subject, action: Action, negative: bool) -> Pair:
    """Mañana voy a comprar un libro."""
    return statement(when, future(subject, action.verb, negative), action.rest)


def plan_asked(subject: Subject, action: Action, when: Phrase) -> Pair:
    """¿Vas a vender el coche mañana?"""
    verb = spanish.present("ir", subject.person)
    return question(
        Phrase(
            f"{subject.es} {verb} a {action.verb.es}".strip(),
            f"{english.to_be(subject.person)} {subject.en} going to {action.verb.en}",
        ),
        action.rest,
        when,
    )


def done(when: Phrase, subject: Subject, action: Action, negative: bool) -> Pair:
    """Ayer compré un libro."""
    return statement(when, past(subject, action.verb, negative), action.rest)


def done_asked(subject: Subject, action: Action, when: Phrase) -> Pair:
    """¿Compraste pan ayer?"""
    return question(asked(subject, action.verb, "past"), action.rest, when)


def modal(subject: Subject, mode: Phrase, action: Action, when: Phrase, negative: bool) -> Pair:
    """Mi hermana tiene que estudiar inglés mañana."""
    infinitive, _, particle = mode.es.partition(" ")
    es = join(present(subject, Verb(infinitive, mode.en), negative), Phrase(particle)).es
    if mode.en == "can":
        en = f"{subject.en} {'cannot' if negative else 'can'}"
    else:
        en = present(subject, Verb(infinitive, mode.en), negative).en
    return statement(Phrase(es, en), Phrase(action.verb.es, action.verb.en), action.rest, when)


def _dative(subject: Subject, negative: bool = False) -> str:
    """Who likes: `me`, `a Ana no le`."""
    clitic = ("me", "te", "le", "nos", "les")[subject.person]
    whom = f"{spanish.after_a(subject.es)} " if subject.es else ""
    return f"{whom}{'no ' if negative else ''}{clitic}"


def liking(subject: Subject, good: Good, degree: str) -> Pair:
    """A mis hijos no les gustan las naranjas."""
    thing = kind(*good)
    verb = "gustan" if good[1] else "gusta"
    negative = degree == "not"
    much = ("mucho ", " very much") if degree == "very" else ("", "")
    verbs = present(subject, Verb("gustar", "like"), negative).en
    return statement(
        Phrase(f"{_dative(subject, negative)} {verb} {much[0]}{thing.es}", f"{verbs} {thing.en}{much[1]}")
    )


def liking_asked(subject: Subject, good: Good) -> Pair:
    """¿Te gusta el café?"""
    thing = kind(*good)
    verb = "gustan" if good[1] else "gusta"
    does = english.to_do(subject.person)
    return question(Phrase(f"{_dative(subject)} {verb} {thing.es}", f"{does} {subject.en} like {thing.en}"))


def pastime(subject: Subject, activity: Phrase, negative: bool) -> Pair:
    """A mi hermana le gusta bailar."""
    verbs = present(subject, Verb("gustar", "like"), negative).en
    return statement(Phrase(f"{_dative(subject, negative)} gusta", verbs), activity)


def preference(subject: Subject, rivals: tuple[Good, Good]) -> Pair | None:
    """Prefiero el té al café."""
    if subject == WE:
        return None
    one, second = kind(*rivals[0]), kind(*rivals[1])
    return statement(
        present(subject, Verb("preferir", "prefer")),
        one,
        Phrase(spanish.after_a(second.es), f"to {second.en}"),
    )


def _met(person: Subject) -> Phrase:
    """A person as the object, after the personal a."""
    return Phrase(f"a {person.es}", person.en)


def contact(when: Phrase, subject: Subject, verb: Verb, person: Subject) -> Pair | None:
    """Los domingos visito a mi abuela."""
    return None if subject == person else statement(when, present(subject, verb), _met(person))


def contact_done(when: Phrase, subject: Subject, verb: Verb, person: Subject, negative: bool) -> Pair | None:
    """Ayer llamé a Pedro."""
    return None if subject == person else statement(when, past(subject, verb, negative), _met(person))


def contact_planned(when: Phrase, subject: Subject, verb: Verb, person: Subject) -> Pair | None:
    """Mañana vamos a visitar a mis abuelos."""
    return None if subject == person else statement(when, future(subject, verb), _met(person))


def purchase(
    noun: Noun, many: bool, which: str, buyer: Subject, adjective: Adjective | None, negative: bool
) -> Pair | None:
    """Me gusta esta camisa y la voy a comprar."""
    phrase = pointed(which, noun, many)
    clitic = ("las" if noun.gender == "f" else "los") if many else ("la" if noun.gender == "f" else "lo")
    if adjective is None and negative:
        return None
    if adjective is None:
        like = Phrase(f"{_dative(buyer)} {'gustan' if many else 'gusta'}", f"{buyer.en} like")
        first = join(like, phrase)
    else:
        first = join(
            be(as_subject(phrase, noun.gender, many), "ser"), inflected(adjective, noun.gender, many)
        )
    contrast = adjective is not None and (adjective.en == "expensive") != negative
    going = future(buyer, Verb("comprar", "buy"), negative)
    es = going.es.removeprefix("no ")
    return statement(
        Phrase(f"{first.es}{',' if contrast else ''}", f"{first.en}{',' if contrast else ''}"),
        Phrase("pero", "but") if contrast else Phrase("y", "and"),
        Phrase(f"{'no ' if negative else ''}{clitic} {es}", f"{going.en} {'them' if many else 'it'}"),
    )


def language(subject: Subject, one: Phrase, other: Phrase, negative: bool) -> Pair | None:
    """Ana habla francés e inglés."""
    if one == other or (negative and other.es) or subject == WE:
        return None
    second = Phrase(spanish.after_y(other.es), f"and {other.en}") if other.es else Phrase()
    return statement(present(subject, Verb("hablar", "speak"), negative), one, second)


def language_asked(subject: Subject, one: Phrase) -> Pair:
    """¿Hablas alemán?"""
    return question(asked(subject, Verb("hablar", "speak")), one)


_POLARITIES = (False, True)
_CHORES = ROUTINES + OCCASIONS
FAMILIES = (
    Family("routines", 650, routine, (EVERYONE, ROUTINES, _REGULARLY)),
    Family("frequencies", 400, frequency, (EVERYONE, ROUTINES, _FREQUENCIES)),
    Family("routines negated", 420, routine_negated, (EVERYONE, ROUTINES, (Phrase(), *_REGULARLY))),
    Family("routines asked", 420, routine_asked, (ASKED, ROUTINES, (Phrase(), *_REGULARLY))),
    Family("happening", 560, happening, (EVERYONE, _CHORES, _NOW, _POLARITIES)),
    Family("plans", 640, planned, (_AFTER, EVERYONE, _CHORES, _POLARITIES)),
    Family("plans asked", 280, plan_asked, (ASKED, _CHORES, _AFTER)),
    Family("past", 760, done, (_BEFORE, EVERYONE, _CHORES + LOSSES, _POLARITIES)),
    Family("past asked", 480, done_asked, (ASKED, _CHORES + LOSSES, _BEFORE)),
    Family("modals", 560, modal, (EVERYONE, MODALS, _CHORES, (*_AFTER[:3], *_NOW[1:2]), _POLARITIES)),
    Family("likes", 420, liking, (EVERYONE, _GOODS, ("", "very", "not"))),
    Family("likes asked", 210, liking_asked, (ASKED, _GOODS)),
    Family("pastimes", 240, pastime, (EVERYONE, ACTIVITIES, _POLARITIES)),
    Family("preferences", 240, preference, (EVERYONE, _RIVALS)),
    Family("contacts", 280, contact, (ON_WEEKDAYS, EVERYONE, CONTACTS, _BODIES)),
    Family("contacts past", 320, contact_done, (_BEFORE, EVERYONE, CONTACTS, _BODIES, _POLARITIES)),
    Family("contacts planned", 240, contact_planned, (_AFTER, EVERYONE, CONTACTS, _BODIES)),
    Family(
        "purchases",
        350,
        purchase,
        (CLOTHES + OBJECTS, _POLARITIES, ("this", "that"), (ME, WE), (None, *PRICES), _POLARITIES),
    ),
    Family("languages", 240, language, (EVERYONE, LANGUAGES, (Phrase(), *LANGUAGES), _POLARITIES)),
    Family("languages asked", 130, language_asked, (ASKED, LANGUAGES)),
)
