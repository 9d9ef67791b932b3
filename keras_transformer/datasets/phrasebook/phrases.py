"""Noun phrases, clauses and sentences, built in both languages at once."""

from keras_transformer.datasets.phrasebook import english, spanish
from keras_transformer.datasets.phrasebook.lexicon import Adjective, Noun, Phrase, Subject, Verb
from keras_transformer.datasets.phrasebook.spanish import ELLOS, NOSOTROS

Pair = tuple[str, str]

_DEMONSTRATIVES = {"this": ("este", "esta"), "that": ("ese", "esa")}
_ENGLISH_PLURALS = {"this": "these", "that": "those"}
_POSSESSIVES = {"my": ("mi", "mi"), "your": ("tu", "tu"), "our": ("nuestro", "nuestra")}


def join(*phrases: Phrase) -> Phrase:
    """The phrases one after another, in both languages; empty ones leave nothing."""
    return Phrase(" ".join(p.es for p in phrases if p.es), " ".join(p.en for p in phrases if p.en))


def bare(noun: Noun, many: bool = False) -> Phrase:
    """The noun alone: `manzanas` apples."""
    return Phrase(spanish.plural(noun.es) if many else noun.es, english.plural(noun.en) if many else noun.en)


def the(noun: Noun, many: bool = False) -> Phrase:
    """The noun with the definite article."""
    word = bare(noun, many)
    return Phrase(f"{spanish.definite_article(noun.es, noun.gender, many)} {word.es}", f"the {word.en}")


def kind(noun: Noun, many: bool = False) -> Phrase:
    """The noun in general: `el café` coffee, `las manzanas` apples."""
    return Phrase(the(noun, many).es, bare(noun, many).en)


def described(noun: Noun, adjective: Adjective | None = None, many: bool = False) -> Phrase:
    """The noun with an adjective, after it in Spanish and before it in English; no article."""
    word = bare(noun, many)
    if adjective is None:
        return word
    return Phrase(f"{word.es} {spanish.agree(adjective.es, noun.gender, many)}", f"{adjective.en} {word.en}")


def a(noun: Noun, adjective: Adjective | None = None) -> Phrase:
    """The noun, perhaps with an adjective, after the indefinite article."""
    phrase = described(noun, adjective)
    article = spanish.indefinite_article(noun.es, noun.gender)
    return Phrase(f"{article} {phrase.es}", english.with_article(phrase.en))


def counted(value: int, noun: Noun, adjective: Adjective | None = None) -> Phrase:
    """A number of things: `veintiuna sillas rojas` twenty-one red chairs."""
    phrase = described(noun, adjective, many=value != 1)
    return Phrase(f"{spanish.number(value, noun.gender)} {phrase.es}", f"{english.number(value)} {phrase.en}")


def pointed(which: str, noun: Noun, many: bool = False) -> Phrase:
    """The noun after a demonstrative; `which` is "this" or "that"."""
    word = bare(noun, many)
    masculine, feminine = _DEMONSTRATIVES[which]
    singular = feminine if noun.gender == "f" else masculine
    # este and ese make their plural on -o-: estos, esos.
    determiner = (feminine + "s" if noun.gender == "f" else masculine[:-1] + "os") if many else singular
    return Phrase(f"{determiner} {word.es}", f"{_ENGLISH_PLURALS[which] if many else which} {word.en}")


def owned(owner: str, noun: Noun, many: bool = False) -> Phrase:
    """The noun after a possessive; `owner` is "my", "your" or "our"."""
    word = bare(noun, many)
    masculine, feminine = _POSSESSIVES[owner]
    determiner = feminine if noun.gender == "f" else masculine
    return Phrase(f"{determiner}{'s' if many else ''} {word.es}", f"{owner} {word.en}")


def of_owner(noun: Noun, owner: Subject, many: bool = False) -> Phrase:
    """The noun of someone: `el coche de Ana` Ana's car."""
    return Phrase(
        f"{the(noun, many).es} {spanish.after_de(owner.es)}",
        f"{english.possessive(owner.en)} {bare(noun, many).en}",
    )


