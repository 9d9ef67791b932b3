import contextlib
import pathlib
import re
import sys

import pytest

from keras_transformer.cli import commands
from keras_transformer.datasets import phrasebook

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture(scope="module")
def readme():
    if not README.is_file():
        pytest.skip("there is no README.md")
    return README.read_text(encoding="utf-8")


def blocks(readme, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_python_blocks_run_one_after_the_other(readme, tmp_path, monkeypatch):
    """On fewer sentences than the phrasebook has: what is shown is the way, not the score."""
    train, validation, test = phrasebook.load_data(3000, num_validation=50, num_test=50)
    monkeypatch.setattr(phrasebook, "load_data", lambda: (train[:300], validation, test))
    monkeypatch.chdir(tmp_path)
    shared = {}
    found = blocks(readme, "python")
    assert found
    for number, block in enumerate(found):
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(block, f"README.md, block {number}", "exec"), shared)
    assert (tmp_path / "export" / "es-en" / "manifest.json").is_file()


def test_every_command_it_names_exists(readme):
    parser = commands._parser()
    named = [
        line.split("#")[0].split()[1:]
        for block in blocks(readme, "sh")
        for line in block.splitlines()
        if line.startswith("keras-transformer ")
    ]
    assert named
    for arguments in named:
        parser.parse_args([argument.strip('"') for argument in arguments if not argument.startswith("the")])


def test_files_it_links_to_exist(readme):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert not [link for link in links if not (README.parent / link.split("#")[0]).exists()]


def test_no_placeholder_is_left(readme):
    assert not re.findall(r"@@\w+@@|TODO|FIXME", readme)
