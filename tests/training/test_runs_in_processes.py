"""The command line in two processes over loopback: one training run, which a signal or an error ends in both."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from keras_transformer import pipelines, processes, recipes
from keras_transformer_cli import main

BOUND = 5e-6
OPTIONS = {
    "--layers": 1,
    "--heads": 2,
    "--model-dim": 16,
    "--vocabulary-size": 300,
    "--batch-size": 8,
    "--epochs": 3,
    "--patience": 100,
    "--max-new-tokens": 4,
}


@pytest.fixture
def data(tmp_path):
    """Options for files of pairs, to train on and for validation."""
    drawn, options = random.Random(0), {}
    for option, count in (("--data", 156), ("--validation", 4)):
        texts = [" ".join(drawn.choices(("one", "two", "three", "four", "five"), k=4)) for _ in range(count)]
        options[option] = tmp_path / f"{option[2:]}.tsv"
        options[option].write_text("".join(f"{text}\t{text.upper()}\n" for text in texts))
    return options


def examples(task, path):
    """Write 16 examples of a task with texts of equal length; return the file, or the folder of images."""
    drawn, path = random.Random(0), path / task
    if task == "images":
        for number in range(16):
            folder = path / ("even", "odd")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            image = np.array(drawn.choices(range(256), k=8 * 8 * 3)).reshape(8, 8, 3)
            keras.utils.save_img(folder / f"{number}.png", image, scale=False)
        return path
    texts = [drawn.sample(("one", "two", "three", "four", "five"), k=5) for _ in range(16)]
    if task == "answer":
        paragraphs = []
        for number, words in enumerate(texts):
            answers = [{"text": words[0], "answer_start": 0}]
            question = {"id": str(number), "question": "which is first", "answers": answers}
            paragraphs.append({"context": " ".join(words), "qas": [question]})
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        return path
    lines = {
        "classify": lambda number, words: f"{' '.join(words)}\t{number % 2}",
        "tag": lambda _, words: "".join(f"{word} {'B-N' if word == 'one' else 'O'}\n" for word in words),
    }
    path = path.with_suffix(".conll" if task == "tag" else ".tsv")
    path.write_text("".join(f"{lines[task](number, words)}\n" for number, words in enumerate(texts)))
    return path


@contextlib.contextmanager
def started(*options_of, task="translate", flags=()):
    """Start the command line in one process for each set of options, with the environment of a launcher."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(options_of))}
    command = [
        sys.executable,
        "-m",
        "keras_transformer_cli",
        "train",
        task,
        "--backend",
        "jax",
        *flags,
    ]
    running = [
        subprocess.Popen(
            [*command, *(str(part) for option in options.items() for part in option)],
            env={**environment, "RANK": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, options in enumerate(options_of)
    ]
    try:
        yield running
    finally:
        for each in running:
            each.kill()


def ended(running):
    """Wait for processes; return their exit statuses and outputs."""
    outputs = [each.communicate(timeout=1800) for each in running]
    return [each.returncode for each in running], outputs


def trained(folder):
    """Return the weights of a run, without key biases, and its report.

    Gradients of key biases are rounding errors, which Adam scales up.
    """
    weights = pipelines.load(folder / "pipeline").model.weights
    kept = [weight.numpy() for weight in weights if not weight.path.endswith("/key/bias")]
    assert len(weights) - len(kept) == 3  # in encoder, decoder and cross-attention
    return kept, json.loads((folder / "report.json").read_text())


def assert_same_run(one, other):
    (weights, report), (others, other_report) = trained(one), trained(other)
    for weight, expected in zip(weights, others, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=BOUND)
    assert_same_history(report, other_report)


def assert_same_history(report, other_report):
    for name in ("loss", "val_loss", "learning_rate"):
        np.testing.assert_allclose(report["history"][name], other_report["history"][name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_two_processes_equal_one(data, tmp_path):
    options = {**OPTIONS, **data}
    for count in (1, 2):
        with started(*[{**options, "--output": tmp_path / str(count)}] * count) as running:
            statuses, outputs = ended(running)
        assert statuses == [0] * count, outputs
        assert "Report: " in outputs[0][0]
    assert outputs[1][0] == "" or outputs[1][0].startswith("[Gloo]")
    assert_same_run(tmp_path / "1", tmp_path / "2")
    assert not (tmp_path / "2" / "training").exists()


@pytest.mark.slow
@pytest.mark.backend_neutral
@pytest.mark.parametrize("task", ["classify", "images", "tag", "answer"])
def test_two_processes_equal_one_for_other_tasks(task, tmp_path):
    data = examples(task, tmp_path)
    options = {**OPTIONS, "--data": data, "--validation": data, "--epochs": 2, "--max-length": 32}
    del options["--max-new-tokens"]
    if task == "images":
        del options["--vocabulary-size"]
        options["--image-size"] = 8
    command = "classify" if task == "images" else task
    for count in (1, 2):
        of_each = [{**options, "--output": tmp_path / str(count)}] * count
        with started(*of_each, task=command) as running:
            statuses, outputs = ended(running)
        assert statuses == [0] * count, outputs
    reports = [json.loads((tmp_path / count / "report.json").read_text()) for count in ("1", "2")]
    assert_same_history(*reports)
    assert type(pipelines.load(tmp_path / "2" / "pipeline")).__name__ == reports[0]["pipeline"]


def wait_for_batches(process):
    """Wait until a process shows progress in an epoch of 20 batches, and a little longer."""
    shown = b""
    while b"/20" not in shown:
        part = os.read(process.stdout.fileno(), 4096)
        assert part, "the process ended"
        shown += part
    time.sleep(1)


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_resumed_runs_equal_an_uninterrupted_run(data, tmp_path):
    options = {**OPTIONS, **data, "--epochs": 40}
    with started(*[{**options, "--output": tmp_path / "whole"}] * 2) as running:
        assert ended(running)[0] == [0, 0]
    folder = tmp_path / "interrupted"
    options["--output"] = folder
    for index, number in ((1, signal.SIGINT), (0, signal.SIGTERM)):
        with started(options, options, flags=["--resume"]) as running:
            wait_for_batches(running[0])
            running[index].send_signal(number)
            statuses, outputs = ended(running)
        assert statuses == [128 + number] * 2, outputs
        assert f"Stopped by {signal.Signals(number).name} in epoch" in outputs[0][0]
    for index in (0, 1):
        with started(options, options, flags=["--resume"]) as running:
            wait_for_batches(running[0])
            running[index].kill()
            assert 0 not in ended(running)[0]
    with started(options, options, flags=["--resume"]) as running:
        statuses, outputs = ended(running)
    assert statuses == [0, 0], outputs
    assert_same_run(folder, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.backend_neutral
@pytest.mark.parametrize("case", ["epochs", "data", "file", "folder"])
def test_processes_with_different_arguments_end_with_one_error(case, data, tmp_path):
    options = {**OPTIONS, **data, "--output": tmp_path / "run"}
    other = dict(options)
    expected = "must be equal in all processes. Received: process 0: "
    if case == "epochs":
        other["--epochs"], expected = 4, f"`--epochs` {expected}epochs 3; process 1: epochs 4"
    if case == "data":
        other["--data"], expected = data["--validation"], f"`--data` {expected}"
    if case == "file":
        other["--data"] = tmp_path / "absent.tsv"
        expected = "absent.tsv"
    if case == "folder":
        other["--output"] = tmp_path / "other"
        (tmp_path / "other").mkdir()
        expected = f"`--output` must be new. Received: {tmp_path / 'other'}"
    with started(options, other) as running:
        statuses, outputs = ended(running)
    assert statuses == [2, 2], outputs
    for _, error in outputs:
        (line,) = [line for line in error.splitlines() if line.startswith("keras-transformer: error: ")]
        assert expected in line
        assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow refuses them")
def test_tensorflow_rejects_several_processes(data, tmp_path, monkeypatch, capsys):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "translate", "--data", str(data["--data"]), "--output", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pass --backend jax to keras-transformer train" in line
    assert not (tmp_path / "run").exists()


class _Silent:
    """A key-value store in which other processes never set a value."""

    def key_value_set(self, key, value):
        pass

    def blocking_key_value_get(self, key, timeout):
        raise TimeoutError(key)


def test_a_process_that_does_not_respond_gives_a_one_line_error(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes._STATE, "process", processes.Process(0, 2))
    monkeypatch.setattr(processes, "_client", _Silent)
    monkeypatch.setattr(recipes, "run", lambda *_, **__: processes.exchange("settings", ""))
    arguments = ["train", "translate", "--data", str(data["--data"]), "--output", str(tmp_path / "run")]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("keras-transformer: error: Process 0 did not answer process 0 on its settings")


def test_an_error_without_other_processes_keeps_its_traceback(data, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a defect")

    monkeypatch.setattr(recipes, "run", fails)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["train", "translate", "--data", str(data["--data"]), "--output", str(tmp_path / "run")])
