"""The runner of comparisons with references: limits, seeds, settings and result format."""

import dataclasses
import importlib
import json
import pathlib

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.backend_neutral


@dataclasses.dataclass(frozen=True)
class Settings:
    """The scale of differences."""

    scale: float = 1.0
    sizes: tuple[int, ...] = (1, 2)


@pytest.fixture
def references(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("references")


@pytest.fixture
def compared(references, tmp_path):
    """Return compared(*options), which gives the exit status and the results of a comparison."""

    def compare(run):
        difference = run.case["difference"] * run.settings.scale
        return {"outputs": difference, "score": float(run.seed), "ids": [run.case["same"], 4], "saved": True}

    def run(*options):
        made = references.Reference(
            "some/comparison.py",
            "A comparison.",
            {"exact": {"difference": 0.0, "same": 4}, "rounded": {"difference": 1e-5, "same": 4}},
            compare,
            limits={"outputs": 1e-4},
            equal=("ids", "saved"),
            measures=("score",),
            published={"rounded": 3.0, "exact": 2.0},
            settings=Settings,
            seeds=(1, 3),
        )
        status = made.main([*options, "--output", str(tmp_path)])
        return status, json.loads((tmp_path / "comparison.json").read_text())

    return run


def test_largest_differences_and_counts_are_recorded(compared, capsys):
    status, content = compared()
    assert status == 0
    assert content["largest"] == {"outputs": 1e-5}
    assert content["equal"] == {"ids": [16, 16], "saved": [4, 4]}
    assert [run["seed"] for run in content["results"]["exact"]["runs"]] == [1, 3]
    assert {"command", "wall_seconds", "cpu_seconds"} <= content["results"]["exact"]["runs"][0].keys()
    score = content["results"]["exact"]["over seeds"]["score"]
    assert score["mean"] == 2.0
    assert score["standard_error"] == pytest.approx(np.std([1, 3], ddof=1) / 2**0.5)
    assert content["results"]["rounded"]["published"] == 3.0
    assert "1.0e-05" in capsys.readouterr().out


def test_an_exceeded_limit_fails(compared):
    assert compared("--scale", "100")[0] == 1
    assert compared("--scale", "100", "--only", "exact")[0] == 0


def test_options_change_settings_and_keep_results_of_other_cases(compared):
    compared()
    _, content = compared("--only", "rounded", "--scale", "2", "--sizes", "5", "6", "7", "--seeds", "8")
    assert content["results"]["rounded"]["settings"] == {"scale": 2.0, "sizes": [5, 6, 7]}
    assert content["results"]["exact"]["settings"] == {"scale": 1.0, "sizes": [1, 2]}
    assert len(content["results"]["exact"]["runs"]) == 2
    assert content["largest"] == {"outputs": 2e-5}


def test_runs_of_other_seeds_with_the_same_settings_are_kept(compared):
    compared()
    _, content = compared("--only", "exact", "--seeds", "3", "2")
    assert [run["seed"] for run in content["results"]["exact"]["runs"]] == [1, 2, 3]
    assert content["results"]["exact"]["over seeds"]["score"]["mean"] == 2.0
    _, content = compared("--only", "exact", "--seeds", "5", "--scale", "2")
    assert [run["seed"] for run in content["results"]["exact"]["runs"]] == [5]


def test_published_figures_belong_to_the_default_name(compared, tmp_path):
    compared()
    compared("--name", "other")
    other = json.loads((tmp_path / "other.json").read_text())
    assert "published" not in other["results"]["exact"]


def test_gradient_differences_are_relative_to_the_largest_entry_above_rounding(references):
    ones = np.ones(3)
    gradients = [("large", 1.01 * ones, ones), ("small", 0.012 * ones, 0.01 * ones)]
    found = references.worst_gradient(gradients)
    assert found == {"gradients": pytest.approx(0.2), "worst gradient": "small"}
    rounding = ("bias", 2e-9 * ones, 1e-9 * ones)
    assert references.worst_gradient([gradients[0], rounding])["worst gradient"] == "large"
