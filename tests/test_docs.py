"""Documentation pages: code runs, commands parse, links exist."""

import ast
import builtins
import contextlib
import dataclasses
import doctest
import importlib
import io
import json
import os
import pathlib
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import urllib.request

import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.datasets import phrasebook
from keras_transformer_cli import commands
from keras_transformer_options.metrics import METRICS

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The README comes first: other pages continue its example.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "export" / "README.md"]
# Spanish pages, each with the English page whose code it has.
SPANISH = {page: ROOT / "docs" / page.name for page in sorted((ROOT / "docs" / "es").glob("*.md"))}
if (ROOT / "README.es.md").exists():
    SPANISH[ROOT / "README.es.md"] = ROOT / "README.md"
each_page = pytest.mark.parametrize("page", [*PAGES, *SPANISH], ids=lambda page: str(page.relative_to(ROOT)))
BLOCK = re.compile(r"(?:^<!-- not executed: ([^\n]+?) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks of commands, by page and number, that a test of their own executes.
OWN_TESTS = {("from_transformers.md", 0)}


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code, and why it is not executed, "" if it is."""

    language: str
    code: str
    reason: str


def code_blocks(page):
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(language, code, reason) for reason, language, code in found]


def blocks(page, language):
    return [block.code for block in code_blocks(page) if block.language == language]


def made_targets(code):
    """Return the targets of a block that has only calls of make, which CI runs."""
    targets = [re.fullmatch(r"make ([a-z-]+)(\s+#.*)?", line) for line in code.splitlines()]
    return [target[1] for target in targets] if all(targets) else []


def write_hugging_face_folders(folder):
    """Write folders of `transformers` with random weights, in place of downloads."""
    texts = ["la casa es azul", "the house is blue", "el perro come pan", "a fine film about the bird"] * 3
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}

    def sentence_piece(**options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=50,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        return model.getvalue()

    def write(name, model, **files):
        path = kt.interop.to_hugging_face(model, folder / name)
        for file, content in files.items():
            (path / file.replace("_", ".")).write_bytes(content)

    pieces = sentence_piece()
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    ids = ["</s>", "<unk>", *(processor.id_to_piece(i) for i in range(3, processor.vocab_size())), "<pad>"]
    pad_id = len(ids) - 1
    marian = kt.models.Transformer(
        len(ids), **sizes, normalization="post", activation="silu", position_layout="halves", output_bias=True,
        epsilon=1e-5, pad_id=pad_id, start_id=pad_id, end_id=0,
    )  # fmt: skip
    vocabulary = json.dumps({piece: id_ for id_, piece in enumerate(ids)}).encode()
    write("opus-mt-es-en", marian, source_spm=pieces, target_spm=pieces, vocab_json=vocabulary)

    pieces = sentence_piece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write("t5-small", kt.models.T5(200, **sizes, key_dim=8), spiece_model=pieces)

    tokenizer = kt.text.WordPieceTokenizer.train(texts, 120)
    words = "\n".join(tokenizer.vocabulary).encode()

    def encoder():
        return kt.models.BERT(tokenizer.vocabulary_size, **sizes, max_length=32)

    write("bert-base-cased", kt.models.MaskedLanguageModel(encoder()), vocab_txt=words)
    write("bert-sst2", kt.models.SequenceClassifier(encoder(), 2), vocab_txt=words)
    write("bert-ner", kt.models.TokenClassifier(encoder(), 3), vocab_txt=words)
    write("bert-squad", kt.models.SpanClassifier(encoder()), vocab_txt=words)

    write("vit-base", kt.models.ViT((16, 16), patch_size=8, num_classes=3, **sizes))

    end_of_text = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
    byte_pairs = kt.text.BytePairTokenizer.train(texts, 300, special_tokens=end_of_text)
    gpt2 = kt.models.GPT(
        byte_pairs.vocabulary_size, **sizes, max_length=32, pad_id=None, end_id=byte_pairs.end_id
    )
    vocabulary = json.dumps({piece: id_ for id_, piece in enumerate(byte_pairs.vocabulary)}).encode()
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in byte_pairs.merges)]).encode()
    write("gpt2", gpt2, vocab_json=vocabulary, merges_txt=merges)


PUBLISHED = "Helsinki-NLP/opus-mt-es-en"


def publish(hub, downloads):
    """Add the translator of the pages to the stub of the hub."""
    folder = downloads / PUBLISHED.partition("/")[2]
    hub.add(PUBLISHED, {path.name: path.read_bytes() for path in folder.iterdir()})


def has_only_own_commands(code):
    """Whether a block can be executed anywhere: other programs may install, download or wait."""
    lines = re.sub(r"\\\n", " ", code).splitlines()
    return all(line.startswith(("keras-transformer ", "#")) for line in lines)


@pytest.fixture
def programs(tmp_path, hub):
    """The environment in which commands of pages are executed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "keras-transformer"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m keras_transformer_cli "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hub"),
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
    }


GUIDES = [page for page in PAGES if page.name.startswith("own_")]


def run_blocks(pages, tmp_path, monkeypatch, hub, programs):
    """Execute the blocks of pages in their order, on few sentences, as the score does not matter."""
    train, validation, test = phrasebook.load_data(3000, num_validation=50, num_test=50)
    monkeypatch.setattr(phrasebook, "load_data", lambda: (train[:300], validation, test))
    monkeypatch.chdir(tmp_path)
    lines = ["\t".join(pair) for pair in train]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_hugging_face_folders(tmp_path / "downloads")
    publish(hub, tmp_path / "downloads")
    readme = {}
    for page in pages:
        names = readme if page is PAGES[0] else {**readme}
        for number, block in enumerate(code_blocks(page)):
            title = f"{page.name}, block {number}"
            if block.reason or (page.name, number) in OWN_TESTS or made_targets(block.code):
                continue
            if block.language == "python":
                with contextlib.redirect_stdout(sys.stderr):
                    exec(compile(block.code, title, "exec"), names)
            if block.language == "sh" and has_only_own_commands(block.code):
                command = ["bash", "-euc", block.code]
                done = subprocess.run(command, cwd=tmp_path, env=programs, capture_output=True, text=True)
                assert not done.returncode, f"{title}: {done.stderr[-2000:]}"


@pytest.mark.slow
def test_blocks_run_in_order(tmp_path, monkeypatch, hub, programs):
    # The guides are in test_docs_guides.py; export/README.md serves the quickstart's export.
    pages = [page for page in PAGES[:-1] if page not in GUIDES]
    run_blocks(pages, tmp_path, monkeypatch, hub, programs)
    assert (tmp_path / "export" / "es-en" / "manifest.json").is_file()


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
def test_code_blocks_use_defined_names(page):
    """A page that continues the example of the README says so before its first block."""
    text = page.read_text(encoding="utf-8")
    known = set()
    if "](../README.md)" in (introduction := text.partition("```")[0]):
        known |= set(re.findall(r"`(\w+)`", introduction))
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
