"""Sentences for the restaurant, the hotel and the shop, and greetings."""

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.families import Family
from keras_transformer.datasets.phrasebook.lexicon import (
    CLOTHES,
    COLORS,
    CONTAINERS,
    DISHES,
    DRINKS,
    EVERYONE,
    FOODS,
    NAMES,
    OBJECTS,
    TABLEWARE,
    WEEKDAYS,
    Adjective,
    Noun,
    Phrase,
    Subject,
    Verb,
)
from keras_transformer.datasets.phrasebook.phrases import (
    Pair,
    a,
    counted,
    exclamation,
    pointed,
    progressive,
    question,
    statement,
)

_SERVED_IN = {
    "botella": ("agua", "leche", "zumo", "vino"),
    "vaso": ("agua", "leche", "zumo", "vino"),
    "taza": ("café", "té", "leche"),
}
_SERVINGS = tuple(
    (container, drink) for container in CONTAINERS for drink in DRINKS if drink.es in _SERVED_IN[container.es]
)
_ORDERERS = (
    Phrase("quiero", "I want"),
    Phrase("queremos", "we want"),
    Phrase("para mí,", "for me,"),
    Phrase("me gustaría pedir", "I would like to order"),
)
_BOOKERS = (
    Phrase("quiero reservar", "I want to book"),
    Phrase("queremos reservar", "we want to book"),
    Phrase("me gustaría reservar", "I would like to book"),
)
_PLEASE = Phrase("por favor", "please")
_PERSON, _NIGHT = Noun("persona", "f", "person"), Noun("noche", "f", "night")
_FEATURES = (
    Phrase(),
    Phrase("con balcón", "with a balcony"),
    Phrase("con baño", "with a bathroom"),
    Phrase("con vistas al mar", "with a sea view"),
    Phrase("con aire acondicionado", "with air conditioning"),
)
_GREETINGS = (
    Phrase("buenos días", "good morning"),
    Phrase("buenas tardes", "good afternoon"),
    Phrase("buenas noches", "good night"),
    Phrase("hola", "hello"),
    Phrase("adiós", "goodbye"),
    Phrase("hasta mañana", "see you tomorrow"),
    Phrase("hasta luego", "see you later"),
    Phrase("muchas gracias", "thank you very much"),
    Phrase("lo siento", "I am sorry"),
)
_FRUITS = tuple(noun for noun in FOODS if noun.es in ("manzana", "naranja", "plátano"))
# One looks for a pair of shoes.
_SOUGHT = tuple(noun for noun in (*CLOTHES, *OBJECTS) if noun.es != "zapato")
Serving = tuple[Noun, Noun]


def _please(es: str, en: str) -> Phrase:
    """The request with please at its end."""
    return Phrase(f"{es}, {_PLEASE.es}", f"{en}, {_PLEASE.en}")


def _filled(serving: Serving) -> Phrase:
    """What follows the container: `de agua` of water."""
    return Phrase(f"de {serving[1].es}", f"of {serving[1].en}")


def order(orderer: Phrase, dish: Noun, serving: Serving) -> Pair:
    """Quiero una ensalada y un vaso de agua, por favor."""
    food, drink, content = a(dish), a(serving[0]), _filled(serving)
    return statement(
        orderer,
        _please(
            f"{food.es} {spanish.after_y(drink.es)} {content.es}", f"{food.en} and {drink.en} {content.en}"
        ),
    )


def dishes(orderer: Phrase, one: Noun, other: Noun, count: int) -> Pair | None:
    """Queremos dos sopas y una ensalada, por favor."""
    if one == other:
        return None
    first, second = counted(count, one), a(other)
    return statement(
        orderer, _please(f"{first.es} {spanish.after_y(second.es)}", f"{first.en} and {second.en}")
    )


def bring(whom: Phrase, serving: Serving, amount: int) -> Pair:
    """¿Puedes traerme otra botella de agua, por favor?"""
    container, content = serving[0], _filled(serving)
    if amount == 1:
        phrase = a(container)
    elif amount:
        phrase = counted(amount, container)
    else:
        phrase = Phrase(
            f"{spanish.agree('otro', container.gender)} {container.es}", f"another {container.en}"
        )
    return question(
        Phrase(f"puedes traer{whom.es}", f"can you bring {whom.en}"),
        _please(f"{phrase.es} {content.es}", f"{phrase.en} {content.en}"),
    )


def tableware(whom: Phrase, noun: Noun, amount: int) -> Pair:
    """¿Puedes traernos otro tenedor, por favor?"""
    other = Phrase(f"{spanish.agree('otro', noun.gender)} {noun.es}", f"another {noun.en}")
    phrase = counted(amount, noun) if amount else other
    return question(Phrase(f"puedes traer{whom.es}", f"can you bring {whom.en}"), _please(*phrase))


def table(booker: Phrase, guests: int, day: Phrase, hour: int) -> Pair:
    """Quiero reservar una mesa para cuatro personas el viernes a las nueve."""
    people = counted(guests, _PERSON)
    return statement(
        booker,
        Phrase(f"una mesa para {people.es}", f"a table for {people.en}"),
        Phrase(f"el {day.es}", f"on {day.en}"),
        Phrase(f"a las {spanish.number(hour)}", f"at {english.number(hour)} o'clock"),
    )


def room(booker: Phrase, size: Phrase, feature: Phrase, nights: int) -> Pair:
    """Quiero reservar una habitación doble con balcón para tres noches."""
    stay = counted(nights, _NIGHT)
    return statement(
        booker,
        Phrase(f"una habitación {size.es}", f"a {size.en} room"),
        feature,
        Phrase(f"para {stay.es}", f"for {stay.en}"),
    )


def search(subject: Subject, noun: Noun, adjective: Adjective) -> Pair:
    """Estoy buscando una falda roja."""
    return statement(progressive(subject, Verb("buscar", "look for")), a(noun, adjective))


def other_color(noun: Noun, many: bool, which: str, color: Adjective) -> Pair:
    """¿Tienes esta camisa en azul?"""
    phrase = pointed(which, noun, many)
    return question(Phrase("tienes", "do you have"), phrase, Phrase(f"en {color.es}", f"in {color.en}"))


def greeting(words: Phrase, name: str, loud: bool) -> Pair:
    """Buenos días, Ana."""
    phrase = Phrase(f"{words.es}, {name}", f"{words.en}, {name}")
    return exclamation(phrase) if loud else statement(phrase)


_MANY = (False, True)
_WHOM = (Phrase("me", "me"), Phrase("nos", "us"))
_ROOMS = (Phrase("individual", "single"), Phrase("doble", "double"))
FAMILIES = (
    Family("orders", 280, order, (_ORDERERS, DISHES, _SERVINGS)),
    Family("dishes", 240, dishes, (_ORDERERS, DISHES, (*DISHES, *_FRUITS), range(2, 7))),
    Family("requests", 150, bring, (_WHOM, _SERVINGS, range(7))),
    Family("tableware", 40, tableware, (_WHOM, TABLEWARE, (0, 2, 3, 4, 5, 6))),
    Family("tables", 280, table, (_BOOKERS, range(2, 13), WEEKDAYS, range(2, 12))),
    Family("rooms", 240, room, (_BOOKERS, _ROOMS, _FEATURES, range(1, 15))),
    Family("searches", 420, search, (EVERYONE, _SOUGHT, COLORS)),
    Family("other colors", 210, other_color, (CLOTHES, _MANY, ("this", "that"), COLORS)),
    Family("greetings", 130, greeting, (_GREETINGS, NAMES, _MANY)),
)
