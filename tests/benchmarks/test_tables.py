"""Speed tables come from the results, and compare with the fastest form of each peer."""

import importlib
import json
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# "64 × 32" and "4 heads × 64" are shapes.
FIGURE_OF_SPEED = re.compile(
    r"\d[\d.,]*\s*(?:×(?!\s*\d)|%|times\b|m?s\b|seconds?\b|minutes?\b|tokens|requests|[KMG]i?B\b)"
)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("tables")


@pytest.fixture
def comparisons(tables):
    return tables.comparisons


def result(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_documentation_pages_have_the_tables_of_the_results(tables):
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.BLOCK.search(text)
        assert tables.updated(text) == text, f"{page.name} is not current: run make benchmark-tables"


@pytest.mark.parametrize(("page", "section"), [("README.md", "## How fast\n"), ("docs/benchmarks.md", "")])
def test_speed_figures_come_from_results(tables, page, section):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = text.partition(section)[2].partition("\n## ")[0] if section else text
    assert not FIGURE_OF_SPEED.findall(tables.BLOCK.sub("", text))


def test_comparisons_use_the_fastest_form_of_each_peer(comparisons):
    """The reference uses the figures of each peer in the JSON, for any contender names."""
    found, measured = comparisons.all_comparisons(), []
    for topic, name, case in (
        (comparisons.TRAINING_STEP, "train_step", "step"),
        (comparisons.TRAINING, "training", "without XLA"),
    ):
        contenders = result(name)["cases"][case]["contenders"]
        measured += [
            (topic, "", peer.split(",")[0], contenders["keras_transformer"], contender)
            for peer, contender in contenders.items()
            if not peer.startswith("keras_transformer")
        ]
    for name, case in result("generation")["cases"].items():
        for peer, contender in case["contenders"].items():
            own_form = "ours, ONNX int8" if peer.endswith("int8") else "ours, XLA"
            if not peer.startswith("ours"):
                label = {"transformers": "`transformers`", "CTranslate2 int8": "CTranslate2 in int8"}
                label = label.get(peer, peer.split(",")[0])
                short, topic = name.partition(", ")[2], comparisons.GENERATION[case["shape"]]
                measured.append((topic, short, label, case["contenders"][own_form], contender))
    assert len(measured) > 20
    for topic, case, peer, own, contender in measured:
        ratio = own["per_second"] / contender["per_second"]
        rows = [
            each
            for each in found
            if (each.topic, each.case, each.peer, each.remark) == (topic, case, peer, "")
        ]
        assert rows, (topic, case, peer)
        assert min(row.default for row in rows) <= ratio * (1 + 1e-9)


def test_attention_is_compared_with_the_fastest_mode_of_keras(comparisons):
    rows = {(each.topic, each.case): each for each in comparisons.attention()}
    contenders = result("attention_seven_rounds")["cases"]["causal, n = 8,192"]["contenders"]
    keras = max(contenders[f"Keras dense, {mode}"]["per_second"] for mode in ("graph", "XLA"))
    row = rows["causal attention", "n = 8,192"]
    assert row.default == pytest.approx(contenders["ours, graph"]["per_second"] / keras)
    assert row.peer_form == "without XLA"


def test_comparisons_are_sorted_by_relative_speed(comparisons, tables, tmp_path):
    folder = shutil.copytree(RESULTS, tmp_path / "results")
    changed = result("train_step")
    contenders = changed["cases"]["step"]["contenders"]
    contenders["KerasHub, XLA"]["per_second"] = 9 * contenders["keras_transformer"]["per_second"]
    (folder / "train_step.json").write_text(json.dumps(changed), encoding="utf-8")
    for other_machine in folder.glob("train_step_*.json"):
        other_machine.unlink()
    (row,) = [each for each in comparisons.train_step(folder) if each.peer == "KerasHub"]
    assert row.peer_form == "with XLA"
    assert row.default == pytest.approx(1 / 9)
    assert comparisons.all_comparisons(folder)[-1] == row
    assert tables.ratio(row.default) == "**0.11 ×**"


def test_a_row_has_a_dash_where_it_has_no_value(tables):
    table = tables.measuring.table([{"": "a", "x": "1"}, {"": "b", "y": 0.1234}])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert cells == [["a", "1", "–"], ["b", "–", "0.123"]]


def test_ratios_are_bold_if_this_package_is_slower(tables):
    assert [tables.ratio(value) for value in (0.994, 0.996, 1.234, 3.14, 26.4)] == [
        "**0.99 ×**",
        "1.00 ×",
        "1.23 ×",
        "3.1 ×",
        "26 ×",
    ]
    assert tables.span([0.5, 2.5]) == "**0.50** to 2.5 ×"
    assert tables.span([1.5]) == "1.50 ×"


def test_results_contain_the_processor(tables):
    text = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512f\n"
    assert tables.measuring.processor(f"{text}\n{text.replace('avx2', 'sse')}") == {
        "device": "CPU, Some CPU",
        "cpu_family_and_model": ["6", "143"],
        "vector_extensions": ["avx2", "avx512f"],
    }
    recorded = tables.measuring.machine()
    keys = {"device", "cores", "vector_extensions", "versions", "command", "date", "commit"}
    assert keys <= recorded.keys()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs Git")
def test_results_have_the_commit_of_the_checkout(tables, monkeypatch, tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(tables.measuring, "RESULTS", tmp_path / "results")
    assert tables.measuring.machine()["commit"] is None
    git("init")
    git("commit", "--allow-empty", "--message", "Begin")
    commit = tables.measuring.machine()["commit"]
    assert len(commit) >= 8
    assert git("rev-parse", "HEAD").startswith(commit)


@pytest.mark.parametrize(
    ("device", "extensions", "name"),
    [
        ("CPU, AMD EPYC", ["avx2", "fma", "avx512f"], "AMD EPYC"),
        ("CPU, AMD EPYC", ["avx2", "fma"], "AMD EPYC (AVX2)"),
        ("CPU, Intel(R) Xeon(R) Processor", ["avx2", "avx_vnni"], "Intel Xeon (AVX2)"),
        ("CPU, Neoverse-N1", ["asimd"], "Neoverse-N1"),
        ("GPU, NVIDIA H200", ["avx2"], "NVIDIA H200"),
        ("CPU, AMD EPYC", None, "AMD EPYC"),
    ],
)
def test_processors_with_and_without_avx512_have_different_names(comparisons, device, extensions, name):
    recorded = {"device": device} | ({} if extensions is None else {"vector_extensions": extensions})
    assert comparisons.machine({"machine": recorded}) == name


def test_machines_have_the_date_and_the_commit_of_their_results(tables):
    recorded = result("generation_intel_xeon")["machine"]
    assert f"generation_intel_xeon.json) ({recorded['date']}, {recorded['commit']})" in tables.machines()


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("generation", "AMD EPYC"),
        ("generation_amd_epyc_avx2", "AMD EPYC (AVX2)"),
        ("generation_intel_xeon", "Intel Xeon"),
    ],
)
def test_each_machine_has_its_own_time_and_limits_of_a_step(tables, name, machine):
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.decoder_step().splitlines()]
    found = {row[0]: row[1] for row in rows if row[-1] == machine}
    case = result(name)["cases"]["seq2seq, batch 1, greedy"]
    limit = "the matrix multiplications, by ONNX Runtime"
    assert found[limit] == f"{1000 * case['limits'][limit]['seconds']:.2f}"
    step = case["contenders"]["CTranslate2"]["seconds_per_further_token"]
    assert found["CTranslate2"] == f"{1000 * step:.2f}"


