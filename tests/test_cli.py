import io
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from keras_transformer import pipelines, recipes
from keras_transformer.cli import commands, generation
from keras_transformer.datasets import multi30k, phrasebook, spa_eng

SMALL = recipes.TranslatorRecipe(
    vocabulary_size=336,
    num_layers=1,
    num_heads=2,
    model_dim=16,
    hidden_dim=32,
    batch_tokens=256,
    max_new_tokens=8,
)


@pytest.fixture(scope="module")
def saved(pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "pipeline"
    pipeline.save(folder)
    return folder


@pytest.fixture
def tiny_data(monkeypatch, sentence_pairs):
    """Every data set becomes a few sentences, and every recipe small."""
    # Few lengths: fewer shapes to trace.
    splits = (sentence_pairs[:4] * 8, sentence_pairs[:1], sentence_pairs[:4])
    monkeypatch.setattr(phrasebook, "load_data", lambda *_: splits)
    monkeypatch.setattr(spa_eng, "load_data", lambda *_: splits)
    monkeypatch.setattr(multi30k, "load_data", lambda *_: splits)
    monkeypatch.setattr(recipes, "PHRASEBOOK", SMALL)
    monkeypatch.setattr(recipes, "TranslatorRecipe", lambda: SMALL)


def never(*_, **__):
    raise AssertionError("this must not run")


def lines(capsys):
    return capsys.readouterr().out.split("\n")[:-1]


def check_error(capsys, arguments, *words):
    """The command ends with status 2 and one line on standard error that holds `words`."""
    status = commands.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    ours = [line for line in printed.err.splitlines() if "LOG(INFO)" not in line]
    assert status == 2
    assert len(ours) == 1, printed.err
    assert ours[0].startswith("keras-transformer: error: ")
    for word in words:
        assert str(word) in ours[0]


@pytest.mark.slow
def test_generate_prints_one_line_for_each_text_from_pipeline_and_export(
    saved, exported, pipeline, texts, capsys
):
    texts = [one.replace("\n", " ") for one in texts]
    for path in (saved, exported):
        assert commands.main(["generate", str(path), *texts]) == 0
        assert lines(capsys) == pipeline(texts)


@pytest.mark.slow
def test_generate_runs_an_export_that_is_a_saved_model_only(damaged, pipeline, texts, capsys):
    shutil.rmtree(damaged / "onnx")
    texts = [one.replace("\n", " ") for one in texts]
    assert commands.main(["generate", str(damaged), *texts]) == 0
    assert lines(capsys) == pipeline(texts)


@pytest.mark.slow
def test_generate_reads_lines_from_standard_input(exported, pipeline, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("uno dos\n\nla casa azul\nhoy llueve"))
    assert commands.main(["generate", str(exported)]) == 0
    expected = pipeline(["uno dos", "la casa azul", "hoy llueve"])
    assert lines(capsys) == [expected[0], "", *expected[1:]]


def test_an_empty_text_gives_an_empty_line_and_no_text_no_line(exported, capsys, monkeypatch):
    assert commands.main(["generate", str(exported), ""]) == 0
    assert capsys.readouterr().out == "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert commands.main(["generate", str(exported)]) == 0
    assert capsys.readouterr().out == ""


def test_an_answer_of_several_lines_is_printed_as_one(capsys, monkeypatch):
    monkeypatch.setattr(generation, "load", lambda _: lambda texts: ["a\nb", "", "c\r\nd\u2028e"])
    assert commands.main(["generate", "anything", "1", "2", "3"]) == 0
    assert lines(capsys) == ["a b", "", "c d e"]


@pytest.mark.slow
def test_generate_on_an_export_needs_no_tensorflow(exported, pipeline):
    program = (
        "import sys\nfrom keras_transformer import cli\nstatus = cli.main(sys.argv[1:])\n"
        "sys.exit(status or ('tensorflow' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", str(exported), "uno dos"],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, pipeline("uno dos") + "\n", "")


@pytest.mark.slow
def test_the_module_runs_as_a_program_in_a_pipe(exported, pipeline):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer.cli", "generate", str(exported)],
        input="mañana viene el ñandú\n\n".encode(),
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1", "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == pipeline("mañana viene el ñandú") + "\n\n"
    assert done.stderr == b""


