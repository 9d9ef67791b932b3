"""Splitting of long texts: Unicode rules, and properties of any split."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer_serving.jobs import compute, run_one
from keras_transformer_serving.text.splitting import sentences, split

MANY = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
# Letters, marks, joiners, flags, spaces and line ends next to arbitrary Unicode characters.
TEXTS = st.text(
    st.one_of(
        st.sampled_from(
            "abÉ1.,!?。、»“ \u00a0\t\n\r\u2028\u0301\u200d\U0001f469\U0001f1e9\u094d\u0915\u1100\u1161"
        ),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)


def count(parts):
    return [len(part.encode()) for part in parts]


def split_text(text, limit, count=count):
    """Split a text into parts of at most `limit` bytes."""
    steps = split(text, lambda parts: compute("count", parts), limit)
    return run_one(steps, {"count": lambda batch: [*map(count, batch)]})


@pytest.mark.parametrize(
    "line",
    [
        "He paid 3.5 euros.| Then he left!| “Did he?” she asked.| “Yes.”| (So he did.)| It ended ...| Really ?!| Yes",
        "Dr. Li, J. R. R. Tolkien and Mrs. Ng met.| See No. 5 and fig. 3, e.g. in the U.S. Army.| No.| Never.",
        "Am 3. Oktober kam Hr. Weiß, z. B. um 8.15 Uhr.| „Gut.“| »Nein!« rief sie.| Ja.",
        "¿Qué hora es?| ¡Las tres!| El Sr. García llegó.| «Vamos.»| Él no.",
        "« Bonjour ! »| Il part.| « Vraiment\u00a0?\u00a0»| Oui.",
        "今天很好。|你好！|“真的吗？”，他说。|行。",
        "「はい。」と言った。|終わり。",
        "यह है।| वह है।",
        "هل هذا صحيح؟| نعم.",
        "ይህ ነው።| እሺ።",
        "Visit example.com, v1.2.| Or not",
    ],
)
def test_texts_are_split_after_final_punctuation(line):
    assert sentences(line.replace("|", "")) == line.split("|")


@MANY
@given(TEXTS, st.integers(1, 30))
def test_parts_fit_and_concatenate_to_the_text(text, limit):
    found = split_text(text, limit)
    assert found.join(found.parts) == text
    assert max(count(found.parts)) <= limit or found.parts == (text,)


@MANY
@given(TEXTS, st.integers(1, 30))
def test_parts_do_not_split_grapheme_clusters(text, limit):
    regex = pytest.importorskip("regex")
    found = split_text(text, limit)
    strings = itertools.chain.from_iterable(zip(found.between, [*found.parts, ""], strict=True))
    places = {0, *itertools.accumulate(len(string) for string in strings)}
    assert places <= {0, *(match.end() for match in regex.finditer(r"\X", text))}


@MANY
@given(TEXTS)
def test_a_line_that_fits_is_one_part(text):
    line = "".join(text.splitlines())
    found = split_text(line, max(1, len(line.encode())))
    assert found.parts == (line,)
    assert found.between == ("", "")


def test_lines_spaces_and_strings_without_letters_are_kept():
    text = "\ufeffOne.\r\n\r\n\r\n  Two.  Three.\t\r\n* * *\r\n42\r\nFour"
    found = split_text(text, 100)
    assert found.parts == ("\ufeffOne.", "Two.", "Three.", "Four")
    assert found.between == ("", "\r\n\r\n\r\n  ", "  ", "\t\r\n* * *\r\n42\r\n", "")
    assert split_text("-" * 9, 5).join([""]) == "-" * 9


def test_long_sentences_are_split_at_clauses_then_spaces_then_characters():
    def parts(text, limit):
        return split_text(text, limit).parts

    assert parts("one two three, four five six", 20) == ("one two three,", "four five six")
    assert parts("one two, three four five six seven eight", 28) == (
        "one two, three four",
        "five six seven eight",
    )
    assert parts("x" * 10 + " y", 5) == ("xxxxx", "xxxxx", "y")
    assert parts("e\u0301" * 4, 6) == ("e\u0301e\u0301", "e\u0301e\u0301")


def test_a_character_that_does_not_fit_is_not_split():
    accented = "a. x\u0301\u0301 b."
    assert split_text(accented, 4).parts == (accented,)
    assert split_text(accented, 5).parts == ("a.", "x\u0301\u0301", "b.")


def test_tokens_of_equal_parts_are_counted_once():
    calls = []

    def counted(parts):
        calls.append(len(parts))
        return count(parts)

    split_text("So long, dear reader. Go on. " * 50, 13, counted)
    assert calls == [1, 2, 2]
