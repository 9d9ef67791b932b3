"""Tags, placeholders and terms of glossaries in translations, of alignments at random and of functions as models."""

import collections
import html
import re
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from keras_transformer_serving.jobs import compute, run_one
from keras_transformer_serving.text import alignment, markup
from keras_transformer_serving.text.alignment import AlignedText, AlignedWord
from keras_transformer_serving.text.glossary import Glossary
from keras_transformer_serving.text.marked_text import MarkedText

FUZZ = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
INLINE = ("b", "i", "a", "span", "x-y")
BLOCK = ("div", "ul", "section")
# All tags, comments and placeholders that `HTML` generates.
MARK = re.compile(
    r"""<!--.*?-->|<script>.*?</script>|<(?:"[^"]*"|'[^']*'|[^'">])*>|\{\w*\}|%s|%\(\w+\)d|\$\{\w+\}""",
    re.DOTALL,
)
WORDS = st.sampled_from(["casa", "azul", "Él", "don't", "3.5", "家", "perro"])
STRINGS = st.lists(
    st.one_of(
        WORDS, st.sampled_from([" ", " ", ", ", ". ", "! ", "&amp;", "&nbsp;", "&lt;", " (", ")", "\n"])
    ),
    max_size=6,
).map("".join)
EMPTY = st.sampled_from(
    ["{name}", "{}", "%s", "%(n)d", "${x}", "<img src='a>b'/>", "<!-- <b> -->", "<wbr>", "<x/>"]
)
BREAKS = st.sampled_from(["<br>", "<p>", "</p>", "<hr/>", "<script>if (a<b) {x}</script>", "<li>"])


def element(inner, names):
    return st.builds(
        lambda name, attributes, content: f"<{name}{attributes}>{content}</{name}>",
        st.sampled_from(names),
        st.sampled_from(["", ' class="x > y"', " id=1"]),
        inner,
    )


INLINE_HTML = st.recursive(
    st.one_of(STRINGS, EMPTY),
    lambda inner: st.one_of(element(inner, INLINE), st.lists(inner, max_size=4).map("".join)),
    max_leaves=10,
)
HTML = st.recursive(
    st.one_of(INLINE_HTML, BREAKS),
    lambda inner: st.one_of(element(inner, BLOCK + INLINE), st.lists(inner, max_size=4).map("".join)),
    max_leaves=8,
)


def document_of(*arguments):
    return run_one(MarkedText.of(*arguments), {})


SKIPPED = re.compile(r"<!--.*?-->|<script>.*?</script>", re.DOTALL)


def is_nested(text):
    """Return whether the elements that `HTML` generates are nested."""
    opened = []
    for slash, name, rest in re.findall(
        r"<(/?)([a-z-]+)((?:\"[^\"]*\"|'[^']*'|[^'\">])*)>", SKIPPED.sub("", text)
    ):
        if name in ("p", "li", "br", "img", "wbr", "hr") or rest.endswith("/"):
            continue
        if not slash:
            opened.append(name)
        elif not opened or opened.pop() != name:
            return False
    return not opened


def translated(part, random):
    """Return the words of a part in another order, some of them omitted, repeated, or not aligned."""
    words = [(part[word.start : word.end], word) for word in alignment.words_of(part)]
    chosen = (
        [words[i] for i in random.integers(0, len(words), random.integers(0, 2 * len(words)))]
        if words
        else []
    )
    text, result = "", []
    for string, word in chosen:
        text += random.choice(["", " "]) if string in "!.,()&<" else " " if text else ""
        last = max(word, chosen[random.integers(0, len(chosen))][1])  # some are aligned with several words
        source = (
            (word.start, random.choice([word.end, word.end, last.end])) if random.random() < 0.8 else None
        )
        result.append(AlignedWord(len(text), len(text) + len(string), source))
        text += string
    return AlignedText(text, tuple(result))


# A percentage before a letter, and names of variables with the letters of a placeholder.
AMBIGUOUS = re.compile(r"\d[ \u00a0]?%s|%[\w.-]+%|%s\w")


