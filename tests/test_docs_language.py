"""The sentences of guides and concepts are short."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
NAMES = (
    *(
        "index",
        "own_translator",
        "own_language_model",
        "own_classifier",
        "own_embeddings",
        "published_weights",
    ),
    *("colab", "distributed", "export", "int8", "serving", "deployment"),
    *("command_line", "training", "models", "generation", "from_transformers"),
    *("relations", "kernels", "cache_and_beams", "parity", "extending", "glossary"),
)
PAGES = [
    path
    for path in (DOCS / folder / f"{name}.md" for folder in (".", "es") for name in NAMES)
    if path.exists()
]
MOST_WORDS = 25


def sentences(text):
    """Return the sentences of a page, without code, tables, headings, comments and lists of links."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|\$\$.*?\$\$", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#|\||!\[).*$|^\s*([-*]|\d+\.) \[.*\]\(\S+\)[^a-z]*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "x", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    found = [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?])[\s)*\"”]+(?=\S)", " ".join(paragraph.split()))
    ]
    return [sentence for sentence in found if re.search(r"\w\s+\w", sentence)]


def words(sentence):
    return len(re.findall(r"[\w'’.,-]*\w[\w'’.,-]*", sentence))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_sentences_have_at_most_25_words_on_average(page):
    lengths = [words(sentence) for sentence in sentences(page.read_text(encoding="utf-8"))]
    mean = sum(lengths) / len(lengths)
    print(
        f"\n{page.relative_to(DOCS)}: {mean:.1f} words on average, {max(lengths)} at most, {len(lengths)} sentences"
    )
    assert mean <= MOST_WORDS


def test_the_counter_skips_code_tables_and_lists_of_links():
    text = "# A title\n\nOne two three. Four `a b c` five?\n\n| a | b |\n\n- [x](y.md)\n- six seven\n"
    code = "\n```sh\nls a b\n```\n"
    assert [words(sentence) for sentence in sentences(text + code)] == [3, 3, 2]
