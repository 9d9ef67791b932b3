"""What commands print: progress, colours, start-up lines, and errors of the operating system."""

import contextlib
import os
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

from keras_transformer import recipes
from keras_transformer.recipes import runs
from keras_transformer.training.progress import EpochLines
from keras_transformer_cli import commands, output, quiet, training


@pytest.fixture(autouse=True)
def not_quiet():
    yield
    output.set_quiet(False)


@pytest.mark.parametrize(
    ("terminal", "environment", "quiet", "expected"),
    [
        (True, {}, False, 1),
        (False, {}, False, 2),
        (True, {"NO_COLOR": "1"}, False, 2),
        (True, {"NO_COLOR": ""}, False, 1),
        (True, {"TERM": "dumb"}, False, 2),
        (True, {}, True, 0),
        (False, {}, True, 0),
    ],
)
def test_a_bar_is_shown_on_terminals_with_colours_only(monkeypatch, terminal, environment, quiet, expected):
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(isatty=lambda: terminal))
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output.set_quiet(quiet)
    assert output.verbosity() == expected


def test_an_epoch_is_one_line_without_control_characters(capsys):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((8, 2), "float32")
    options = {"validation_data": (x, x[:, :1]), "epochs": 2, "verbose": 0}
    model.fit(x, x[:, :1], callbacks=[EpochLines(2)], **options)
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+ s|: [\d.e+-]+", "", line) for line in lines] == [
        f"Epoch {epoch}/2,  - loss - val_loss" for epoch in (1, 2)
    ]
    model.fit(x, x[:, :1], callbacks=[EpochLines()], **options)
    assert capsys.readouterr().out.startswith("Epoch 1, ")


def test_quiet_commands_print_no_progress(monkeypatch, capsys, tmp_path):
    def run(options, values, folder):
        output.note("Training on 8 examples")
        list(output.in_chunks(list, ["a"] * 2500))
        output.say("a result")
        return 0

    monkeypatch.setattr(training, "run", run)
    monkeypatch.setattr(training, "all_processes", contextlib.nullcontext)
    (tmp_path / "data.txt").write_text("a text\n")
    for is_quiet in (True, False):
        flags = ["--quiet"] if is_quiet else []
        arguments = ["train", "language-model", "--data", str(tmp_path / "data.txt"), *flags]
        assert commands.main([*arguments, "--output", str(tmp_path / "run")]) == 0
        printed = capsys.readouterr()
        assert printed.out.splitlines() == [*([] if is_quiet else ["Training on 8 examples"]), "a result"]
        assert bool(printed.err) != is_quiet


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_quiet_training_prints_its_scores(monkeypatch, capsys, tmp_path, is_quiet):
    def run(recipe, folder, *, say, **_):
        report = {"evaluated_on": "test", "metrics": {"accuracy": 0.75, "intervals": {}}, "signal": None}
        say(runs.summary(report))
        say(f"Report: {folder / 'report.html'}")
        return report

    monkeypatch.setattr(recipes, "run", run)
    (tmp_path / "data.csv").write_text("text,label\na text,good\nanother,bad\n")
    arguments = ["train", "classify", "--data", str(tmp_path / "data.csv"), *["--quiet"] * is_quiet]
    assert commands.main([*arguments, "--output", str(tmp_path / "run")]) == 0
    expected = ["On the test examples: accuracy 0.75", f"Report: {tmp_path / 'run/report.html'}"]
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(
    "name", ["quickstart", "predict", "evaluate", "generate", "export", "convert", "verify"]
)
def test_all_commands_take_quiet(name, capsys):
    with pytest.raises(SystemExit):
        commands.main([name, "--help"])
    assert "--quiet" in capsys.readouterr().out