def check(tag_handling, data, seed):
    """Each tag and placeholder is in the output once, nested; the rest is the translation of the parts."""
    text = data.draw(HTML if tag_handling == "html" else st.lists(st.one_of(STRINGS, EMPTY)).map("".join))
    assume(not AMBIGUOUS.search(text))
    random = np.random.default_rng(seed)
    document = document_of(text, tag_handling)
    outputs = [translated(part, random) for part in document.parts]
    output = document.join(outputs)
    if tag_handling == "html":
        assert collections.Counter(MARK.findall(output)) == collections.Counter(MARK.findall(text))
        assert is_nested(output)
        segments, between = markup.parse(text, "html")
        plain = html.unescape(MARK.sub("", output))
    else:
        placeholders = re.compile(r"\{\w*\}|%s|%\(\w+\)d|\$\{\w+\}")
        assert collections.Counter(placeholders.findall(output)) == collections.Counter(
            placeholders.findall(text)
        )
        segments, between = markup.parse(text, "placeholders")
        plain = placeholders.sub("", output)
        between = [placeholders.sub("", string) for string in between]
    strings = [html.unescape(MARK.sub("", between[0]))]
    for translation, after in zip(outputs if segments else [], between[1:], strict=True):
        strings += [translation.text, html.unescape(MARK.sub("", after))]
    assert "".join(plain.split()) == "".join("".join(strings).split())


each_handling = pytest.mark.parametrize("tag_handling", ["html", "placeholders"])


@each_handling
@FUZZ
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_each_tag_is_in_the_output_once_and_nested(tag_handling, data, seed):
    check(tag_handling, data, seed)


@pytest.mark.slow
@each_handling
@settings(FUZZ, max_examples=5000)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_5000_documents_have_each_tag_once_and_nested(tag_handling, data, seed):
    check(tag_handling, data, seed)


@FUZZ
@given(HTML)
def test_a_copied_document_keeps_its_tags_in_their_places(text):
    text = MARK.sub(r" \g<0> ", text)  # a tag within a word is moved to its start or end
    document = document_of(text, "html")
    output = document.join([alignment.copied(part) for part in document.parts])
    assert MARK.findall(output) == MARK.findall(text)
    # A tag beside punctuation may be on its other side.
    words = (re.sub(r"[.,!()\s]|&\w+;", "", string) for string in (output, text))
    assert len({*words}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "casa<b><b>,</b>{name}</b>",
        "<b>casa</b><b>,</b>{name}",
        "La casa<b>!</b>{name} <i>.</i>",
        "{name}<b>¡</b>casa",
        "<b>{name}<i>(</i>{n}</b>casa<i>)</i>{m}<i>.</i>",
    ],
)
def test_a_copy_keeps_the_order_of_tags_around_punctuation(text):
    document = document_of(text, "html")
    output = document.join([alignment.copied(part) for part in document.parts])
    assert MARK.findall(output) == MARK.findall(text)


DICTIONARY = {
    "la": "the",
    "casa": "house home",
    "azul": "blue",
    "de": "of",
    "juan": "john",
    "y": "and",
    "roja": "red",
}
ORDER = {"La casa azul de Juan": "John's blue house"}


def score(sources, target):
    """Score the words of a target by the number of source words that are translations of them."""
    words = [*re.finditer(r"\w+|[^\w\s]", target)]
    rows = []
    for source in sources:
        present = {
            translation
            for word in re.findall(r"\w+", source)
            for translation in DICTIONARY.get(word.casefold(), "").split()
        }
        rows.append([0.0 if word[0].casefold() in present else -9.0 for word in words])
    return np.array(rows), [word.end() for word in words]


def translate(text, output, tag_handling=None, entries=None, mode="hard"):
    document = document_of(text, tag_handling, None if entries is None else Glossary(entries, mode))
    (part,) = document.of_parts
    return document.join([scored_by(score, part.finish, output)])