@pytest.mark.slow
def test_an_error_of_the_program_is_one_line_and_status_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer.cli", "verify", str(tmp_path / "absent")],
        capture_output=True,
        text=True,
    )
    ours = [line for line in done.stderr.splitlines() if "port.cc" not in line and "LOG(INFO)" not in line]
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ours[-1].startswith("keras-transformer: error: ")
    assert "absent" in ours[-1]


@pytest.mark.parametrize("command", ["generate", "evaluate", "export", "verify"])
def test_a_missing_folder_is_refused(tmp_path, capsys, tiny_data, command):
    rest = {"generate": ["uno"], "export": [tmp_path / "out"]}.get(command, [])
    check_error(capsys, [command, tmp_path / "absent", *rest], "absent")
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_too_long_is_an_error(saved, exported, capsys):
    for path in (saved, exported):
        check_error(capsys, ["generate", path, "uno", "o" * 10_000], "texts[1]", "max_source_tokens")


def test_a_damaged_export_is_an_error(damaged, capsys):
    (damaged / "onnx" / "generate_greedy.onnx").write_bytes(b"")
    check_error(capsys, ["generate", damaged, "uno"], "generate_greedy.onnx")
    check_error(capsys, ["verify", damaged], "generate_greedy.onnx")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.keras", b""),
        ("config.json", b'{"pipeline": "TextToText"}'),
        ("config.json", b'{"pipeline": ["TextToText"]}'),
        ("generation_config.json", b'{"unknown": 1}'),
        ("generation_config.json", b'{"max_new_tokens": "8"}'),
        ("tokenizer/tokenizer.json", b"{}"),
    ],
)
def test_a_damaged_pipeline_is_an_error(saved, tmp_path, capsys, name, content):
    copied = pathlib.Path(shutil.copytree(saved, tmp_path / "copied"))
    (copied / name).write_bytes(content)
    check_error(capsys, ["generate", copied, "uno"])


@pytest.mark.parametrize("arguments", [[], ["fly"], ["generate"], ["train", "--dataset", "other"]])
def test_a_wrong_command_line_is_status_2_with_its_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        commands.main(arguments)
    assert stopped.value.code == 2
    assert "usage: keras-transformer" in capsys.readouterr().err


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        commands.main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    names = "quickstart train evaluate generate score align average export verify"
    assert all(f"\n    {name}" in printed for name in names.split())