class ResourceExhaustedError(Exception):
    """As TensorFlow's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ResourceExhaustedError("OOM"),
        RuntimeError("std::bad_alloc"),
        ImportError("libtext.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_an_error_of_memory_is_a_sentence(monkeypatch, capsys, error):
    def verify(*_):
        raise error

    monkeypatch.setattr(commands.folders, "check_export", verify)
    assert commands.main(["verify", "export"]) == 2
    assert re.fullmatch(
        r"keras-transformer: error: The memory is not sufficient. .*Received: .*\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("limit", [1 << 30, -1])
def test_libraries_that_fail_in_limited_memory_raise_a_memory_error(monkeypatch, limit):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(keras.backend, "backend", lambda: [].version)
    expected, message = (
        (AttributeError, "version") if limit < 0 else (MemoryError, "1,024 MiB; AttributeError")
    )
    with pytest.raises(expected, match=message):
        quiet.load_libraries()


def test_other_errors_of_the_program_are_raised(monkeypatch):
    def verify(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(commands.folders, "check_export", verify)
    with pytest.raises(RuntimeError, match="a bug"):
        commands.main(["verify", "export"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_tensorflow_prints_no_errors_of_the_processor(backend):
    """It logs them after its start, for instance that oneDNN lacks instructions for a dtype."""
    program = (
        f"from keras_transformer_cli import quiet, training; training.set_backend({backend!r})\n"
        "quiet.load_libraries()\n"
        "import os, tensorflow as tf, tensorflow_text; tf.transpose(tf.zeros([2, 2], 'int64'))\n"
        "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_errors_of_tensorflow_are_shown(capfd, monkeypatch):
    """Such as that of a cuDNN that is too old, also at the start."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    start = "E0000 00:00:1795950480.087075   32585 "
    error = (
        f"{start}cuda_dnn.cc:522] Loaded runtime CuDNN library: 8.9.6 but source was compiled with: 9.3.0.\n"
    )
    hidden = [
        f"{start}cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: UNKNOWN ERROR (303)\n",
        f"{start}cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register factory\n",
        f"{start}util.cc:131] oneDNN supports DT_INT64 only on platforms with AVX-512.\n",
        f"W{start[1:]}gpu_device.cc:2430] Cannot dlopen some GPU libraries.\n",
    ]
    with quiet.quiet_start():
        for line in (*hidden, error):
            os.write(2, line.encode())
    assert capfd.readouterr().err == error


@pytest.mark.parametrize(
    ("driver", "gpus", "visible", "is_said"),
    [
        (True, [], None, True),
        (True, [], "0", True),
        (True, [], "-1", False),
        (True, ["GPU:0"], None, False),
        (False, [], None, False),
    ],
)
def test_a_gpu_that_tensorflow_does_not_use_is_said(
    driver, gpus, visible, is_said, tmp_path, monkeypatch, capsys
):
    """TensorFlow's warning, that it could not load a library of CUDA, is among the messages of its start."""
    monkeypatch.setattr(quiet, "_GPU", tmp_path if driver else tmp_path / "none")
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda *_: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    quiet.load_libraries()
    assert ("does not use the GPU of this machine" in capsys.readouterr().err) is is_said


@pytest.mark.parametrize(
    "arguments", ["predict folder text --bogus", "train language-model --data a --bogus 1"]
)
def test_an_unknown_option_shows_the_usage_of_its_command(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        commands.main(arguments.split())
    command = " ".join(arguments.split()[: 2 if "train" in arguments else 1])
    assert end.value.code == 2
    assert re.match(rf"usage: keras-transformer {command} \[-h\]", capsys.readouterr().err)


def test_the_options_of_each_command_and_their_values_are_completed(tmp_path, capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        commands.main(["--print-completion", "bash"])
    assert ended.value.code == 0
    (tmp_path / "completion.sh").write_text(capsys.readouterr().out)
    (tmp_path / "run1").mkdir()

    def completed(*words):
        line = " ".join(words)
        script = (
            f"source completion.sh; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            f'_shtab_keras_transformer {words[0]} {words[-1]} {words[-2]}; echo "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("keras-transformer", "ev") == ["evaluate"]
    assert completed("keras-transformer", "train", "classify", "--minu") == ["--minutes"]
    assert completed("keras-transformer", "serve", "--max-b")
    assert completed("keras-transformer", "verify", "run") == ["run1"]
    assert completed("keras-transformer", "train", "classify", "--from", "run") == ["run1"]
    values = {
        ("serve", "--engine", "lit"): ["litert"],
        ("serve", "--precision", "int"): ["int8", "int4"],
        ("export", "run1", "new", "--formats", "onnx", "arg"): ["argos"],
        ("convert", "folder", "--formats", "arg"): [],
        ("convert", "folder", "--precisions", "int"): ["int8", "int4"],
        ("train", "translate", "--tokenizer", "char"): ["character"],
        ("train", "summarize", "--monitor", "rouge"): ["rouge1", "rouge2", "rougeL"],
        ("train", "translate", "--dataset", "spa"): ["spa_eng"],
        ("evaluate", "run1", "--direction", "en-d"): ["en-de"],
        ("predict", "run1", "--placeholders", "py"): ["python"],
    }
    assert {words: completed("keras-transformer", *words) for words in values} == values


def test_completion_needs_its_package(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert commands.main(["--print-completion", "zsh"]) == 2
    assert "needs the package shtab, of the extra `completion`: pip install shtab" in capsys.readouterr().err