def to(phrase: Phrase) -> Phrase:
    """The phrase as a destination: `al museo` to the museum."""
    return Phrase(spanish.after_a(phrase.es), f"to {phrase.en}")


def inflected(adjective: Adjective, gender: str, many: bool = False) -> Phrase:
    """The adjective as a predicate, agreeing in Spanish."""
    return Phrase(spanish.agree(adjective.es, gender, many), adjective.en)


def _no(negative: bool) -> str:
    return "no" if negative else ""


def _negation(negative: bool) -> str:
    return "not" if negative else ""


def _spaced(*words: str) -> str:
    return " ".join(word for word in words if word)


def as_subject(phrase: Phrase, gender: str, many: bool = False) -> Subject:
    """A noun phrase as the subject of a clause."""
    return Subject(phrase.es, phrase.en, ELLOS if many else spanish.EL, gender)


def be(subject: Subject, verb: str, negative: bool = False) -> Phrase:
    """The subject with ser, estar, or tener before a sensation, and the English to be."""
    return Phrase(
        _spaced(subject.es, _no(negative), spanish.present(verb, subject.person)),
        _spaced(subject.en, english.to_be(subject.person), _negation(negative)),
    )


def present(subject: Subject, verb: Verb, negative: bool = False) -> Phrase:
    """The subject with a verb in the simple present; English negates with do."""
    person = subject.person
    verbs = f"{english.to_do(person)} not {verb.en}" if negative else english.present(verb.en, person)
    return Phrase(
        _spaced(subject.es, _no(negative), spanish.present(verb.es, person)), f"{subject.en} {verbs}"
    )


def past(subject: Subject, verb: Verb, negative: bool = False) -> Phrase:
    """The subject with a verb in the preterite and the simple past."""
    verbs = f"did not {verb.en}" if negative else english.past(verb.en)
    return Phrase(
        _spaced(subject.es, _no(negative), spanish.preterite(verb.es, subject.person)),
        f"{subject.en} {verbs}",
    )


def progressive(subject: Subject, verb: Verb, negative: bool = False) -> Phrase:
    """The subject doing something now: `está leyendo` is reading."""
    return join(be(subject, "estar", negative), Phrase(spanish.gerund(verb.es), english.participle(verb.en)))


def future(subject: Subject, verb: Verb, negative: bool = False) -> Phrase:
    """The subject going to do something: `va a leer` is going to read."""
    going = _spaced(subject.en, english.to_be(subject.person), _negation(negative), "going to", verb.en)
    return Phrase(
        _spaced(subject.es, _no(negative), spanish.present("ir", subject.person), "a", verb.es), going
    )


def asked(subject: Subject, verb: Verb, tense: str = "present") -> Phrase:
    """A yes-or-no question in the present or the past; Spanish keeps the order of the statement."""
    conjugate = spanish.preterite if tense == "past" else spanish.present
    auxiliary = "did" if tense == "past" else english.to_do(subject.person)
    return Phrase(
        _spaced(subject.es, conjugate(verb.es, subject.person)), f"{auxiliary} {subject.en} {verb.en}"
    )


def is_open_in_time(subject: Subject, verb: Verb) -> bool:
    """Whether the Spanish form is both present and preterite, as `compramos` is."""
    return subject.person == NOSOTROS and (
        spanish.present(verb.es, NOSOTROS) == spanish.preterite(verb.es, NOSOTROS)
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def statement(*phrases: Phrase) -> Pair:
    """The phrases as a sentence with a full stop."""
    es, en = join(*phrases)
    return f"{_capital(es)}.", f"{_capital(en)}."


def question(*phrases: Phrase) -> Pair:
    """The phrases as a question."""
    es, en = join(*phrases)
    return f"¿{_capital(es)}?", f"{_capital(en)}?"


def exclamation(*phrases: Phrase) -> Pair:
    """The phrases as an exclamation."""
    es, en = join(*phrases)
    return f"¡{_capital(es)}!", f"{_capital(en)}!"
