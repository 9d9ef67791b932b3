"""Sentences with numbers: counts, ages, prices, the clock, dates, temperatures; and the weather."""

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.families import Family
from keras_transformer.datasets.phrasebook.lexicon import (
    ASKED,
    CITIES,
    CLOTHES,
    COLORS,
    DISHES,
    EVENTS,
    EVERYONE,
    FOODS,
    FURNITURE,
    INDOORS,
    ME,
    MINE,
    MONTHS,
    NAMED,
    OBJECTS,
    ON_WEEKDAYS,
    SHOPS,
    VEHICLES,
    WEEKDAYS,
    YOU,
    Adjective,
    Noun,
    Phrase,
    Subject,
    Verb,
)
from keras_transformer.datasets.phrasebook.phrases import (
    Pair,
    as_subject,
    bare,
    counted,
    join,
    pointed,
    present,
    question,
    statement,
    the,
)

Date = tuple[int, Phrase]

_TENER, _COSTAR = Verb("tener", "have"), Verb("costar", "cost")
_YEAR, _EURO, _DEGREE = Noun("año", "m", "year"), Noun("euro", "m", "euro"), Noun("grado", "m", "degree")
_COUNTED_INDOORS = (
    *(noun for noun in FURNITURE if noun.es not in ("cama", "caja")),
    Noun("libro", "m", "book"),
    Noun("persona", "f", "person"),
)
_ELDERS = ("padre", "madre", "abuelo", "abuela", "padres", "abuelos", "jefe")
_CHEAP = (*FOODS, *DISHES, *(noun for noun in OBJECTS if noun.es in ("lápiz", "taza")))
_ONCE = tuple(noun for noun in EVENTS if noun.es != "clase")
_OFFSETS = (0, 5, 10, 15, 20, 25, 30, -25, -20, -15, -10, -5)
_PARTS_OF_DAY = (
    (Phrase(), range(1, 13)),
    (Phrase("de la mañana", "in the morning"), range(6, 12)),
    (Phrase("de la tarde", "in the afternoon"), range(1, 7)),
    (Phrase("de la noche", "in the evening"), range(8, 11)),
)
_TIMES = tuple(
    (hour, offset, part)
    for part, hours in _PARTS_OF_DAY
    for hour in hours
    for offset in _OFFSETS
    # A quarter to eight is still afternoon in Spain.
    if not (part.es == "de la noche" and hour == 8 and offset < 0)
)
_SCHEDULED = (
    *((noun, Verb(*verb)) for noun in VEHICLES[:3] for verb in (("salir", "leave"), ("llegar", "arrive"))),
    *((noun, Verb(*verb)) for noun in EVENTS for verb in (("empezar", "start"), ("terminar", "end"))),
    *((noun, Verb(*verb)) for noun in SHOPS for verb in (("abrir", "open"), ("cerrar", "close"))),
)
_DATES = tuple(
    (day, month)
    for month, days in zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True)
    for day in range(1, days + 1)
)
_WARM_MONTHS = ("mayo", "junio", "julio", "agosto", "septiembre")
_COLD_MONTHS = ("noviembre", "diciembre", "enero", "febrero")
_WARM = (
    (Phrase("calor", "hot"), "it"),
    (Phrase("sol", "sunny"), "it"),
    (Phrase("buen tiempo", "good"), "the weather"),
)
_COLD = (
    (Phrase("frío", "cold"), "it"),
    (Phrase("viento", "windy"), "it"),
    (Phrase("mal tiempo", "bad"), "the weather"),
)
_WHEN_WEATHER = (
    *(((Phrase("hoy", "today"), "hace", "is"), condition) for condition in (*_WARM, *_COLD)),
    *(((Phrase("ayer", "yesterday"), "hizo", "was"), condition) for condition in (*_WARM, *_COLD)),
    *(
        ((Phrase("mañana", "tomorrow"), "va a hacer", "is going to be"), condition)
        for condition in (*_WARM, *_COLD)
    ),
    *(
        ((Phrase(f"en {m.es}", f"in {m.en}"), "hace", "is"), c)
        for m in MONTHS
        if m.es in _WARM_MONTHS
        for c in _WARM
    ),
    *(
        ((Phrase(f"en {m.es}", f"in {m.en}"), "hace", "is"), c)
        for m in MONTHS
        if m.es in _COLD_MONTHS
        for c in _COLD
    ),
)


