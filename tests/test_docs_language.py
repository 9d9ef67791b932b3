"""The sentences of guides and concepts are short; the Spanish is written as in Spain."""

import json
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


ROOT = DOCS.parent
SPANISH = [ROOT / "README.es.md", *sorted(DOCS.glob("es/*.md")), *sorted(ROOT.glob("notebooks/es/*.ipynb"))]
# Decimal points, thousands with a comma, a point or a breaking space, units without a space, straight quotes, and words
# of America or of other pages.
NOT_OF_SPAIN = re.compile(
    r"\b\d+\.\d+\b|\b[1-9]\d{0,2}[,. ]\d{3}\b|\d[KMG]B?\b|\""
    r"|\b(?:[Cc]ostos?|[Cc]onteos?|[Cc]omputador\w*|[Ff]icheros?|línea de órdenes)\b"
)


def prose(path):
    """Return a page or notebook without code, formulas, addresses, versions of Python and sections of papers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(
        r"^```.*?^```$|<!--.*?-->|\$\$.*?\$\$|\$[^$]*\$|`[^`]*`", "x", text, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"\]\([^)]*\)|Python [\d., o]+|sección [\d.]+|GPT-[\d.]+", "]", text)


@pytest.mark.parametrize("page", SPANISH, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_spanish_is_written_as_in_spain(page):
    assert NOT_OF_SPAIN.findall(prose(page)) == []
