"""Errors on the command line name options instead of Python arguments."""

import argparse
import ast
import pathlib
import pickle
import re
import tarfile

import pytest

import keras_transformer as kt
import keras_transformer_options
import keras_transformer_serving as serving
from keras_transformer_cli import commands, output
from keras_transformer_options.arguments import ArgumentError, Message, renamed
from tests.test_saved_files import FOLDER

GOOD, BAD = "hola\thello\nadiós\tbye\n" * 20, "one\ttwo\nthree\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "good.tsv").write_text(GOOD)
    (folder / "bad.tsv").write_text(BAD)
    (folder / "two.tsv").write_text("uno\tone\ndos\ttwo\n")
    (folder / "empty.txt").write_text("\n")
    (folder / "latin.txt").write_bytes("a café\nb\n".encode("latin-1"))
    (folder / "a.dat").write_text("a")
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["translate"],
            ["`--data` or `--dataset` is required, but not both", "Received: no --data, no --dataset"],
        ),
        (["translate", "--data", "bad.tsv"], ["`--data` must name", "pass --on-error skip", "`--columns`"]),
        (["translate", "--data", "good.tsv", "--test", "bad.tsv"], ["`--test` must name files without"]),
        (["translate", "--data", "good.tsv", "--validation", "bad.tsv"], ["`--validation` must name files"]),
        (["translate", "--data", "absent-*.tsv"], ["`--data` must name files that exist", "absent-*.tsv"]),
        (["translate", "--data", "absent.tsv"], ["`--data` must", "absent.tsv"]),
        (
            ["language-model", "--data", "empty.txt", "--lines"],
            ["`--data` must name non-empty files"],
        ),
        (
            ["classify", "--data", "good.tsv", "--max-length", "0"],
            ["`--max-length`", "Received: --max-length 0"],
        ),
        (
            ["tag", "--data", "good.tsv", "--from", "x", "--layers", "2"],
            ["`--layers`", "with `--from`", "--layers 2"],
        ),
        (["translate", "--data", "good.tsv", "--columns", "en", "es"], ["`--columns` must", "en"]),
        (
            ["classify", "--data", "good.tsv", "--test", "empty"],
            ["`--test` must be a folder with one folder"],
        ),
        (["classify", "--data", "good.tsv", "--validation", "empty"], ["`--validation` must be a folder"]),
        (["language-model", "--data", "latin.txt"], ["`--data` must name", "latin.txt, line 1: not UTF-8"]),
        (
            ["language-model", "--data", "good.tsv", "--columns", "0", "--test", "latin.txt"],
            ["`--test` must"],
        ),
        (["translate", "--data", "a.dat"], ["`--data` must end in .tsv", "Received: 'a.dat'"]),
        (["translate", "--data", "good.tsv", "--seed", "-1"], ["`--seed` must be an", "Received: --seed -1"]),
        (["translate", "--data", "good.tsv", "--tokenizer", "empty"], ["`--tokenizer` must hold"]),
        (["translate", "--data", "good.tsv", "--from", "empty"], ["`--from` must hold"]),
        (
            ["language-model", "--data", "good.tsv", "--normalization", "nfkc"],
            ["`--normalization` must be None for a `--tokenizer`", "Received: --normalization nfkc"],
        ),
        (
            ["translate", "--data", "two.tsv", "--batch-tokens", "0"],
            ["`--batch-tokens` must be a positive integer"],
        ),
        (
            ["classify", "--data", "two.tsv", "--batch-size", "0"],
            ["`--batch-size` must be a positive integer"],
        ),
        (
            ["masked-language-model", "--data", "latin.txt", "--masked-share", "2"],
            ["`--masked-share` must be between"],
        ),
        (
            [
                "translate",
                "--data",
                "two.tsv",
                "--heads",
                "3",
                "--model-dim",
                "16",
                "--tokenizer",
                "character",
            ],
            ["`--heads` must divide `--model-dim`", "Received: --heads 3, --model-dim 16"],
        ),
        (
            [
                "translate",
                "--data",
                "two.tsv",
                "--max-length",
                "2",
                "--heads",
                "2",
                "--tokenizer",
                "character",
            ],
            ["`--max-length` (or the length of the longest batches) must be at least"],
        ),
    ],
)
def test_data_and_training_errors_name_options(files, arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert commands.main(["train", *arguments, "--output", "run"]) == 2
    *_, message = capsys.readouterr().err.splitlines()  # after warnings
    for word in words:
        assert word in message
    for name in ("paths", "pairs", "texts", "on_error", "max_length", "folder", "num_heads"):
        assert f"`{name}" not in message
        assert f"{name}=" not in message
    assert not (files / "run").exists()


@pytest.mark.parametrize(
    ("message", "plain", "expected"),
    [
        (Message("{from_} must be new"), "`from_` must be new", "`--from` must be new"),
        (
            Message("{columns} must be names", columns=(0, "b")),
            "`columns` must be names. Received: columns=(0, 'b')",
            "`--columns` must be names. Received: --columns 0 b",
        ),
        (
            Message("Received: {from_=}, {lines=}", from_=None, lines=False),
            "Received: from_=None, lines=False",
            "Received: no --from, --no-lines",
        ),
        (Message("pass {columns='|'}"), "pass columns='|'", "pass --columns '|'"),
        (Message("use {lines=True}"), "use lines=True", "use --lines"),
        (Message("{} or {=}", "from_", "lines", lines=1), "`from_` or lines=1", "`--from` or --lines 1"),
        (
            Message("{texts} must hold one", **{"texts[1]": "{columns}"}),
            "`texts` must hold one. Received: texts[1]='{columns}'",
            "`texts` must hold one. Received: texts[1]='{columns}'",
        ),
        (
            Message("no folder {path!s}, {advice!s}", path="columns=2", advice=Message("pass {columns=2}")),
            "no folder columns=2, pass columns=2",
            "no folder columns=2, pass --columns 2",
        ),
    ],
)
def test_messages_name_arguments_in_python_and_options_on_the_command_line(message, plain, expected):
    assert str(message) == str(ArgumentError(message)) == str(FileNotFoundError(message)) == plain
    assert message.shown({"from_": "--from", "columns": "--columns", "lines": "--lines"}) == expected


LIKE = Message("like {pairs}")


def test_errors_name_the_arguments_of_the_caller():
    message = r"^`data` must be texts, like `data`. Received: data\[3\]=2$"
    with pytest.raises(TypeError, match=message) as found, renamed(pairs="data"), renamed(texts="pairs"):
        raise TypeError(Message("{texts} must be texts, {like!s}", like=LIKE, **{"texts[3]": 2}))
    assert found.value.args[0].shown({"data": "--data"}).startswith("`--data` must be texts")


def test_pickled_errors_keep_their_message():
    error = pickle.loads(pickle.dumps(ArgumentError("{heads} must be even", heads=3)))
    assert output.error_text(error, {"heads": "--heads"}) == "`--heads` must be even. Received: --heads 3"


PACKAGES = [pathlib.Path(module.__file__).parent for module in (kt, keras_transformer_options, serving)]
ADVICE = re.compile(r"(?:\bor|\bunless|\bpass|\buse|\bset|\bwith) (\w+=(?:'\w+'|True|False))")
# In errors that no command shows.
OF_PYTHON = {
    *(
        "from_logits=False",
        "jit_compile=True",
        "overwrite=True",
        "pooler=False",
        "precision='float32'",
        "resize=True",
    ),
    *("resume=True", "single_word=False", "single_word=True", "stateful=True"),
}


def strings_of(package):
    """Yield the strings of a package that are not docstrings."""
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not (ADVICE.search(source) or re.search(r"[\"']\w+=('|True|False)", source)):
            continue
        tree = ast.parse(source)
        statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
        docstrings = {node for node in statements if isinstance(node, ast.Constant)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                yield node.value


def test_all_that_errors_advise_is_known_to_the_command_line():
    strings = "\n".join(string for package in PACKAGES for string in strings_of(package))
    assert {*ADVICE.findall(strings)} == OF_PYTHON | {advice for advice in output._ADVICE if "=" in advice}


def commands_of(parser, names=()):
    """Yield the names and the parser of each command."""
    subcommands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in subcommands:
        for name, command in action.choices.items():
            yield from commands_of(command, (*names, name))
    if not subcommands:
        yield names, parser


@pytest.mark.parametrize("advice", output._ADVICE)
def test_commands_advise_only_their_own_options(advice):
    program = commands.parser(None, ["train"])
    advised = 0
    for names, command in commands_of(program):
        options = output.options_of(program, names)
        for error in (ValueError, ArgumentError):
            # As errors of rows, and as the reason of a malformed line.
            text = error(f"`inputs` must be short, or {advice}, and long. Received: it, or {advice}")
            shown = output.error_text(text, options)
            assert advice not in shown
            known = {flag for action in command._actions for flag in action.option_strings}
            assert {*re.findall(r"--[\w-]+", shown)} <= known, names
            assert re.sub(r", or (their rate as )?--[\w-]+( \w+)?", "", shown) == (
                "`inputs` must be short, and long. Received: it"
            )
            advised += shown.count("--")
    assert (advised > 0) == (advice != "long_texts='window'")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`of` must be a or b. Received: 'c'", "`--of` must be a or b. Received: 'c'"),
        ("`of` must be positive. Received: of=-1", "`--of` must be positive. Received: --of -1"),
        ("`texts` must be short. Received: `of`, of=1", "`texts` must be short. Received: `of`, of=1"),
    ],
)
def test_errors_of_pipelines_name_options(text, expected):
    assert output.error_text(ValueError(text), {"of": "--of"}) == expected


LONG = {
    "Embedding": [["a b c " * 50]],
    "FillMask": [["a [MASK] " * 50]],
    "QuestionAnswering": [["a"], ["a b c " * 50]],
    "TextGeneration": [["a b c " * 50]],
    "TextToText": [["a b c " * 50]],
    "TokenClassification": [["a b c " * 50]],
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts_of_exports_advise_options(name, tmp_path, capsys):
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    line = "\t".join(column[0] for column in LONG[name])
    arguments = ["predict", str(tmp_path / "export"), line]
    assert commands.main(arguments) == 2
    error = capsys.readouterr().err
    assert re.search(r"must have at most \d+ tokens each", error)
    assert "=" not in error
    assert ("--long-texts split" in error) == (name == "TextToText")
    assert commands.main([*arguments, "--on-error", "return"]) == 0
    assert "=" not in capsys.readouterr().out
    assert commands.main([*arguments, "--long-texts", "truncate"]) == 0
