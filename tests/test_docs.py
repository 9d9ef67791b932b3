"""Documentation pages: code runs, commands parse, links exist."""

import ast
import builtins
import doctest
import importlib
import json
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request

import pytest

import keras_transformer as kt
from keras_transformer_cli import commands
from keras_transformer_options.metrics import METRICS
from tests.pages import (
    LONG,
    OWN_TESTS,
    PAGES,
    ROOT,
    SPANISH,
    blocks,
    code_blocks,
    continues_readme,
    has_only_own_commands,
    is_executed,
    made_targets,
    run_blocks,
)
from tests.published import PUBLISHED, publish, write_hugging_face_folders

each_page = pytest.mark.parametrize("page", [*PAGES, *SPANISH], ids=lambda page: str(page.relative_to(ROOT)))


# The pages that continue the example of the README need its variables and files; others are executed by themselves.
CONTINUED = [PAGES[0], *(page for page in PAGES[1:-1] if continues_readme(page) and page not in LONG)]


def other_pages():
    """Return the other pages that have code, but the long ones, which test_docs_long.py executes."""
    pages = [page for page in PAGES[:-1] if page not in (*CONTINUED, *LONG)]
    return [page for page in pages if any(is_executed(page, *each) for each in enumerate(code_blocks(page)))]


@pytest.mark.slow
def test_the_readme_and_the_pages_that_continue_it_run(tmp_path, monkeypatch, hub, programs):
    run_blocks(CONTINUED, tmp_path, monkeypatch, hub, programs)
    assert (tmp_path / "export" / "es-en" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("page", other_pages(), ids=lambda page: page.name)
def test_a_page_runs(page, tmp_path, monkeypatch, hub, programs):
    run_blocks([page], tmp_path, monkeypatch, hub, programs)


@pytest.mark.slow
def test_a_published_model_is_converted_and_served_as_the_page_says(tmp_path, hub, programs):
    page = ROOT / "docs" / "from_transformers.md"
    convert, serve, curl = map(shlex.split, blocks(page, "sh")[0].splitlines())
    assert (convert[:3], serve[:2]) == (
        ["keras-transformer", "convert", PUBLISHED],
        ["keras-transformer", "serve"],
    )
    write_hugging_face_folders(tmp_path / "downloads")
    publish(hub, tmp_path / "downloads")
    options = {"cwd": tmp_path, "env": programs, "stdout": subprocess.PIPE, "text": True}
    program = [sys.executable, "-m", "keras_transformer_cli"]
    subprocess.run([*program, *convert[1:], "--max-new-tokens", "8"], check=True, **options)
    with subprocess.Popen([*program, *serve[1:], "--port", "0"], **options) as process:
        try:
            address = next(line.rstrip() for line in process.stdout if line.startswith("http://"))
            url = curl[-1].replace("localhost:8501", address)
            with urllib.request.urlopen(url, curl[curl.index("-d") + 1].encode(), timeout=60) as response:
                (prediction,) = json.load(response)["predictions"]
        finally:
            process.terminate()
    assert prediction["error"] == ""


def test_every_block_that_is_not_executed_is_marked():
    """`pytest -s -k marked` prints the blocks that are not executed, and why."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    unmarked = []
    for page in PAGES:
        for number, block in enumerate(code_blocks(page)):
            title = f"{page.relative_to(ROOT)}, block {number}"
            if block.reason:
                print(f"{title} ({block.language}): {block.reason}")
                if block.language == "python":
                    ast.parse(block.code)
            elif block.language == "sh" and (made := made_targets(block.code)):
                assert targets.issuperset(made), title
            elif not (
                block.language not in ("python", "py", "sh", "bash", "console", "shell")
                or (page.name, number) in OWN_TESTS
                or (page is not PAGES[-1] and block.language == "python")
                or (page is not PAGES[-1] and block.language == "sh" and has_only_own_commands(block.code))
            ):
                unmarked.append(title)
    assert not unmarked


@pytest.mark.parametrize("page", SPANISH, ids=lambda page: str(page.relative_to(ROOT)))
def test_spanish_pages_have_the_code_of_the_english_ones(page):
    """Outputs, which are blocks of text, may be translated."""
    spanish, english = (
        [block for block in code_blocks(each) if block.language != "text"] for each in (page, SPANISH[page])
    )
    assert spanish == english


def names_of(source):
    """Return the names that a program uses, and those that it defines or imports."""
    used, defined = set(), {*dir(builtins)}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name):
                defined.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                defined.add(name)
            case ast.Import(names) | ast.ImportFrom(_, names):
                defined |= {(alias.asname or alias.name).split(".")[0] for alias in names}
    return used, defined


def undefined_names(examples, known):
    """Return the names that examples use and do not define, such as a trained model."""
    used, defined = names_of("\n".join(each.source for each in examples))
    return used - defined - {*known}


@pytest.mark.parametrize("page", PAGES[:-1], ids=lambda page: page.name)
def test_code_blocks_use_defined_names(page):
    """A page that continues the example of the README says so before its first block."""
    known = set()
    if continues_readme(page):
        known |= set(re.findall(r"`(\w+)`", page.read_text(encoding="utf-8").partition("```")[0]))
    for block in blocks(page, "python"):
        used, defined = names_of(block)
        known |= defined
        assert used <= known


@pytest.mark.slow
def test_docstring_examples_give_their_outputs():
    """Examples that use an undefined model, pipeline or folder are not run."""
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
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if not line.startswith("<!-- not executed")]) <= 80


def test_import_graph_is_current():
    script = runpy.run_path(str(ROOT / "docs" / "import_graph.py"))
    drawn = script["mermaid"](script["reduced"](script["imports"]()))
    assert drawn in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), "run make import-graph"


def test_reference_tables_are_current_and_need_no_tensorflow():
    check = (
        "import runpy, sys; tables = runpy.run_path('docs/site/tables.py')\n"
        "old = [page.read_text(encoding='utf-8') for page in tables['PAGES']]\n"
        "assert old, 'no pages'\n"
        "assert old == [tables['updated'](page) for page in old], 'run make reference-tables'\n"
        "assert not {'tensorflow', 'keras'} & {*sys.modules}"
    )
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True
    )


def test_metrics_and_routes_are_described():
    assert [*METRICS] == [*kt.pipelines.evaluation.METRICS]
    page = (ROOT / "docs" / "reference_server.md").read_text(encoding="utf-8")
    assert "|  |" not in page, "a route or a metric has no docstring"


def test_every_public_package_is_in_the_navigation():
    pages = re.findall(r"reference/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    packages = [name for name in kt.__all__ if name != "__version__"]
    assert sorted(pages) == sorted([*packages, "keras_transformer_serving"])


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r": ((?!reference/)\S+\.md)", navigation))
