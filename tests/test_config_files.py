"""Options in TOML files: what a run writes gives the same options, and mistakes are named."""

import dataclasses
import pathlib
import tomllib

import pytest

from keras_transformer_cli import commands, training
from keras_transformer_options.config_files import read_config, to_toml
from keras_transformer_options.tasks import TASKS

FILES = {"data": [pathlib.Path("a b.tsv"), pathlib.Path("ñ 👍.tsv")]}
CHANGED = {
    "translate": {"validation": 0.2, "columns": ("es", 1), "from_": "folder", "epochs": 3, "reverse": True},
    "language-model": {"lines": True, "learning_rate": 1e-05, "precision": "mixed_bfloat16"},
    "classify": {"validation": [pathlib.Path("v.csv")], "delimiter": "\t", "header": False, "dropout": 0.0},
}


@pytest.mark.parametrize("task", TASKS)
def test_options_that_are_written_are_read(task, tmp_path):
    options = TASKS[task](**FILES, **CHANGED.get(task, {}))
    file = tmp_path / "config.toml"
    file.write_text(to_toml(options), encoding="utf-8")
    read = TASKS[task](**read_config(file, TASKS[task]))
    for field in dataclasses.fields(options):
        expected, value = getattr(options, field.name), getattr(read, field.name)
        assert (tuple(value) == expected) if isinstance(expected, tuple) else (value == expected), field.name


def test_a_file_has_only_the_options_that_differ_from_their_defaults():
    options = TASKS["translate"](dataset="spa_eng", epochs=10, validation=float("0.1"), seed=7)
    assert tomllib.loads(to_toml(options)) == {"task": "translate", "dataset": "spa_eng", "seed": 7}


def test_examples_in_memory_are_not_written():
    assert to_toml(TASKS["translate"](data=[("a", "b"), ("c", "d")])) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("epochs = 1.5", ["epochs in `config` must be an integer", "epochs = 1.5"]),
        ("epochs = true", ["epochs in `config` must be an integer", "epochs = True"]),
        ('dropout = "0.1"', ["dropout in `config` must be a number"]),
        ("reverse = 1", ["reverse in `config` must be true or false"]),
        ("data = 3", ["data in `config` must be a text"]),
        ("data = []", ["data in `config` must be a text"]),
        ('columns = ["a", 1.5]', ["columns in `config` must be a text or an integer"]),
        ("epoch = 3", ["options of the task 'translate'", "epoch = 3", "did you mean epochs?"]),
        ('task = "classify"', ["of the task 'translate'", "task = 'classify'"]),
        ("epochs 3", ["must be a TOML file", "line 1"]),
        ("a = '\xff'".encode("latin-1"), ["must be a TOML file"]),
    ],
)
def test_mistakes_are_named(content, words, tmp_path):
    file = tmp_path / "config.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="config") as error:
        read_config(file, TASKS["translate"])
    for word in (*words, str(file)):
        assert word in str(error.value)


def test_a_missing_file_is_named(tmp_path, capsys):
    assert commands.main(["train", "translate", "--config", str(tmp_path / "none.toml")]) == 2
    assert f"`--config` must be a TOML file. Received: {tmp_path / 'none.toml'}" in capsys.readouterr().err


@pytest.fixture
def recipe_of(monkeypatch):
    """Return a function from a command line to the recipe that it would train."""

    def train(options, values, output):
        train.values = values
        return 0

    monkeypatch.setattr(training, "run", train)

    def run(*arguments):
        assert commands.main([str(argument) for argument in arguments]) == 0
        return train.values

    return run


def test_one_file_needs_no_list(tmp_path, recipe_of, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("pairs.tsv").write_text("a\tb\n")
    pathlib.Path("config.toml").write_text('data = "pairs.tsv"\nvalidation = 0.2\n')
    values = recipe_of("train", "translate", "--config", "config.toml")
    assert values == {"data": [pathlib.Path("pairs.tsv")], "validation": 0.2}


def test_the_command_line_overrides_the_file(tmp_path, recipe_of):
    data, other = tmp_path / "pairs.tsv", tmp_path / "other.tsv"
    for file in (data, other):
        file.write_text("a\tb\n")
    config = tmp_path / "config.toml"
    config.write_text(f'data = ["{data}"]\nepochs = 3\nmax-length = 64\nminutes = 1\n')
    train = ["train", "translate", "--config", config, "--output", tmp_path / "run"]
    assert recipe_of(*train) == {"data": [data], "epochs": 3, "max_length": 64, "minutes": 1}
    assert recipe_of(*train, "--epochs", 5)["epochs"] == 5
    assert recipe_of(*train, "--validation", 0.5)["validation"] == 0.5
    assert recipe_of(*train, "--data", other)["data"] == [other]
    assert recipe_of(*train, "--dataset", "phrasebook")["dataset"] == "phrasebook"
