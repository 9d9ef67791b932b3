"""Documentation pages: their blocks of code, and how these are executed."""

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

from keras_transformer.datasets import phrasebook
from tests.published import publish, write_hugging_face_folders

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The README comes first: some pages continue its example.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "export" / "README.md"]
# Spanish pages, each with the English page whose code it has.
SPANISH = {page: ROOT / "docs" / page.name for page in sorted((ROOT / "docs" / "es").glob("*.md"))}
if (ROOT / "README.es.md").exists():
    SPANISH[ROOT / "README.es.md"] = ROOT / "README.md"
# The guides to own data, and pages that take more than a minute.
LONG = [
    page for page in PAGES if page.name.startswith("own_") or page.name == "coming_from_tensorflow_models.md"
]
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


def continues_readme(page):
    """Whether a page says before its first block that it continues the example of the README."""
    return "](../README.md)" in page.read_text(encoding="utf-8").partition("```")[0]


def made_targets(code):
    """Return the targets of a block that has only calls of make, which CI runs."""
    targets = [re.fullmatch(r"make ([a-z-]+)(\s+#.*)?", line) for line in code.splitlines()]
    return [target[1] for target in targets] if all(targets) else []


def has_only_own_commands(code):
    """Whether a block can be executed anywhere: other programs may install, download or wait."""
    lines = re.sub(r"\\\n", " ", code).splitlines()
    return all(line.startswith(("keras-transformer ", "#")) for line in lines)


def is_executed(page, number, block):
    """Whether `run_blocks` executes the block with this number on a page."""
    if block.reason or (page.name, number) in OWN_TESTS:
        return False
    own = block.language == "sh" and not made_targets(block.code) and has_only_own_commands(block.code)
    return own or block.language == "python"


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
        begin = sum(os.times()[:4])
        names = readme if page is PAGES[0] else {**readme}
        for number, block in enumerate(code_blocks(page)):
            title = f"{page.name}, block {number}"
            if not is_executed(page, number, block):
                continue
            if block.language == "python":
                with contextlib.redirect_stdout(sys.stderr):
                    exec(compile(block.code, title, "exec"), names)
            else:
                command = ["bash", "-euc", block.code]
                done = subprocess.run(command, cwd=tmp_path, env=programs, capture_output=True, text=True)
                assert not done.returncode, f"{title}: {done.stderr[-2000:]}"
        print(
            f"{page.relative_to(ROOT)}: {sum(os.times()[:4]) - begin:.0f} s of processor time",
            file=sys.stderr,
        )