@pytest.mark.parametrize(
    ("results", "rows"),
    [
        ({"a": {"loss": 1.5}, "b": {"loss": 20.0}}, ["|figure|seeds|", "a|1.50±0.25|3", "b|20.0±0.2|3"]),
        ({"RBF, shared": {"loss": 1.0}, "RBF, separate": {"loss": 2.0}}, ["RBF|1.00±0.25|2.00±0.25|3"]),
        ({"heads": {"75% by weight": 8.0, "75% by random": 2.0}}, ["|weight|random|", "75%|8.00±0.25|2.00±0.25|3"]),
        ({"a": {"x": 1.0, "y": 1234.5}, "b": {"x": 2.0}}, ["|x|y|seeds|", "a|1.00±0.25|1,234±0|3", "b|2.00±0.25|–|3"]),
    ],
)  # fmt: skip
def test_experiments_have_means_and_deviations_in_rows_and_columns(tables, monkeypatch, results, rows):
    content = {
        case: {
            "runs": [{}] * 3,
            "over seeds": {
                name: {"mean": mean, "standard_deviation": 0.25} for name, mean in measures.items()
            },
        }
        for case, measures in results.items()
    }
    monkeypatch.setattr(tables, "read", lambda name: {"results": content})
    table = tables.experiment("any").replace(" ", "")
    assert all(row in table for row in rows), table


def test_experiments_of_one_seed_have_no_deviation(tables):
    assert tables.spread({"mean": 79.46, "standard_deviation": 0.0}, 1) == "79.5"


def test_experiments_can_be_of_some_cases(tables, monkeypatch):
    values = {"loss": {"mean": 1.0, "standard_deviation": 0.0}}
    content = {name: {"runs": [{}], "over seeds": values} for name in ("copy, memory", "text, memory")}
    monkeypatch.setattr(tables, "read", lambda name: {"results": content})
    assert "text" not in tables.experiment("any", "copy")


def test_aims_of_decoder_only_models_have_the_limit_of_their_precision(comparisons, tables, monkeypatch):
    seconds = {
        "the matrix multiplications, by ONNX Runtime, int4": 0.004,
        "ours, ONNX int4": 0.01,
        "llama.cpp Q4_0": 0.005,
    }
    figures = {name: {"seconds_per_further_token": each} for name, each in seconds.items()}
    slower = {name: {"seconds_per_further_token": 2 * each} for name, each in seconds.items()}
    cases = {}
    for threads, each in ((1, slower), (2, figures)):
        (limit, *_), limits = each, dict([*each.items()][:1])
        contenders = {name: value for name, value in each.items() if name != limit}
        cases[f"{threads} threads"] = {"limits": limits, "contenders": contenders}
    run = {"machine": {"device": "CPU, here"}, "cases": cases}
    runs = {"decoder_only": [run]}
    monkeypatch.setattr(comparisons, "runs", lambda name, *_: runs.get(name, []))
    assert "0.50 × of at most 1.25 ×" in tables.aims()


def test_closeness_of_published_checkpoints_is_of_one_engine(tables, monkeypatch):
    content = {
        "machine": {"device": "CPU, here"},
        "Tiny": {"float32": {"largest_difference": 2e-7}, "CTranslate2, float32": {"equal_words": [3, 4]}},
    }
    monkeypatch.setattr(tables, "read", lambda name: content)
    for engine, title, figure in (
        ("", "Tiny: largest difference", "2.0e-07"),
        ("CTranslate2", "Tiny: utterances with the same words", "3 of 4"),
    ):
        lines = tables.published_checkpoints(engine).splitlines()
        found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], *lines[2:])]
        assert found == [["on here", "float32"], [title, figure]]