def scored_by(score, function, *arguments):
    """Return the result of steps that score."""
    steps = function(*arguments, lambda *values: compute("score", values))
    return run_one(steps, {"score": lambda batch: [score(*values) for values in batch]})


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ("La <b>casa</b> azul", "the blue house", "the blue <b>house</b>"),
        ("La <b>casa <i>azul</i></b>.", "the blue house.", "the <b><i>blue</i> house</b>."),
        ("<b>La casa azul</b>.", "the blue house.", "<b>the blue house</b>."),
        ("<b>La casa azul.</b>", "the blue house.", "<b>the blue house.</b>"),
        ("La <b>casa</b> <i>azul</i>", "the blue house", "the <i>blue</i> <b>house</b>"),
        ("La casa {color} de Juan", "the house of john", "the house {color} of john"),
        ("La casa <img src='x'> azul", "the blue house", "the blue house <img src='x'>"),
        ("{n} casa, y %s!", "house, and!", "{n} house, and %s!"),
        ("La&nbsp;casa &lt; azul", "the blue < house", "the blue &lt; house"),
        ("<p>La <b>casa</b>", "the house", "<p>the <b>house</b>"),
        ("La <b>ca</b>sa azul", "the blue house", "the blue <b>house</b>"),
        ("La <span translate='no'>Acme</span> azul", "the blue", "the <span translate='no'>Acme</span> blue"),
        ("La <b></b>casa azul", "the blue house", "the blue <b></b>house"),
    ],
)
def test_tags_enclose_the_translations_of_their_words(text, output, expected):
    assert translate(text, output, "html") == expected


@pytest.mark.parametrize(
    ("text", "output", "entries", "expected"),
    [
        ("La casa azul", "the blue house", {"casa": "home"}, "the blue home"),
        ("La Casa azul", "the blue House", {"casa": "home"}, "the blue Home"),
        ("LA CASA AZUL", "THE BLUE HOUSE", {"casa": "home"}, "THE BLUE HOME"),
        ("Casa azul", "Blue house", {"casa": "home"}, "Blue home"),
        ("casa azul y roja", "House blue and red", {"casa": "home"}, "Home blue and red"),
        ("la casa azul", "the blue home", {"casa": "home"}, "the blue home"),
        ("la casa azul", "the blue house", {"cas": "x", "casas": "homes"}, "the blue house"),
        ("la casa azul", "the blue house", {"casa azul": "Blue House"}, "the Blue House"),
        ("la casa de Juan", "the house", {"juan": "Johnny"}, "the house Johnny"),
        ("la casa azul", "the blue house", {"casa": "Home", "azul": "red"}, "the red Home"),
    ],
)
def test_terms_of_a_glossary_replace_the_words_that_translate_them(text, output, entries, expected):
    assert translate(text, output, None, entries) == expected


@pytest.mark.parametrize(
    ("text", "terms", "found"),
    [
        ("On boit l'eau", {"eau": "water"}, ["eau"]),
        ("On boit l’Eau", {"EAU": "water"}, ["Eau"]),
        ("On boit l’eau", {"l'eau": "the water"}, ["l’eau"]),
        ("una casa-azul", {"azul": "blue"}, ["azul"]),
        ("una casa-azul", {"casa": "home", "casa-azul": "Blue House"}, ["casa-azul"]),
        ("una re\u0301union", {"réunion": "meeting"}, ["re\u0301union"]),
        ("una réunion", {"RE\u0301UNION": "meeting"}, ["réunion"]),
        ("\uff21\uff23\uff2d\uff25 ﬁn", {"acme": "Acme", "fin": "end"}, ["\uff21\uff23\uff2d\uff25", "ﬁn"]),
        ("I can't, he isn't", {"can": "tin", "is": "x"}, []),
        ("1,000 U.S.A", {"000": "x", "S": "x"}, []),
    ],
)
def test_terms_match_after_elisions_and_hyphens_in_every_form_of_unicode(text, terms, found):
    assert [text[term.start : term.end] for term in Glossary(terms).terms(text)] == found


def test_a_term_replaces_only_its_part_of_a_word():
    assert translate("la casa-azul", "the blue-house", None, {"casa": "home"}) == "the blue-home"
    assert translate("l'azul de Juan", "l'blue of john", None, {"azul": "ocean"}) == "l'ocean of john"
    assert translate("la casa", "the cafe\u0301", None, {"casa": "café"}) == "the cafe\u0301"


def test_a_term_is_not_placed_in_a_soft_glossary_if_it_is_improbable():
    assert translate("la casa azul", "the blue house", None, {"casa": "xyz"}, "soft") == "the blue house"
    assert translate("la casa azul", "the blue house", None, {"casa": "red"}, "soft") == "the blue house"
    assert translate("la casa azul", "the blue house", None, {"casa": "home"}, "soft") == "the blue home"


