"""The words: each Spanish entry with its one English equivalent, grouped by how sentences use them."""

from typing import NamedTuple

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.spanish import EL, ELLOS, NOSOTROS, TU, YO


class Phrase(NamedTuple):
    """The same piece of a sentence in both languages."""

    es: str = ""
    en: str = ""


class Noun(NamedTuple):
    """A noun in the singular; `gender` is "m" or "f"."""

    es: str
    gender: str
    en: str


class Adjective(NamedTuple):
    """An adjective; Spanish in the masculine singular."""

    es: str
    en: str


class Verb(NamedTuple):
    """A verb; Spanish infinitive and English base form, a particle included (`look for`)."""

    es: str
    en: str


class Subject(NamedTuple):
    """A subject as it stands before the verb; empty in Spanish where the verb form says who it is."""

    es: str
    en: str
    person: int
    gender: str = ""

    @property
    def many(self) -> bool:
        """Whether it is plural."""
        return self.person in (NOSOTROS, ELLOS)


class Action(NamedTuple):
    """A verb with its object or complement, which may be empty."""

    verb: Verb
    rest: Phrase


def _nouns(text: str) -> tuple[Noun, ...]:
    """Nouns from `Spanish gender English` items separated by commas; underscores stand for spaces."""
    rows = (row.split() for row in text.split(","))
    return tuple(Noun(es, gender, en.replace("_", " ")) for es, gender, en in rows)


def _phrases(text: str) -> tuple[Phrase, ...]:
    """Phrases from `Spanish = English` items separated by commas."""
    rows = (row.split("=") for row in text.split(","))
    return tuple(Phrase(es.strip(), en.strip()) for es, en in rows)


def _adjectives(text: str) -> tuple[Adjective, ...]:
    """Adjectives from `Spanish = English` items separated by commas."""
    return tuple(Adjective(*phrase) for phrase in _phrases(text))


