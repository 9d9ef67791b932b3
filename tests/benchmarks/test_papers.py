"""The commands that reproduce papers, on data of a minute's size."""

import dataclasses
import importlib.util
import json
import pathlib
import sys

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
WORDS = [
    "a",
    "fine",
    "film",
    "with",
    "heart",
    "and",
    "wit",
    ",",
    "but",
    "dull",
    "plot",
    "no",
    "fun",
    "at",
    "all",
]


def script(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # it imports `measuring`
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / "papers" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def smaller(module, monkeypatch, **settings):
    """Settings whose defaults are smaller."""
    fields = [(field.name, field.type, field.default) for field in dataclasses.fields(module.Settings)]
    small = dataclasses.make_dataclass(
        "Settings", [(name, kind, settings.get(name, default)) for name, kind, default in fields], frozen=True
    )
    monkeypatch.setattr(module, "Settings", small)


def test_cora(monkeypatch, tmp_path, capsys):
    from keras_transformer.datasets import planetoid

    random, number = np.random.default_rng(0), np.arange(30)
    labels = number % 2
    graph = planetoid.Graph(
        nodes=(random.random((30, 6)) < 0.3 + 0.4 * labels[:, None]).astype("float32"),
        edges=np.array([[i, (i + 2) % 30] for i in range(30)]),
        labels=labels,
        train=number < 10,
        validation=(number >= 10) & (number < 20),
        test=number >= 20,
    )
    cora = script("cora", monkeypatch)
    monkeypatch.setattr(planetoid, "load_data", lambda folder: graph)
    smaller(cora, monkeypatch, patience=3, max_epochs=6)
    cora.main(["--seeds", "0", "1", "--output", str(tmp_path)])
    result = json.loads((tmp_path / "cora.json").read_text())
    accuracies = [run["test"] for run in result["runs"]]
    assert result["test"]["mean"] == pytest.approx(np.mean(accuracies))
    assert result["test"]["standard_error"] == pytest.approx(np.std(accuracies, ddof=1) / 2**0.5)
    assert all(run["best_epoch"] <= run["epochs"] <= 6 for run in result["runs"])
    assert result["settings"]["learning_rate"] == 0.005
    assert "over 2 seeds" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_mnist(monkeypatch, tmp_path, capsys):
    from keras_transformer.datasets import mnist

    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (40, 28, 28, 1)).astype("uint8"), random.integers(0, 10, 40)
    module = script("mnist", monkeypatch)
    monkeypatch.setattr(mnist, "load_data", lambda folder: ((images, labels), (images[:10], labels[:10])))
    smaller(module, monkeypatch, patch_size=14, num_layers=1, batch_size=8, validation_images=8)
    module.main(["--minutes", "0.001", "--output", str(tmp_path)])
    result = json.loads((tmp_path / "mnist.json").read_text())
    assert 0 <= result["test"]["accuracy"] <= 100
    assert result["updates"] >= 1
    assert "published 97.8" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_sst2(monkeypatch, tmp_path, capsys):
    from keras_transformer.datasets import sst2

    random = np.random.default_rng(0)
    part = [(" ".join(random.choice(WORDS, 6)), int(label)) for label in random.integers(0, 2, 20)]
    module = script("sst2", monkeypatch)
    monkeypatch.setattr(sst2, "load_data", lambda folder: (part, part[:6], part[6:12]))
    sizes = {"vocabulary_size": 60, "num_layers": 2, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}
    smaller(module, monkeypatch, **sizes, batch_size=4, epochs=1, pretraining_epochs=1)
    module.main(["--seeds", "0", "--output", str(tmp_path)])
    result = json.loads((tmp_path / "sst2.json").read_text())
    assert set(result["models"]) == {"bert", "bert_pretrained", "causal", "lstm"}
    counts = {name: each["runs"][0]["parameters"] for name, each in result["models"].items()}
    assert counts["bert"] == counts["causal"]
    assert "pretraining" in result["models"]["bert_pretrained"]["runs"][0]
    assert "test accuracy" in capsys.readouterr().out


def test_an_lstm_has_as_many_weights_as_the_blocks(monkeypatch):
    settings = script("sst2", monkeypatch).Settings()
    units = sys.modules["sst2"].lstm_units(settings)
    d, h, n = settings.model_dim, settings.hidden_dim, settings.num_layers
    lstm = 4 * (units * units + d * units) + (n - 1) * 8 * units * units
    assert lstm == pytest.approx(n * (4 * d * d + 2 * d * h), rel=0.02)