def possessions(subject: Subject, value: int, noun: Noun, adjective: Adjective | None) -> Pair:
    """Ana tiene tres camisas rojas."""
    return statement(present(subject, _TENER), counted(value, noun, adjective))


def there_are(value: int, noun: Noun, place: Noun) -> Pair:
    """Hay veintiuna sillas en la oficina."""
    where = the(place)
    return statement(
        Phrase("hay", "there are"), counted(value, noun), Phrase(f"en {where.es}", f"in {where.en}")
    )


def _how_many(noun: Noun) -> Phrase:
    """The question word, agreeing with the noun."""
    word = bare(noun, many=True)
    return Phrase(f"{'cuántas' if noun.gender == 'f' else 'cuántos'} {word.es}", f"how many {word.en}")


def how_many_there(noun: Noun, place: Noun) -> Pair:
    """¿Cuántas sillas hay en la oficina?"""
    where = the(place)
    return question(_how_many(noun), Phrase(f"hay en {where.es}", f"are there in {where.en}"))


def how_many_owned(noun: Noun, subject: Subject) -> Pair:
    """¿Cuántos libros tiene tu hermano?"""
    verb = spanish.present("tener", subject.person)
    owner = f"{verb} {subject.es}".strip()
    return question(_how_many(noun), Phrase(owner, f"{english.to_do(subject.person)} {subject.en} have"))


def age(subject: Subject, value: int) -> Pair | None:
    """Mi hermano tiene treinta y dos años."""
    if (subject.es.split()[-1:] or [""])[0] in _ELDERS and value < 40:
        return None
    years = counted(value, _YEAR)
    return statement(
        Phrase(present(subject, _TENER).es, f"{subject.en} {english.to_be(subject.person)}"),
        Phrase(years.es, f"{years.en} old"),
    )


def age_asked(subject: Subject) -> Pair:
    """¿Cuántos años tiene Ana?"""
    verb = spanish.present("tener", subject.person)
    return question(
        Phrase(
            f"cuántos años {verb} {subject.es}".strip(),
            f"how old {english.to_be(subject.person)} {subject.en}",
        )
    )


def price(noun: Noun, many: bool, euros: int, cents: int) -> Pair | None:
    """La camisa cuesta treinta y dos euros con cincuenta."""
    if noun in _CHEAP and euros > 5:
        return None
    subject = as_subject(the(noun, many), noun.gender, many)
    amount = counted(euros, _EURO)
    rest = Phrase(f"con {spanish.number(cents)}", f"and {english.number(cents)} cents") if cents else Phrase()
    return statement(present(subject, _COSTAR), amount, rest)


def price_asked(noun: Noun, many: bool, which: str) -> Pair:
    """¿Cuánto cuestan estos zapatos?"""
    phrase = pointed(which, noun, many) if which else the(noun, many)
    verb, auxiliary = ("cuestan", "do") if many else ("cuesta", "does")
    return question(Phrase(f"cuánto {verb} {phrase.es}", f"how much {auxiliary} {phrase.en} cost"))


def time(hour: int, offset: int, part: Phrase) -> Phrase:
    """The time of day: `las tres y cuarto de la tarde`; a negative offset counts to the hour."""
    minutes = abs(offset)
    spanish_minutes = {15: "cuarto", 30: "media"}.get(minutes, spanish.number(minutes))
    english_minutes = {15: "a quarter", 30: "half"}.get(minutes, english.number(minutes))
    es = "la una" if hour == 1 else f"las {spanish.number(hour)}"
    if not offset:
        return join(Phrase(es, f"{english.number(hour)} o'clock"), part)
    sign, relation = ("y", "past") if offset > 0 else ("menos", "to")
    return join(
        Phrase(f"{es} {sign} {spanish_minutes}", f"{english_minutes} {relation} {english.number(hour)}"), part
    )


def clock(when: tuple[int, int, Phrase]) -> Pair:
    """Son las tres y cuarto."""
    return statement(Phrase("es" if when[0] == 1 else "son", "it is"), time(*when))


def timetable(case: tuple[Noun, Verb], when: tuple[int, int, Phrase]) -> Pair:
    """El tren sale a las ocho y media de la mañana."""
    noun, verb = case
    if (verb.en, when[2].en) in (("open", "in the evening"), ("close", "in the morning")):
        return None
    at = time(*when)
    return statement(present(as_subject(the(noun), noun.gender), verb), Phrase(f"a {at.es}", f"at {at.en}"))