def kept(text, placeholders=None, tag_handling="placeholders"):
    """Return the placeholders of a text, in their order."""
    segments, _ = markup.parse(f"Hola {text} casa", tag_handling, placeholders)
    return [element.opening for segment in segments for element in segment.elements]


@pytest.mark.parametrize(
    "text",
    [
        *("%s", "%d", "%1$s", "%.2f", "%-5d", "%ld", "%@", "%%", "%s%s", "%d%%", "%dpx", "%%%s"),
        *(
            "%username",
            "%i18n_key",
            "%name",
            "%s_id",
            "%año",
            "%zu",
            "%'d",
            "%#x",
            "%2$*1$d",
            "%.*f",
            "%#@files@",
        ),
        *("%username%", "%user.name%", "$name", "${name}", "#{name}", "__NAME__", "__USER_ID__", "$NAME$"),
        *("$user.name", "$user->name", '$t(key, {"count": 1})'),
        *("{name}", "{0}", "{}", "{:.2f}", "{price:,.2f}", "{user.name!r:>10}", "{a[0]}", "%(name)s"),
        *("{a['b']}", "{when: %d %B}", "{0,10:N2}", "{0!r:>{width}}", "{x=}", "%(user name)s", "%(a.b)05d"),
        *("{{name}}", "{{ user.name | upper }}", "{% if a < b %}", "{# a comment #}", "%{name}", "%<name>s"),
        *("{{{name}}}", "{{{{raw}}}}", "{{ {'a': 1}['a'] }}", "%-<name>5s"),
        *("{n, number}", "{when, date, short}", "{n, plural, =0 {no items} one {{n} item} other {# items}}"),
        "{g, select, male {{n, plural, one {# <b>a</b>} other {#}}} other {x}}",
        *(
            "https://example.com/a?b=c&d=1#e",
            "www.example.com/a_(b)c",
            "http://a.b/España",
            "ada.b+c@mail.example.com",
            "HTTPS://Example.com/A",
            "WWW.EXAMPLE.COM",
            "sftp://a.b/c",
            "https://a.b/{id}/c?d=${e}&f={{g}}",
            "https://例え.jp/a",
            "mailto:ada@example.com",
            "tel:+34-900",
        ),
    ],
)
@each_handling
def test_placeholders_are_kept_whole(text, tag_handling):
    (*found,) = kept(text, None, tag_handling)
    assert "".join(found) == text
    assert len(found) == 1 + (text in ("%s%s", "%d%%", "%%%s"))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "100 % de",
            "20%de",
            "20 %ige",
            "50 %disponible",
            "$5",
            "US$",
            "{una casa}",
            "{a, b}",
            "{nota: sí}",
            "{nota: 5% de}",
        ),
        *(":name", "12:30", "@name", "__negrita__", "a_b__c", "http:", "a@b", "<3", "{", "}", "%"),
    ],
)
def test_other_texts_are_not_placeholders(text):
    assert kept(text) == []


def test_placeholders_are_chosen_by_name():
    text = "%s {n} :name @name https://a.b/:c?d=e me@a.b [[x]]"
    assert kept(text, ["printf"]) == ["%s"]
    assert kept("%username%, %sword, %sさん", ["printf"]) == ["%sword", "%s"]
    assert kept(text, ["colon", "at"]) == [":name", "@name"]
    assert kept(text, ["at", "url", re.compile(r"\[\[\w+\]\]")]) == [
        "@name",
        "https://a.b/:c?d=e",
        "me@a.b",
        "[[x]]",
    ]
    assert kept(text, [re.compile("n|z*")]) == ["n", "n", "n"]
    assert kept(text, []) == []
    own = re.compile(r"\{n\} :\w+")  # before a name that matches at the same place
    assert kept(text, ["icu", own]) == ["{n} :name"]
    for wrong in (["xml"], "url", [3], 3, [re.compile(b"a")]):
        with pytest.raises(ValueError, match=r"`placeholders` must be a list of names in \('jinja', "):
            kept(text, wrong)


def test_trailing_punctuation_is_not_part_of_an_address():
    text = "(https://a.b/c), ada@a.b. www.a.b! (https://a.b/c_(d)) https://a.bを見る http://"
    assert kept(text) == ["https://a.b/c", "ada@a.b", "www.a.b", "https://a.b/c_(d)", "https://a.b"]


