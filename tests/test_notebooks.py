"""The notebooks in Spanish have the code and the outputs of the English ones, and all of their text translated."""

import json
import pathlib
import re
import runpy
import shutil

import pytest

NOTEBOOKS = pathlib.Path(__file__).resolve().parents[1] / "notebooks"
TRANSLATED = sorted(path.name for path in NOTEBOOKS.glob("0[1-6]_*.ipynb"))
FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)
VERBATIM = re.compile(r"\$\$.*?\$\$|\$.*?\$|`.*?`|\"[^\"\n]*\"|«[^»\n]*»|\(.*?\.ipynb\)", re.DOTALL)
ENGLISH = re.compile(
    r"\b(and|are|as|by|each|for|from|is|not|of|that|the|this|to|which|with)\b", re.IGNORECASE
)


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def text(cell):
    return "".join(cell["source"])


def translations(name):
    """Yield the cells of the text in both languages."""
    for english, spanish in zip(cells(NOTEBOOKS / name), cells(NOTEBOOKS / "es" / name), strict=True):
        if english["cell_type"] == "markdown":
            yield english["id"], text(english), text(spanish)


def structure(markdown):
    """Return what a translation keeps: levels of headings, kinds of lines, displayed formulas."""
    headings = re.findall(r"^#+", markdown, re.MULTILINE)
    items = re.findall(r"^- ", markdown, re.MULTILINE)
    columns = [line.count("|") for line in markdown.splitlines() if line.startswith("|")]
    return headings, items, columns, FORMULA.findall(markdown)


def test_six_notebooks_are_translated():
    assert len(TRANSLATED) == 6
    assert sorted(path.name for path in (NOTEBOOKS / "es").glob("*.ipynb")) == TRANSLATED


@pytest.mark.parametrize("name", TRANSLATED)
def test_spanish_notebook_has_the_same_code_and_outputs(name):
    english, spanish = cells(NOTEBOOKS / name), cells(NOTEBOOKS / "es" / name)
    for key in ("id", "cell_type", "metadata"):
        assert [cell[key] for cell in spanish] == [cell[key] for cell in english], key
    for first, second in zip(english, spanish, strict=True):
        if first["cell_type"] == "code":
            assert text(second) == text(first), first["id"]
            assert second["outputs"] == first["outputs"], f"{first['id']}: run notebooks/run.py --write"


@pytest.mark.parametrize("name", TRANSLATED)
def test_every_text_is_translated(name):
    for cell_id, english, spanish in translations(name):
        assert spanish != english, cell_id
        prose = VERBATIM.sub("", spanish.replace("[English]", ""))
        assert not ENGLISH.findall(prose), (cell_id, spanish)
        assert structure(spanish) == structure(english), cell_id


@pytest.mark.parametrize("name", TRANSLATED)
def test_notebooks_link_to_the_other_language(name):
    _, english, spanish = next(translations(name))
    assert f"[Español](es/{name})" in english
    assert f"[English](../{name})" in spanish


def test_outputs_of_a_run_are_copied_to_the_translation(tmp_path):
    script = runpy.run_path(str(NOTEBOOKS / "run.py"))
    name = TRANSLATED[0]
    path = pathlib.Path(shutil.copy(NOTEBOOKS / "es" / name, tmp_path))
    notebook = script["nbformat"].read(NOTEBOOKS / name, as_version=4)
    output = script["nbformat"].v4.new_output("stream", text="new\n")
    notebook.cells[-1].outputs = [output]
    script["copy_outputs"](notebook, path)
    copied, before = cells(path), cells(NOTEBOOKS / "es" / name)
    assert copied[-1]["outputs"] == [{**output, "text": ["new\n"]}]
    assert [cell["source"] for cell in copied] == [cell["source"] for cell in before]