@pytest.mark.slow
def test_verify_prints_its_report(exported, saved, capsys):
    for more in ([], ["--pipeline", str(saved)]):
        assert commands.main(["verify", str(exported), *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["onnx"]["graphs"]["onnx_loop"]["near_ties"] == 0
        assert set(report) == {"onnx", "saved_model/tiny/1"}


@pytest.mark.slow
def test_export_writes_both_formats_and_prints_its_folder(quick, saved, tmp_path, capsys):
    out = tmp_path / "es-en"
    assert commands.main(["export", str(saved), str(out), "--precisions", "float32", "int8"]) == 0
    assert lines(capsys) == ["[1/2] saved_model/es-en/1", "[2/2] onnx: float32, int8", str(out)]
    assert (out / "onnx" / "int8").is_dir()
    assert (out / "manifest.json").is_file()
    check_error(capsys, ["export", saved, out], "next free one is 2")


@pytest.mark.slow
def test_export_signs_and_verify_asks_for_the_signature(quick, saved, exported, tmp_path, capsys):
    (tmp_path / "key").write_bytes(b"key")
    (tmp_path / "other").write_bytes(b"other")
    out, key = tmp_path / "es-en", ["--signature-key-file", str(tmp_path / "key")]
    assert commands.main(["export", str(saved), str(out), "--formats", "onnx", *key]) == 0
    assert commands.main(["verify", str(out), *key]) == 0
    capsys.readouterr()
    other = ["--signature-key-file", tmp_path / "other"]
    check_error(capsys, ["verify", out, *other], "must be signed with `signature_key`")
    check_error(capsys, ["verify", exported, *key], "without a signature")
    check_error(capsys, ["verify", out, "--signature-key-file", tmp_path / "absent"], "absent")


@pytest.mark.slow
def test_export_takes_a_format_a_name_and_a_version(quick, saved, tmp_path, capsys):
    out = tmp_path / "new"
    arguments = ["export", str(saved), str(out), "--formats", "saved_model", "--name", "m", "--version", "4"]
    assert commands.main(arguments) == 0
    assert lines(capsys) == [f"{out}/saved_model/m/4"]
    assert not (out / "onnx").exists()


def test_precisions_need_the_format_onnx(saved, tmp_path, capsys):
    arguments = ["export", saved, tmp_path / "new", "--formats", "saved_model", "--precisions", "int8"]
    check_error(capsys, arguments, "`--precisions` must be given only with the format onnx")


def test_evaluate_prints_scores_with_their_signatures(exported, tiny_data, capsys):
    assert commands.main(["evaluate", str(exported)]) == 0
    found = lines(capsys)
    assert [line.split()[0] for line in found] == ["bleu", "chrf", "exact"]
    assert "tok:13a" in found[0]
    assert found[2] == "exact match 0.0% of 4 sentences"


def test_the_direction_swaps_the_pairs(monkeypatch, tiny_data, sentence_pairs):
    train, _, test = commands._pairs("phrasebook", "en-es")
    assert train[:2] == [(target, source) for source, target in sentence_pairs[:2]]
    assert len(test) == 4
    assert commands._pairs("phrasebook", "es-en")[2] == sentence_pairs[:4]


@pytest.mark.parametrize("direction", ["de-en", "es_en", "es", ""])
def test_an_unknown_direction_is_refused(exported, capsys, monkeypatch, tmp_path, direction):
    monkeypatch.setattr(type(SMALL), "train", never)
    check_error(capsys, ["evaluate", exported, "--direction", direction], "--direction")
    check_error(capsys, ["train", "--direction", direction, "--output", tmp_path / "run"], "--direction")


@pytest.mark.slow
def test_train_writes_a_pipeline_and_a_report(tiny_data, tmp_path, capsys):
    out = tmp_path / "a" / "run"
    assert commands.main(["train", "--minutes", "0.01", "--output", str(out)]) == 0
    assert "exact match" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert {"bleu", "chrf", "exact_match", "epochs", "minutes"} <= set(report)
    assert report["epochs"]["loss"]
    assert isinstance(pipelines.load(out / "pipeline")("uno dos"), str)


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file"])
def test_train_refuses_an_existing_output_before_any_training(tiny_data, tmp_path, capsys, monkeypatch, kind):
    out = tmp_path / "run"
    if kind == "file":
        out.write_text("")
    else:
        out.mkdir()
    if kind == "folder":
        (out / "notes.txt").write_text("")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(commands, "_pairs", never)
    check_error(capsys, ["train", "--output", out], "--output", out)
    assert sorted(tmp_path.rglob("*")) == before


def test_train_refuses_an_output_below_a_file_before_any_training(tiny_data, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(type(SMALL), "train", never)
    check_error(capsys, ["train", "--output", tmp_path / "file" / "run"], "file")


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_train_refuses_invalid_minutes_before_any_training(tiny_data, tmp_path, capsys, monkeypatch, minutes):
    monkeypatch.setattr(type(SMALL), "model", never)
    check_error(capsys, ["train", "--minutes", minutes, "--output", tmp_path / "run"], "minutes")
    assert list(tmp_path.iterdir()) == []


def test_quickstart_prints_how_to_serve(monkeypatch, tmp_path, capsys):
    called = []
    monkeypatch.setattr(recipes, "quickstart", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(sys, "argv", ["/somewhere/keras-transformer"])
    assert commands.main(["quickstart", "--output", str(tmp_path / "q"), "--epochs", "2"]) == 0
    assert called[0][:2] == (tmp_path / "q", 2)
    printed = capsys.readouterr().out
    assert f"{tmp_path}/q/export" in printed
    assert "tensorflow/serving" in printed


def test_quickstart_refuses_a_folder_of_something_else(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("")
    check_error(capsys, ["quickstart", "--output", tmp_path], "thesis.txt")


def test_unforeseen_errors_are_not_swallowed(monkeypatch):
    monkeypatch.setattr(generation, "load", never)
    with pytest.raises(AssertionError, match="must not run"):
        commands.main(["generate", "x", "y"])
