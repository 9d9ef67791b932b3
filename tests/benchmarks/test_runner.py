"""The benchmark runner: rounds, medians, ratios and result format."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.backend_neutral
PROGRAM = """
import time
import runner

def waiting(seconds):
    def prepare(case, context):
        def run():
            time.sleep(case["times"] * seconds / context.threads)
            return {"units": 2, "of context": context.options.word == (context.folder / "word").read_text()}
        return run
    return prepare

def failing(case, context):
    raise ImportError("no such library")

BENCHMARK = runner.Benchmark(
    __file__, __doc__, "naps", {"short": {"times": 1}, "long": {"times": 3}},
    {"ours": waiting(0.01), "peer": waiting(0.03), "other": failing, "absent": waiting(0.0)},
    limits={"limit": waiting(0.005)}, applies=lambda case, name: name != "absent", threads=(1, 2), tries=1, seconds=0.0,
    setup=lambda folder, options: (folder / "word").write_text(options.word),
    derive=lambda case, measured: measured.update(derived=case["times"]),
    add_options=lambda parser: parser.add_argument("--word", default="it"),
)

if __name__ == "__main__":
    BENCHMARK.main()
"""


@pytest.fixture(scope="module")
def naps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("naps")
    (folder / "naps.py").write_text(PROGRAM)
    command = [sys.executable, folder / "naps.py", "--rounds", "3", "--output", folder]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(BENCHMARKS)}, check=True, capture_output=True, text=True
    )
    return json.loads((folder / "naps.json").read_text()), done.stdout


def test_each_contender_has_rounds_and_medians(naps):
    result, _ = naps
    assert list(result["cases"]) == ["short", "long"]
    for case in result["cases"].values():
        assert list(case["contenders"]) == ["ours", "peer"]
        for found in case["contenders"].values():
            assert len(found["rounds"]) == 3
            assert found["seconds"] == pytest.approx(np.median([row["seconds"] for row in found["rounds"]]))
            assert found["per_second"] * found["seconds"] == pytest.approx(2, rel=0.2)
            assert found["of context"]


def test_the_faster_number_of_threads_is_reported(naps):
    for case in naps[0]["cases"].values():
        assert {found["threads"] for found in case["contenders"].values()} == {2}


def test_ratios_compare_the_first_contender_with_intervals(naps):
    for case in naps[0]["cases"].values():
        assert "ratios" not in case["contenders"]["ours"]
        ratio = case["contenders"]["peer"]["ratios"]["wall"]
        assert ratio["interval"][0] <= ratio["median"] <= ratio["interval"][1]
        assert 1.5 < ratio["median"] < 4.5


def test_limits_derived_figures_and_skipped_contenders_are_recorded(naps):
    result, printed = naps
    for name, times in (("short", 1), ("long", 3)):
        case = result["cases"][name]
        assert list(case["limits"]) == ["limit"]
        assert case["derived"] == case["times"] == times
        assert "no such library" in case["skipped"]["other"]
    assert "skipped other" in printed
    assert {"device", "cores", "versions", "command"} <= result["machine"].keys()
    assert result["settings"]["rounds"] == 3


def test_bootstrap_intervals_contain_the_ratio_and_shrink_with_rounds(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measuring

    random = np.random.default_rng(0)

    def width(rounds):
        noise = random.normal(1, 0.05, (2, rounds))
        found = measuring.ratio(2 * noise[0], noise[1])
        low, high = found["interval"]
        assert low < 2 < high
        return high - low

    assert width(200) < width(15)
    assert measuring.ratio([3.0] * 5, [2.0] * 5) == {"median": 1.5, "interval": [1.5, 1.5]}