@pytest.mark.parametrize(
    "part", ["{", "(", "%", "{'", "{{a", "a.", "https://(", "https://{", "$a.", "{a:%", "a@"]
)
def test_placeholders_are_found_in_time(part):
    start = time.process_time()
    kept(part * 20_000)
    assert time.process_time() - start < 5


def test_preformatted_text_keeps_its_lines():
    text = "<pre>Una  casa\n\n    <b>casa azul</b>\r\n  dos {x}\n<i>tres\ncuatro</i></pre>\n<p>una\ncasa</p>"
    document = document_of(text, "html")
    assert document.parts == ("Una casa", "casa azul", "dos", "tres", "cuatro", "una casa")
    copied = document.join([alignment.copied(part) for part in document.parts])
    assert copied == text.replace("Una  casa", "Una casa").replace("una\ncasa", "una casa")


def test_tags_and_terms_together():
    output = translate("La <b>casa</b> {x} azul", "the blue house", "html", {"casa": "nice home"})
    assert output == "the blue <b>nice home</b> {x}"


def test_invalid_tags_name_the_error_and_its_place():
    for text, message in (
        ("a <b>x", "must have an end tag for each start tag. Received: none for <b> at character 2"),
        (
            "<b><i>x</b></i>",
            "in the reverse order of their start tags. Received: </b> at character 7, in <i>",
        ),
        ("x</b>", "Received: </b> at character 1, in no element"),
        ("a <b x", "must have '>' at the end of each tag.*Received: '<b x' at character 2"),
        ("<!-- x", "must have '-->' after '<!--'"),
        ("<script>x", "none for <script>"),
        ("<i>" * 101, "at most 100 elements inside one another. Received: more at character 300"),
        ("<p translate=no>x", "none for <p translate=no>"),
    ):
        with pytest.raises(ValueError, match=message):
            document_of(text, "html")
    with pytest.raises(ValueError, match="`tag_handling` must be one of .* Received: tag_handling='xml'"):
        document_of("x", "xml")


def test_invalid_glossaries_name_the_error():
    for entries, error, message in (
        ({str(i): "x" for i in range(10_000)}, ValueError, "at most 1000 entries: .* Received: 10000"),
        ({"": "x"}, ValueError, "of 1 to 200 characters"),
        ({"x": " "}, ValueError, "of 1 to 200 characters"),
        ({"x": "y" * 201}, ValueError, "of 1 to 200 characters"),
        ({"x": 3}, TypeError, "must be a mapping from strings to strings"),
        ([], TypeError, "must be a mapping from strings to strings"),
    ):
        with pytest.raises(error, match=message):
            Glossary(entries)
    with pytest.raises(ValueError, match="`glossary_mode` must be one of .* Received: glossary_mode='x'"):
        Glossary({}, "x")


@pytest.mark.parametrize(
    "text",
    [
        "<b></b>a " * 12_000,
        "<a " * 33_000,
        "<b>a</b>" * 12_000,
        "{x} a" * 20_000,
        "<" * 100_000,
        "&" * 100_000,
        "{n, plural, " * 9_000,
        "{n, plural, one {{" + "x" * 400 + "} " * 200,
        "<b title='{n}'>{n}</b>" * 5_000,
        "https://a.b " * 9_000 + "a." * 9_000 + "@",
        "<pre>" + "a\n" * 5_000 + "</pre>",
    ],
)
def test_large_documents_take_time_in_proportion_to_their_size(text):
    """A quadratic implementation would take minutes."""
    try:
        document = document_of(text, "html")
    except ValueError:
        return
    document.join([alignment.copied(part) for part in document.parts])


def test_each_word_of_a_source_is_omitted_once():
    sources = []

    def record(texts, target):
        sources.extend(texts)
        return np.zeros((len(texts), 1)), [len(target)]

    scored_by(record, alignment.align, "uno, dos (tres)", "x")
    assert sources == ["uno, dos (tres)", ", dos (tres)", "uno, (tres)", "uno, dos ()"]
    sources.clear()
    scored_by(record, alignment.align, " ".join(f"w{i}" for i in range(200)), "x")
    assert len(sources) == 51
    assert sources[1].startswith("w4 ")