def _actions(*rows: str) -> tuple[Action, ...]:
    """Actions from rows `infinitive = base: Spanish = English, ...`, one verb a row.

    Those of a verb with few objects are repeated, so that a sample holds enough of its forms.
    """
    actions: list[Action] = []
    for row in rows:
        verb, _, objects = row.partition(":")
        phrases = _phrases(objects)
        actions += [Action(Verb(*_phrases(verb)[0]), rest) for rest in phrases] * max(1, 6 // len(phrases))
    return tuple(actions)


CLOTHES = _nouns(
    "camisa f shirt, falda f skirt, vestido m dress, abrigo m coat, sombrero m hat, chaqueta f jacket, "
    "bolso m bag, zapato m shoe"
)
OBJECTS = _nouns(
    "libro m book, mesa f table, silla f chair, caja f box, maleta f suitcase, mochila f backpack, "
    "bicicleta f bicycle, coche m car, reloj m watch, teléfono m phone, paraguas m umbrella, taza f cup, "
    "lápiz m pencil, guitarra f guitar"
)
SMALL_OBJECTS = tuple(
    noun for noun in OBJECTS if noun.es in ("libro", "reloj", "teléfono", "paraguas", "taza", "lápiz")
) + _nouns("llave f key, cuchillo m knife, tenedor m fork, carta f letter, sombrero m hat")
FURNITURE = _nouns("mesa f table, silla f chair, caja f box, puerta f door, cama f bed, ventana f window")
LUGGAGE = _nouns("caja f box, maleta f suitcase, mochila f backpack, bolso m bag")
ANIMALS = _nouns("perro m dog, gato m cat, caballo m horse, pájaro m bird, ratón m mouse")
PLACES = _nouns(
    "hotel m hotel, museo m museum, banco m bank, mercado m market, parque m park, plaza f square, "
    "playa f beach, estación f station, hospital m hospital, farmacia f pharmacy, teatro m theater, "
    "restaurante m restaurant, supermercado m supermarket, biblioteca f library, aeropuerto m airport, "
    "universidad f university, oficina f office, iglesia f church"
)
LANDMARKS = (*PLACES, *_nouns("puente m bridge, semáforo m traffic_light"))
SHOPS = tuple(
    noun
    for noun in PLACES
    if noun.es in ("museo", "banco", "mercado", "farmacia", "supermercado", "biblioteca")
)
INDOORS = tuple(
    noun for noun in PLACES if noun.es in ("hotel", "museo", "restaurante", "biblioteca", "oficina")
)
VEHICLES = _nouns("tren m train, autobús m bus, avión m plane, coche m car, bicicleta f bicycle")
EVENTS = _nouns("concierto m concert, película f movie, clase f class, fiesta f party")

FOODS = _nouns(
    "manzana f apple, naranja f orange, tomate m tomato, patata f potato, huevo m egg, plátano m banana"
)
DISHES = _nouns("ensalada f salad, sopa f soup, bocadillo m sandwich, pastel m cake, helado m ice_cream")
MEALS = _nouns(
    "pan m bread, carne f meat, pescado m fish, queso m cheese, arroz m rice, pollo m chicken, fruta f fruit"
)
DRINKS = _nouns(
    "agua f water, leche f milk, café m coffee, té m tea, zumo m juice, vino m wine, cerveza f beer"
)
CONTAINERS = _nouns("botella f bottle, vaso m glass, taza f cup")
TABLEWARE = _nouns("cuchillo m knife, tenedor m fork, vaso m glass")

COLORS = _adjectives(
    "rojo = red, blanco = white, negro = black, amarillo = yellow, verde = green, azul = blue, gris = gray, "
    "marrón = brown"
)
LOOKS = _adjectives("grande = big, pequeño = small, nuevo = new, viejo = old, bonito = pretty")
PRICES = _adjectives("caro = expensive, barato = cheap")
PLACE_QUALITIES = _adjectives(
    "grande = big, pequeño = small, nuevo = new, bonito = pretty, moderno = modern, famoso = famous, "
    "tranquilo = quiet"
)
STATES = _adjectives(
    "cansado = tired, contento = happy, enfermo = sick, ocupado = busy, enfadado = angry, "
    "triste = sad, listo = ready"
)
CHARACTERS = _adjectives(
    "alto = tall, joven = young, simpático = nice, amable = kind, fuerte = strong, tranquilo = quiet"
)
NATIONALITIES = _adjectives("español = Spanish, inglés = English, francés = French, alemán = German")
LANGUAGES = tuple(Phrase(word.es, word.en) for word in NATIONALITIES)
PROFESSIONS = _adjectives(
    "médico = doctor, profesor = teacher, abogado = lawyer, cocinero = cook, dentista = dentist, "
    "periodista = journalist"
)
BODY = _nouns("cabeza f head, espalda f back, estómago m stomach, mano f hand, pierna f leg, pie m foot")

_RELATIVES = _nouns(
    "hermano m brother, hermana f sister, padre m father, madre f mother, abuelo m grandfather, "
    "abuela f grandmother, hijo m son, hija f daughter, tío m uncle, tía f aunt, amigo m friend, "
    "vecino m neighbor, "
    "profesor m teacher, jefe m boss"
)
_GROUPS = _phrases(
    "padres = parents, abuelos = grandparents, hijos = children, amigos = friends, vecinos = neighbors"
)


def _relatives(masculine: str, feminine: str, english: str) -> tuple[Subject, ...]:
    """The relatives and friends of one owner, given the possessive in both genders."""
    one = tuple(
        Subject(
            f"{feminine if noun.gender == 'f' else masculine} {noun.es}",
            f"{english} {noun.en}",
            EL,
            noun.gender,
        )
        for noun in _RELATIVES
    )
    return one + tuple(
        Subject(f"{masculine}s {group.es}", f"{english} {group.en}", ELLOS, "m") for group in _GROUPS
    )


# Spanish keeps the pronoun only where the verb form leaves the person open.
ME = Subject("", "I", YO)
YOU = Subject("", "you", TU)
WE = Subject("", "we", NOSOTROS)
HE = Subject("él", "he", EL, "m")
SHE = Subject("ella", "she", EL, "f")
THEY = Subject("ellos", "they", ELLOS, "m")
NAMES = ("Ana", "Pedro", "Elena", "Pablo", "María", "Juan")
NAMED = tuple(Subject(name, name, EL, "f" if name.endswith("a") else "m") for name in NAMES)
MINE = _relatives("mi", "mi", "my")
YOURS = _relatives("tu", "tu", "your")
OURS = _relatives("nuestro", "nuestra", "our")
SPEAKERS = (ME, YOU, WE)
OTHERS = (HE, SHE, THEY, *NAMED, *MINE)
# The speakers are repeated, so that a sample holds enough of their verb forms.
EVERYONE = (*(SPEAKERS * 5), *OTHERS)
# Questions are put to someone: they ask about that person and theirs, not about the one who asks.
ASKED = (*((YOU,) * 5), HE, SHE, THEY, *NAMED, *YOURS)

IR = Verb("ir", "go")
ROUTINES = _actions(
    "comer = eat: carne = meat, pescado = fish, arroz = rice, fruta = fruit, pan = bread, queso = cheese, "
    "pollo = chicken, manzanas = apples, naranjas = oranges, huevos = eggs",
    "beber = drink: agua = water, leche = milk, café = coffee, té = tea, zumo = juice, vino = wine, "
    "cerveza = beer",
    "comprar = buy: pan = bread, leche = milk, fruta = fruit, flores = flowers, pescado = fish, "
    "huevos = eggs, "
    "el periódico = the newspaper",
    "leer = read: libros = books, el periódico = the newspaper",
    "escribir = write: cartas = letters",
    "ver = watch: la televisión = television, películas = movies",
    "limpiar = clean: la casa = the house, la cocina = the kitchen, el baño = the bathroom",
    "estudiar = study: inglés = English, francés = French, español = Spanish, alemán = German, música "
    "= music",
    "tocar = play: la guitarra = the guitar, el piano = the piano",
    "jugar = play: al fútbol = soccer, al tenis = tennis",
    "trabajar = work: en la oficina = in the office, en casa = at home, en el jardín = in the garden",
)
OCCASIONS = _actions(
    "comprar = buy: una camisa = a shirt, una falda = a skirt, un vestido = a dress, un abrigo = a coat, "
    "un libro = a book, una mesa = a table, un reloj = a watch, una guitarra = a guitar, un coche = a car",
    "leer = read: un libro = a book, la carta = the letter, el periódico = the newspaper",
    "escribir = write: una carta = a letter",
    "visitar = visit: el museo = the museum, la universidad = the university, la iglesia = the church, "
    "la biblioteca = the library",
    "limpiar = clean: la habitación = the room, las ventanas = the windows",
)
LOSSES = _actions(
    "perder = lose: las llaves = the keys, el libro = the book, el paraguas = the umbrella, la maleta "
    "= the suitcase, "
    "el teléfono = the phone, el reloj = the watch"
)
CONTACTS = tuple(Verb(*row) for row in _phrases("visitar = visit, llamar = call, ver = see"))
MODALS = _phrases("querer = want to, poder = can, tener que = have to, necesitar = need to")
ACTIVITIES = _phrases(
    "leer = to read, ver la televisión = to watch television, jugar al fútbol = to play soccer, "
    "jugar al tenis = to play tennis, tocar la guitarra = to play the guitar, escribir cartas = to "
    "write letters, "
    "estudiar = to study, trabajar = to work, viajar = to travel, viajar en tren = to travel by train"
)
FEELINGS = _phrases(
    "hambre = hungry, sed = thirsty, frío = cold, calor = hot, sueño = sleepy, miedo = afraid, prisa "
    "= in a hurry"
)

WEEKDAYS = _phrases(
    "lunes = Monday, martes = Tuesday, miércoles = Wednesday, jueves = Thursday, viernes = Friday, "
    "sábado = Saturday, domingo = Sunday"
)
ON_WEEKDAYS = tuple(
    Phrase(f"los {spanish.plural(day.es)}", f"on {english.plural(day.en)}") for day in WEEKDAYS
)
MONTHS = _phrases(
    "enero = January, febrero = February, marzo = March, abril = April, mayo = May, junio = June, "
    "julio = July, "
    "agosto = August, septiembre = September, octubre = October, noviembre = November, diciembre = December"
)
CITIES = _phrases(
    "Madrid = Madrid, Sevilla = Seville, Londres = London, París = Paris, Roma = Rome, Lisboa = Lisbon, "
    "Nueva York = New York, Barcelona = Barcelona"
)
COUNTRIES = _phrases(
    "España = Spain, Francia = France, Italia = Italy, Alemania = Germany, Inglaterra = England, "
    "Portugal = Portugal, "
    "México = Mexico, Argentina = Argentina"
)
TRANSPORT = _phrases(
    "en tren = by train, en autobús = by bus, en coche = by car, en bicicleta = by bicycle, a pie = on foot"
)
