"""Splitting of long texts: Unicode rules, and properties of any split."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer_serving.text.splitting import SplitTexts, sentences, split_texts

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
@given(st.lists(TEXTS, max_size=4), st.integers(1, 30))
def test_parts_fit_and_concatenate_to_the_text(texts, limit):
    splits = split_texts(texts, count, limit)
    for text, split in zip(texts, splits, strict=True):
        assert split.join(split.parts) == text
        assert max(count(split.parts)) <= limit or split.parts == (text,)
    together = SplitTexts(splits)
    assert together.join(together.parts) == texts
    assert together.of_each(texts)[: len(texts)] == texts == together.of_first(texts, "")[: len(texts)]


@MANY
@given(TEXTS, st.integers(1, 30))
def test_parts_do_not_split_grapheme_clusters(text, limit):
    regex = pytest.importorskip("regex")
    (split,) = split_texts([text], count, limit)
    strings = itertools.chain.from_iterable(zip(split.between, [*split.parts, ""], strict=True))
    places = {0, *itertools.accumulate(len(string) for string in strings)}
    assert places <= {0, *(match.end() for match in regex.finditer(r"\X", text))}


@MANY
@given(TEXTS)
def test_a_line_that_fits_is_one_part(text):
    line = "".join(text.splitlines())
    (split,) = split_texts([line], count, max(1, len(line.encode())))
    assert split.parts == (line,)
    assert split.between == ("", "")


def test_lines_spaces_and_strings_without_letters_are_kept():
    text = "\ufeffOne.\r\n\r\n\r\n  Two.  Three.\t\r\n* * *\r\n42\r\nFour"
    (split,) = split_texts([text], count, 100)
    assert split.parts == ("\ufeffOne.", "Two.", "Three.", "Four")
    assert split.between == ("", "\r\n\r\n\r\n  ", "  ", "\t\r\n* * *\r\n42\r\n", "")
    assert split_texts(["-" * 9], count, 5)[0].join([""]) == "-" * 9


def test_long_sentences_are_split_at_clauses_then_spaces_then_characters():
    def parts(text, limit):
        return split_texts([text], count, limit)[0].parts

    assert parts("one two three, four five six", 20) == ("one two three,", "four five six")
    assert parts("one two, three four five six seven eight", 28) == (
        "one two, three four",
        "five six seven eight",
    )
    assert parts("x" * 10 + " y", 5) == ("xxxxx", "xxxxx", "y")
    assert parts("e\u0301" * 4, 6) == ("e\u0301e\u0301", "e\u0301e\u0301")


def test_a_character_that_does_not_fit_is_not_split():
    accented = "a. x\u0301\u0301 b."
    assert split_texts([accented, "b. c"], count, 4)[0].parts == (accented,)
    assert split_texts([accented, "b. c"], count, 5)[0].parts == ("a.", "x\u0301\u0301", "b.")


def test_tokens_are_counted_for_all_texts_together():
    calls = []

    def counted(parts):
        calls.append(len(parts))
        return count(parts)

    split_texts(["Go on. Stay. " * 50, "So long, dear reader. " * 50, "short"], counted, 13)
    assert calls == [3, 3, 2]
