"""Errors on the command line name its options instead of Python arguments."""

import pytest

from keras_transformer.arguments import renamed
from keras_transformer_cli import commands, output

GOOD, BAD = "hola\thello\nadiós\tbye\n" * 20, "one\ttwo\nthree\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "good.tsv").write_text(GOOD)
    (folder / "bad.tsv").write_text(BAD)
    (folder / "empty.txt").write_text("\n")
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate"], ["`--data` or `--dataset` must be given", "Received: no --data, no --dataset"]),
        (["translate", "--data", "bad.tsv"], ["`--data` must name", "pass --on-error skip", "`--columns`"]),
        (["translate", "--data", "good.tsv", "--test", "bad.tsv"], ["`--test` must name files without"]),
        (["translate", "--data", "good.tsv", "--validation", "bad.tsv"], ["`--validation` must name files"]),
        (["translate", "--data", "absent-*.tsv"], ["`--data` must name files that exist", "absent-*.tsv"]),
        (["translate", "--data", "absent.tsv"], ["`--data` must", "absent.tsv"]),
        (
            ["language-model", "--data", "empty.txt", "--lines"],
            ["`--data` must name files that are not empty"],
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
    ],
)
def test_errors_of_data_and_training_name_options(files, arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert commands.main(["train", *arguments, "--output", "run"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word in message
    for name in ("paths", "pairs", "texts", "on_error", "max_length"):
        assert f"`{name}" not in message
        assert f"{name}=" not in message
    assert not (files / "run").exists()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`from_` must be new", "`--from` must be new"),
        ("Received: columns=(0, 'b')", "Received: --columns 0 b"),
        ("Received: from_=None, lines=False", "Received: no --from, --no-lines"),
        ("use `sampling=0`", "use `--sampling 0`"),
        ("`texts` must hold one, texts[1]='columns'", "`texts` must hold one, texts[1]='columns'"),
        ("no folder a/columns=2", "no folder a/columns=2"),
    ],
)
def test_arguments_become_options(message, expected):
    options = {"from_": "--from", "columns": "--columns", "lines": "--lines", "sampling": "--sampling"}
    assert output.with_options(message, options) == expected


def test_a_caller_is_named_in_place_of_the_function_it_calls():
    message = r"^`data` must be texts. Received: data\[3\]=2, texts$"
    with pytest.raises(ValueError, match=message), renamed(texts="data"):
        raise ValueError("`texts` must be texts. Received: texts[3]=2, texts")