def timetable_asked(case: tuple[Noun, Verb], day: Phrase) -> Pair:
    """¿A qué hora sale el tren los lunes?"""
    noun, verb = case
    if noun in _ONCE and day.es:
        return None
    phrase = the(noun)
    return question(
        Phrase(
            f"a qué hora {spanish.present(verb.es, spanish.EL)} {phrase.es}",
            f"what time does {phrase.en} {verb.en}",
        ),
        day,
    )


def _date(date: Date) -> Phrase:
    """Day and month: `tres de mayo` May third."""
    day, month = date
    return Phrase(f"{spanish.number(day)} de {month.es}", f"{month.en} {english.ordinal(day)}")


def today(when: Phrase, weekday: Phrase, date: Date) -> Pair:
    """Hoy es lunes, tres de mayo."""
    day = _date(date)
    return statement(when, Phrase(f"es {weekday.es}, {day.es}", f"is {weekday.en}, {day.en}"))


def birthday(owner: Subject, date: Date) -> Pair:
    """El cumpleaños de Ana es el tres de mayo."""
    day = _date(date)
    if owner == ME:
        whose = Phrase("mi cumpleaños", "my birthday")
    elif owner == YOU:
        whose = Phrase("tu cumpleaños", "your birthday")
    else:
        whose = Phrase(f"el cumpleaños de {owner.es}", f"{english.possessive(owner.en)} birthday")
    return statement(whose, Phrase(f"es el {day.es}", f"is on {day.en}"))


def event_date(noun: Noun, date: Date) -> Pair:
    """El concierto es el tres de mayo."""
    day, phrase = _date(date), the(noun)
    return statement(Phrase(f"{phrase.es} es el {day.es}", f"{phrase.en} is on {day.en}"))


def temperature(city: Phrase, value: int, when: Phrase) -> Pair:
    """Hoy la temperatura en Madrid es de treinta y un grados."""
    degrees = counted(value, _DEGREE)
    where = Phrase(f"la temperatura en {city.es} es de", f"the temperature in {city.en} is")
    return statement(when, where, degrees)


def weather(
    case: tuple[tuple[Phrase, str, str], tuple[Phrase, str]], city: Phrase, much: bool
) -> Pair | None:
    """En enero hace mucho frío en Madrid."""
    (when, verb, to_be), (condition, subject) = case
    if much and subject != "it":
        return None
    degree = Phrase("mucho", "very") if much else Phrase()
    return statement(
        when, Phrase(verb, f"{subject} {to_be}"), degree, condition, Phrase(f"en {city.es}", f"in {city.en}")
    )


_MANY = (False, True)
_OWNABLE = (*CLOTHES, *OBJECTS)
_PRICED = tuple(noun for noun in (*CLOTHES, *OBJECTS, *FOODS, *DISHES) if noun.es != "coche")
_CENTS = (0, 20, 25, 50, 75, 90)
FAMILIES = (
    Family("possessions", 490, possessions, (EVERYONE, range(2, 13), _OWNABLE, (None, *COLORS))),
    Family("counts", 490, there_are, ((*range(2, 61), 21, 21, 21), _COUNTED_INDOORS, INDOORS)),
    Family("counts asked", 80, how_many_there, (_COUNTED_INDOORS, INDOORS)),
    Family("possessions asked", 210, how_many_owned, (_OWNABLE, ASKED)),
    Family("ages", 420, age, (EVERYONE, range(2, 61))),
    Family("ages asked", 40, age_asked, (ASKED,)),
    Family("prices", 490, price, (_PRICED, _MANY, range(2, 61), _CENTS)),
    Family("prices asked", 200, price_asked, (_PRICED, _MANY, ("", "this", "that"))),
    Family("clock", 280, clock, (_TIMES,)),
    Family("timetables", 490, timetable, (_SCHEDULED, _TIMES)),
    Family("timetables asked", 170, timetable_asked, (_SCHEDULED, (Phrase(), *ON_WEEKDAYS))),
    Family(
        "calendar", 420, today, ((Phrase("hoy", "today"), Phrase("mañana", "tomorrow")), WEEKDAYS, _DATES)
    ),
    Family("birthdays", 320, birthday, ((ME, YOU, *NAMED, *MINE[:14]), _DATES)),
    Family("event dates", 200, event_date, (_ONCE, _DATES)),
    Family("temperatures", 240, temperature, (CITIES, range(2, 41), (Phrase(), Phrase("hoy", "today")))),
    Family("weather", 320, weather, (_WHEN_WEATHER, CITIES, _MANY)),
)
