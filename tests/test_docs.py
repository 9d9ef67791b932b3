"""The pages that users read: their code runs, their commands parse, their links exist."""

import ast
import builtins
import contextlib
import doctest
import importlib
import pathlib
import pkgutil
import re
import runpy
import sys

import pytest

import keras_transformer as kt
from keras_transformer.datasets import phrasebook
from keras_transformer_cli import commands

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The README first: the other pages continue its example.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "export" / "README.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page, language):
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_python_blocks_run_one_after_the_other(tmp_path, monkeypatch):
    """Train on few sentences: the score does not matter here."""
    train, validation, test = phrasebook.load_data(3000, num_validation=50, num_test=50)
    monkeypatch.setattr(phrasebook, "load_data", lambda: (train[:300], validation, test))
    monkeypatch.chdir(tmp_path)
    lines = ["\t".join(pair) for pair in train]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shared = {}
    for page in PAGES[:-1]:  # export/README.md serves the quickstart's export
        for number, block in enumerate(blocks(page, "python")):
            with contextlib.redirect_stdout(sys.stderr):
                exec(compile(block, f"{page.name}, block {number}", "exec"), shared)
    assert (tmp_path / "export" / "es-en" / "manifest.json").is_file()


def names_of(source):
    """Return the names that a program uses, and those that it defines or imports."""
    used, defined = set(), {*dir(builtins)}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                defined.add(name)
            case ast.Import(names) | ast.ImportFrom(_, names):
                defined |= {(alias.asname or alias.name).split(".")[0] for alias in names}
    return used, defined


def undefined_names(examples, known):
    """Return the names that examples use and do not define, such as a trained model."""
    used, defined = names_of("\n".join(each.source for each in examples))
    return used - defined - {*known}


@pytest.mark.parametrize("page", PAGES[:-1], ids=lambda page: page.name)
def test_code_of_pages_uses_defined_names(page):
    """A page that continues the README's example says so before its first block."""
    text = page.read_text(encoding="utf-8")
    known = set()
    if "](../README.md)" in (introduction := text.partition("```")[0]):
        known |= set(re.findall(r"`(\w+)`", introduction))
    for block in blocks(page, "python"):
        used, defined = names_of(block)
        known |= defined
        assert used <= known


@pytest.mark.slow
def test_examples_of_docstrings_give_their_outputs():
    """Examples of a model, pipeline or folder that they do not make are not run."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report, not_run = [], []
    names = [each.name for each in pkgutil.walk_packages(kt.__path__, "keras_transformer.")]
    for name in [each for each in names if not each.endswith("__main__")]:
        module = importlib.import_module(name)
        for test in finder.find(module):
            run = [each for each in test.examples if not each.options.get(doctest.SKIP)]
            if undefined_names(run, test.globs):
                not_run.append(test.name)
            elif run:
                runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
    assert runner.tries > 120
    assert len(not_run) < 30, not_run


def test_commands_parse():
    parser = commands.parser()
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    named = [line.split("#")[0].split()[1:] for line in lines if line.startswith("keras-transformer ")]
    assert named
    for arguments in named:
        parser.parse_args([argument.strip('"') for argument in arguments if not argument.startswith("the")])


@each_page
def test_links_exist(page):
    links = [
        link for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")) if "://" not in link
    ]
    missing = [link for link in links if not (page.parent / link.split("#")[0]).exists()]
    assert not missing


@each_page
def test_no_placeholder_is_left(page):
    assert not re.findall(r"@@\w+@@|TODO|FIXME", page.read_text(encoding="utf-8"))


def test_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_import_graph_is_current():
    script = runpy.run_path(str(ROOT / "docs" / "import_graph.py"))
    drawn = script["mermaid"](script["reduced"](script["imports"]()))
    assert drawn in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), "run make import-graph"
