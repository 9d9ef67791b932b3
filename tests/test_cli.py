import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, pipelines, recipes
from keras_transformer.datasets import multi30k, phrasebook, spa_eng
from keras_transformer.pipelines import MaskPrediction, Span, TaggedWord
from keras_transformer.recipes import tokenizers
from keras_transformer.recipes.translate import translation_data
from keras_transformer_cli import commands, generation, output, prediction, training
from keras_transformer_options.task_options import flags_of
from keras_transformer_options.tasks import TASKS

SMALL = ["--layers", "1", "--heads", "2", "--model-dim", "16", "--vocabulary-size", "336", "--no-jit-compile"]


@pytest.fixture(scope="module")
def saved(pipeline, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "pipeline"
    pipeline.save(folder)
    return folder


@pytest.fixture
def tiny_data(monkeypatch, sentence_pairs):
    """Replace every dataset by a few sentences."""
    # Few lengths, so that few shapes are traced.
    splits = (sentence_pairs[:4] * 8, sentence_pairs[:1], sentence_pairs[:4])
    monkeypatch.setattr(phrasebook, "load_data", lambda *_: splits)
    monkeypatch.setattr(spa_eng, "load_data", lambda *_: splits)
    monkeypatch.setattr(multi30k, "load_data", lambda *_: splits)


def never(*_, **__):
    raise AssertionError("this must not run")


def lines(capsys):
    return capsys.readouterr().out.split("\n")[:-1]


def check_error(capsys, arguments, *words):
    """Check that the command exits with status 2 and one line on standard error that contains `words`."""
    status = commands.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    errors = printed.err.splitlines()
    assert status == 2
    assert len(errors) == 1, printed.err
    assert errors[0].startswith("keras-transformer: error: ")
    for word in words:
        assert str(word) in errors[0]


@pytest.mark.slow
def test_generate_prints_one_line_for_each_text_from_pipeline_and_export(
    saved, exported, pipeline, texts, capsys
):
    texts = [one.replace("\n", " ") for one in texts]
    for path in (saved, exported):
        assert commands.main(["generate", str(path), *texts]) == 0
        assert lines(capsys) == pipeline(texts)


@pytest.mark.slow
def test_generate_runs_a_saved_model_only_export(damaged, pipeline, texts, capsys):
    shutil.rmtree(damaged / "onnx")
    texts = [one.replace("\n", " ") for one in texts]
    assert commands.main(["generate", str(damaged), *texts]) == 0
    assert lines(capsys) == pipeline(texts)


@pytest.mark.slow
def test_generate_reads_lines_from_standard_input(exported, pipeline, capsys, standard_input):
    standard_input("\ufeffuno dos\r\n\nla casa azul\rhoy llueve")
    assert commands.main(["generate", str(exported)]) == 0
    expected = pipeline(["uno dos", "la casa azul", "hoy llueve"])
    assert lines(capsys) == [expected[0], "", *expected[1:]]


def test_empty_texts_give_empty_lines_and_empty_input_gives_none(exported, capsys, standard_input):
    assert commands.main(["generate", str(exported), ""]) == 0
    assert capsys.readouterr().out == "\n"
    for named in ([], ["-"]):
        standard_input("")
        assert commands.main(["generate", str(exported), *named]) == 0
        assert capsys.readouterr().out == ""


def test_an_output_of_several_lines_is_printed_as_one(capsys, monkeypatch):
    monkeypatch.setattr(generation, "load", lambda _: lambda texts: ["a\nb", "", "c\r\nd\u2028e"])
    assert commands.main(["generate", "anything", "1", "2", "3"]) == 0
    assert lines(capsys) == ["a b", "", "c d e"]


@pytest.mark.slow
def test_generate_on_an_export_needs_no_tensorflow(exported, pipeline):
    program = (
        "import sys\nimport keras_transformer_cli as cli\nstatus = cli.main(sys.argv[1:])\n"
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
def test_the_module_runs_as_a_command_in_a_pipe(exported, pipeline):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer_cli", "generate", str(exported)],
        input="mañana viene el ñandú\n\n".encode(),
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1", "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == pipeline("mañana viene el ñandú") + "\n\n"
    assert done.stderr == b""


@pytest.mark.slow
def test_errors_are_one_line_with_status_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer_cli", "verify", str(tmp_path / "absent")],
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stderr.splitlines() if "port.cc" not in line and "LOG(INFO)" not in line]
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert errors[-1].startswith("keras-transformer: error: ")
    assert "absent" in errors[-1]


@pytest.mark.parametrize("command", ["generate", "evaluate", "export", "verify"])
def test_a_missing_folder_raises_an_error(tmp_path, capsys, tiny_data, command):
    rest = {"generate": ["uno"], "export": [tmp_path / "out"]}.get(command, [])
    check_error(capsys, [command, tmp_path / "absent", *rest], "absent")
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_too_long_raises_an_error(saved, exported, capsys):
    for path in (saved, exported):
        check_error(capsys, ["generate", path, "uno", "o" * 10_000], "tokens in input 2", "max_source_tokens")


def test_a_damaged_export_raises_an_error(damaged, capsys):
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
def test_a_damaged_pipeline_raises_an_error(saved, tmp_path, capsys, name, content):
    copied = pathlib.Path(shutil.copytree(saved, tmp_path / "copied"))
    (copied / name).write_bytes(content)
    check_error(capsys, ["generate", copied, "uno"])


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["generate"], ["train"], ["train", "tag", "--dataset", "other"]]
)
def test_invalid_arguments_exit_with_status_2_and_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        commands.main(arguments)
    assert stopped.value.code == 2
    assert "usage: keras-transformer" in capsys.readouterr().err


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
def test_export_signs_and_verify_checks_the_signature(quick, saved, exported, tmp_path, capsys):
    (tmp_path / "key").write_bytes(b"key")
    (tmp_path / "other").write_bytes(b"other")
    out, key = tmp_path / "es-en", ["--signature-key-file", str(tmp_path / "key")]
    assert commands.main(["export", str(saved), str(out), "--formats", "onnx", *key]) == 0
    assert commands.main(["verify", str(out), *key]) == 0
    capsys.readouterr()
    other = ["--signature-key-file", tmp_path / "other"]
    check_error(capsys, ["verify", out, *other], "must be signed with the key")
    check_error(capsys, ["verify", exported, *key], "without a signature")
    check_error(capsys, ["verify", out, "--signature-key-file", tmp_path / "absent"], "absent")


@pytest.mark.slow
def test_export_accepts_a_format_a_name_and_a_version(quick, saved, tmp_path, capsys):
    out = tmp_path / "new"
    arguments = ["export", str(saved), str(out), "--formats", "saved_model", "--name", "m", "--version", "4"]
    assert commands.main(arguments) == 0
    assert lines(capsys) == [f"{out}/saved_model/m/4"]
    assert not (out / "onnx").exists()


def test_precisions_require_the_format_onnx(saved, tmp_path, capsys):
    arguments = ["export", saved, tmp_path / "new", "--formats", "saved_model", "--precisions", "int8"]
    check_error(capsys, arguments, "`--precisions` requires the format onnx")


def test_evaluate_prints_scores_with_their_signatures(exported, tiny_data, capsys):
    assert commands.main(["evaluate", str(exported)]) == 0
    found = lines(capsys)
    assert [line.split()[0] for line in found] == ["bleu", "chrf", "exact"]
    assert "tok:13a" in found[0]
    assert found[2] == "exact match 0.0% of 4 sentences"


def test_evaluate_scores_files_by_the_chosen_metrics(exported, tmp_path, capsys):
    file = tmp_path / "documents.csv"
    file.write_text("id,article,highlights\n1,una casa,a house\n2,un perro,a dog\n")
    arguments = ["evaluate", str(exported), "--data", str(file), "--metrics", "rougeL", "bleu"]
    assert commands.main([*arguments, "--long-texts", "truncate"]) == 0
    found = lines(capsys)
    assert [line.split()[0] for line in found] == ["rougeL", "bleu", "exact"]
    assert "stemmer:porter" in found[0]
    assert found[2].endswith("of 2 sentences")
    check_error(capsys, [*arguments, "--columns", "0", "title"], "`--columns` must be columns of the files")


def test_evaluate_names_the_source_that_is_too_long(exported, tmp_path, capsys):
    file = tmp_path / "pairs.tsv"
    file.write_text("casa\thouse\n" + "perro " * 500 + "\tdog\n")
    message = "--long-texts split, or --long-texts truncate. Received: "
    check_error(capsys, ["evaluate", str(exported), "--data", str(file)], message)
    assert commands.main(["evaluate", str(exported), "--data", str(file)]) == 2
    assert re.search(r"tokens in the source 'perro perro .{,200}'$", capsys.readouterr().err.strip())


def test_the_direction_swaps_source_and_target(tiny_data, sentence_pairs):
    train, _, test = translation_data("phrasebook", "en-es")
    assert train[:2] == [(target, source) for source, target in sentence_pairs[:2]]
    assert len(test) == 4
    assert translation_data("phrasebook")[2] == sentence_pairs[:4]
    assert recipes.Translate(dataset="phrasebook", reverse=True).splits.train == train


@pytest.mark.parametrize("direction", ["de-en", "es_en", "es", ""])
def test_an_unknown_direction_is_rejected(exported, capsys, tmp_path, direction):
    check_error(capsys, ["evaluate", exported, "--direction", direction], "`--direction`")
    train = ["train", "translate", "--dataset", "phrasebook", "--direction", direction]
    check_error(capsys, [*train, "--output", tmp_path / "run"], "`--direction`")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", recipes.TASKS.values(), ids=recipes.TASKS)
def test_every_recipe_option_is_a_flag_with_description_and_default(recipe):
    fields = {field.name for field in dataclasses.fields(recipe)}
    assert set(recipe.size_arguments) == set(recipe.model_sizes)
    assert set(recipe.tokenizers) <= set(tokenizers.TRAINERS)
    assert issubclass(recipe, TASKS[recipe.task])
    assert all("help" in flag for flag in flags_of(recipe).values())
    parser = commands.parser()
    options = parser.parse_args(
        ["train", recipe.task, "--data", "a", "b", "--columns", "0", "text", "--from", "f"]
    )
    assert options.data == [pathlib.Path("a"), pathlib.Path("b")]
    assert options.columns == [0, "text"]
    assert options.from_ == "f"
    assert options.task is TASKS[recipe.task]
    with pytest.raises(SystemExit):
        parser.parse_args(["train", recipe.task, "--precision", "float64"])
    for name in fields:
        assert not hasattr(options, name) or name in ("data", "columns", "from_")


@pytest.mark.slow
def test_train_writes_a_pipeline_a_report_and_its_command(tiny_data, tmp_path, capsys):
    out = tmp_path / "a" / "run"
    arguments = [
        "train",
        "translate",
        "--dataset",
        "phrasebook",
        "--minutes",
        "0.01",
        "--max-new-tokens",
        "8",
    ]
    arguments += [*SMALL, "--output", str(out)]
    assert commands.main(arguments) == 0
    assert "exact_match" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert {"bleu", "chrf", "exact_match", "intervals"} <= set(report["metrics"])
    assert report["evaluated_on"] == "test"
    assert report["history"]["loss"]
    assert (out / "command.txt").read_text() == f"keras-transformer {shlex.join(arguments)}\n"
    assert isinstance(pipelines.load(out / "pipeline")("uno dos"), str)
    check_error(capsys, [*arguments[:-1], out], "--output", out)


@pytest.mark.parametrize("kind", ["folder", "empty folder", "file"])
def test_train_rejects_an_existing_output_before_training(tmp_path, capsys, monkeypatch, kind):
    out = tmp_path / "run"
    if kind == "file":
        out.write_text("")
    else:
        out.mkdir()
    if kind == "folder":
        (out / "notes.txt").write_text("")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(recipes.Translate, "load_dataset", never)
    train = ["train", "translate", "--dataset", "phrasebook", "--output", out]
    check_error(capsys, train, "--output", out, "--resume continues an interrupted run")
    if kind != "empty folder":
        check_error(capsys, [*train, "--resume"], "`--output` must be new or a run to resume", out)
    assert sorted(tmp_path.rglob("*")) == before


def test_train_rejects_an_output_below_a_file_before_training(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(recipes.Translate, "load_dataset", never)
    arguments = ["train", "translate", "--dataset", "phrasebook", "--output", tmp_path / "file" / "run"]
    check_error(capsys, arguments, "file")


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf"])
def test_train_rejects_invalid_minutes_before_training(tmp_path, capsys, monkeypatch, minutes):
    monkeypatch.setattr(recipes.Translate, "load_dataset", never)
    arguments = ["train", "translate", "--dataset", "phrasebook", "--minutes", minutes]
    check_error(capsys, [*arguments, "--output", tmp_path / "run"], "minutes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_evaluates_the_model_and_prints_how_to_resume(
    tmp_path, sentence_pairs, number, status
):
    out, data = tmp_path / "run", tmp_path / "pairs.tsv"
    data.write_text("".join(f"{source}\t{target}\n" for source, target in sentence_pairs), encoding="utf-8")
    arguments = ["--data", str(data), *SMALL, "--max-new-tokens", "4", "--output", str(out)]
    arguments += ["--epochs", "100000", "--patience", "100000"]
    program = [sys.executable, "-u", "-m", "keras_transformer_cli", "train", "translate", *arguments]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        shown = ""
        while "loss" not in shown:
            shown += process.stdout.read(1)
        process.send_signal(number)
        rest, errors = process.communicate(timeout=240)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    command = f"keras-transformer {shlex.join(['train', 'translate', *arguments])}"
    assert f"Resume with: {command} --resume\n" in rest
    assert {path.name for path in out.iterdir()} >= {"pipeline", "report.json", "training"}
    report = json.loads((out / "report.json").read_text())
    assert report["signal"] == number.name
    assert "chrf" in report["metrics"]
    assert 1 <= len(report["history"]["loss"]) < 100_000
    again = recipes.Translate(data, from_=out).new_pipeline([])
    assert again.tokenizer.sha256 == pipelines.load(out / "pipeline").tokenizer.sha256


def test_quickstart_prints_how_to_serve(monkeypatch, tmp_path, capfd):
    called = []

    def quickstart(*arguments, **_):
        os.write(
            2, b"normalizer.cc(51) LOG(INFO) precompiled_charsmap is empty. use identity normalization.\n"
        )
        os.write(2, b"a line\n")
        called.append(arguments)

    monkeypatch.setattr(recipes, "quickstart", quickstart)
    monkeypatch.setattr(sys, "argv", ["/somewhere/keras-transformer"])
    assert commands.main(["quickstart", "--output", str(tmp_path / "q"), "--epochs", "2"]) == 0
    assert called[0][:2] == (tmp_path / "q", 2)
    printed = capfd.readouterr()
    assert f"{tmp_path}/q/export" in printed.out
    assert "tensorflow/serving" in printed.out
    assert printed.err == "a line\n"


def test_quickstart_rejects_a_folder_with_other_files(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("")
    check_error(capsys, ["quickstart", "--output", tmp_path], "thesis.txt")


def test_unexpected_errors_are_not_swallowed(monkeypatch):
    monkeypatch.setattr(generation, "load", never)
    with pytest.raises(AssertionError, match="must not run"):
        commands.main(["generate", "x", "y"])


def test_an_interruption_before_training_prints_one_line_with_status_130(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "load", interrupted)
    assert commands.main(["generate", "x", "y"]) == 130
    assert capsys.readouterr().err == "keras-transformer: interrupted\n"


def run_light(*arguments, **options):
    """Run the command line in a separate process; return the process and the heavy modules it imported."""
    program = (
        "import sys\nfrom keras_transformer_cli import commands\n"
        "try:\n    status = commands.main(sys.argv[1:])\nexcept SystemExit as stopped:\n    status = stopped.code\n"
        "heavy = {'tensorflow', 'keras', 'jax', 'numpy'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)\nsys.exit(status)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, **options
    )


@pytest.mark.parametrize(
    "flags", [["--help"], ["--version"], ["train", "--help"], ["train", "translate", "--help"]]
)
def test_help_and_version_import_no_library(flags):
    done = run_light(*flags)
    assert done.returncode == 0
    assert done.stderr == "[]\n"
    assert "keras-transformer" in done.stdout


INVALID = {
    "train translate --data absent.tsv": "`--data` must name files that exist",
    "train translate --data pairs.tsv --columns en es": "`--columns` must be columns of the files",
    "train translate --data third.tsv": "`--columns` must name the columns of sources and targets",
    "train translate --data pairs.tsv --test third.tsv --columns 0 1": "third.tsv, line 2: 1 column",
    "train translate --data pairs.tsv --from ./absent": "`--from` must be the folder of a saved pipeline",
    "train translate --data pairs.tsv --revision v1": "`--revision` must be None without `--from`",
    "train translate --data pairs.tsv --tokenizer absent": "`--tokenizer` must be a folder or one of",
    "train translate --data pairs.tsv --layers 0": "`--layers` must be a positive integer",
    "train translate --data pairs.tsv --dropout 1": "`--dropout` must be in [0, 1)",
    "train translate --data pairs.tsv --encoding absent": "`--encoding` must be a Python text encoding",
    "train translate --data pairs.tsv --delimiter ;": "`--delimiter` must be None except for CSV files",
    "train translate --data pairs.tsv --output pairs.tsv": "`--output` must be new",
    "train translate --data pairs.tsv --direction es-en": "`--direction` must be None without `--dataset`",
    "train translate --data pipes.csv": "if it is between columns, pass --delimiter '|'",
    "train language-model --data utf16.txt": "pass --encoding utf-16, or convert it: iconv",
    "train language-model --data pairs.dat": "unless `--format` is set",
    "train tag --data gzip.conll": "rename it to 'gzip.conll.gz'",
    "train answer --data absent.json": "`--data` must name files that exist",
    "train classify --data empty": "`--data` must be a folder with one folder of images",
    "predict absent text": "`folder` must be a saved pipeline or an export",
    "generate absent text": "`path` must be a saved pipeline or an export",
    "generate empty text": "`path` must be a saved pipeline or an export",
    "generate x text --draft absent --sampler speculative": "`--draft` must be a saved pipeline",
    "generate x text --ensemble absent": "`--ensemble` must be a saved pipeline",
    "evaluate absent": "`path` must be a saved pipeline or an export",
    "evaluate absent --direction de-en": "`--direction` must be one of",
    "average absent 1.weights.h5 --output new": "`path` must be a saved pipeline",
    "export absent new": "`path` must be a saved pipeline",
    "export saved pairs.tsv": "`folder` must be new, empty or an export",
    "export saved new --version 0": "`--version` must be a positive integer",
    "export saved new --name a/b": "`--name` must be a plain folder name",
    "export saved 'mi modelo'": "such as mi-modelo, or `--name` must be one. Received: mi modelo",
    "export saved nin\u0303a": "'.', '_' and '-', such as nina, or `--name` must be one",
    "convert published --output 'mi modelo'": "`--output` must end with a plain name, of letters",
    "convert ./absent --output new": "`source` must be the id of a model of the Hugging Face Hub, or a folder",
    "convert a/b/c --output new": "Received: a/b/c, which is neither a folder nor an id",
    "convert empty --output new": "Received: empty, which has no config.json",
    "convert saved --output new": "Received: saved, a saved pipeline, which `keras-transformer export` writes",
    "convert published --output published/new": "`--output` must be outside of published, which is read",
    "convert published --output pairs.tsv": "`folder` must be new, empty or an export",
    "convert published --output new --max-new-tokens 0": "`--max-new-tokens` must be a positive integer",
    "serve export --revision v1": "`--revision` must be None for exports",
    "serve published --revision v1": "`--revision` must be None for a folder",
    "verify absent": "`folder` must be an export",
    "align absent text": "`path` must be a saved pipeline",
    "score absent text text": "`path` must be a saved pipeline",
    "quickstart --epochs 0": "`--epochs` must be a positive integer",
    "quickstart --output pairs.tsv": "`--output` must be new or an earlier quickstart",
}


def test_invalid_options_and_files_are_rejected_before_importing_libraries(tmp_path):
    (tmp_path / "pairs.tsv").write_text("hola\thello\n" * 3)
    (tmp_path / "pairs.dat").write_text("hola\thello\n" * 3)
    (tmp_path / "pipes.csv").write_text("hola|hello\nno, no|no\n")
    (tmp_path / "third.tsv").write_text("hola\thello\tCC\nuno\n")
    (tmp_path / "utf16.txt").write_text("uno\n", encoding="utf-16")
    (tmp_path / "gzip.conll").write_bytes(b"\x1f\x8b and more")
    (tmp_path / "empty").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "config.json").write_text('{"pipeline": "TextToText"}')
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "manifest.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    program = (
        "import shlex, sys\nfrom keras_transformer_cli import commands\n"
        "for line in sys.stdin:\n    print(commands.main(shlex.split(line)), file=sys.stderr)\n"
        "print(sorted({'tensorflow', 'keras', 'jax'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="\n".join(INVALID).replace(" ;", " ';'"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))},
    )
    *printed, libraries = done.stderr.splitlines()
    assert libraries == "[]", done.stderr
    assert printed[1::2] == ["2"] * len(INVALID), done.stderr
    for (line, message), error in zip(INVALID.items(), printed[::2], strict=True):
        assert error.startswith("keras-transformer: error: "), line
        assert message in error, line
    assert sorted(tmp_path.iterdir()) == before


def test_a_complete_run_may_be_resumed_without_its_data_files(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(training, "run", lambda options, given, output: 0)
    assert (
        commands.main(["train", "tag", "--data", "gone", "--resume", "--output", str(tmp_path / "run")]) == 0
    )


def test_warnings_name_options(capsys, tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("Opinión;Etiqueta\nBien;sí\n\n")
    monkeypatch.chdir(tmp_path)
    recipe = ["train", "classify", "--data", "a.csv", "--on-error", "skip", "--output", "run"]
    assert commands.main(recipe) == 2
    skipped, listed, header, _ = capsys.readouterr().err.splitlines()
    assert skipped == "keras-transformer: warning: Skipping 1 malformed line of 3 (33.3 %), the first:"
    assert listed == "a.csv, line 3: an empty line"
    assert header == (
        "keras-transformer: warning: Skipping the first row of a.csv as a header: 'Opinión', 'Etiqueta'; "
        "pass --no-header if it is an example, --header if it is not"
    )


def test_a_closed_standard_output_ends_the_command_quietly():
    program = (
        "import sys\nfrom keras_transformer_cli import commands, generation\n"
        "generation.load = lambda _: lambda texts: texts\n"
        "sys.exit(commands.main(['generate', 'x', *map(str, range(20000))]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 141
    assert b"Error" not in errors
    assert b"Broken" not in errors


def test_closed_streams_are_opened():
    """A file that is opened must not get the number of a closed stream, and what libraries print."""
    program = (
        "import os, sys\nfrom keras_transformer_cli import commands, generation\n"
        "generation.load = lambda _: lambda texts: texts\n"
        "status = commands.main(['generate', 'x', 'a'])\n"
        "sys.exit(status or 10 * (os.open(os.devnull, os.O_RDONLY) < 3))"
    )
    closed = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "", sys.executable, "-c", program], timeout=60)
    assert closed.returncode == 0


def test_long_inputs_show_progress_and_errors_their_line_number(capsys):
    def upper(rows):
        if "bad" in rows:
            raise ValueError("`texts` must be good. Received: bad in texts[1]")
        return [row.upper() for row in rows]

    assert list(output.in_chunks(upper, ["a"] * 2500)) == ["A"] * 2500
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(",  ")[0].split(" lines")[0] for line in errors] == [
        *("1,000 of 2,500", "2,000 of 2,500", "2,500 of 2,500"),
    ]
    assert list(output.in_chunks(upper, ["a"] * 1000)) == ["A"] * 1000
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="Received: bad in line 1002$"):
        list(output.in_chunks(upper, [*["a"] * 1001, "bad"]))


def test_predict_reads_arguments_files_and_standard_input(monkeypatch, tmp_path, capsys, standard_input):
    def answer(question, context):
        return [Span(one[:3], 0, 3, 0.5) for one in context]

    predictor = prediction.Predictor("QuestionAnswering", answer, (2,), text=serving.QuestionAnswering.text)
    monkeypatch.setattr(prediction, "load", lambda _: predictor)
    assert commands.main(["predict", "x", "who\tAda said", "who\tBob"]) == 0
    assert capsys.readouterr().out == "Ada\nBob\n"
    (tmp_path / "in.tsv").write_text("who\tAda said\n", encoding="utf-8-sig")
    arguments = [
        "predict",
        "x",
        "--input",
        tmp_path / "in.tsv",
        "--output",
        tmp_path / "out",
        "--format",
        "jsonl",
    ]
    assert commands.main(list(map(str, arguments))) == 0
    assert json.loads((tmp_path / "out").read_text()) == {
        "input": "who\tAda said",
        "answer": {"text": "Ada", "start": 0, "end": 3, "probability": 0.5, "no_answer_score": None},
    }
    check_error(capsys, arguments, "--output", "exists")
    check_error(capsys, ["predict", "x", "who"], "2 texts, separated by tabs", "'who'")
    (tmp_path / "latin.tsv").write_bytes("qué\tAda".encode("latin-1"))
    latin = ["predict", "x", "--input", tmp_path / "latin.tsv"]
    check_error(capsys, latin, "`--input` must be UTF-8", "convert it: iconv -f CP1252 -t UTF-8", "latin.tsv")
    (tmp_path / "utf16.tsv").write_text("qué\tAda", encoding="utf-16")
    utf16 = ["predict", "x", "--input", tmp_path / "utf16.tsv", "--long-texts", "split"]
    check_error(capsys, utf16, "`--input` must name files in UTF-8", "in UTF-16: convert it: iconv -f UTF-16")
    in_no_folder = ["predict", "x", "who\tAda", "--output", tmp_path / "none" / "out"]
    check_error(capsys, in_no_folder, "`--output` must be in an existing folder")
    for named in ([], ["-"], ["--input", "-"]):
        standard_input("\ufeffwho\tAda\r\nwho\tBob")
        assert commands.main(["predict", "x", *named]) == 0
        assert capsys.readouterr().out == "Ada\nBob\n"


def test_outputs_of_every_task_are_printed_on_one_line():
    tagged = [TaggedWord("Ada", "PER", 0.9, 0, 3), TaggedWord("said", "O", 0.9, 4, 8)]
    masked = [[MaskPrediction("dog", 0.5), MaskPrediction("cat", 0.25)]]
    assert serving.TokenClassification.text(tagged) == "Ada/PER said/O"
    assert serving.FillMask.text(masked * 2) == "dog 0.50 cat 0.25\tdog 0.50 cat 0.25"
    shown = [serving.TextClassification.text(answer) for answer in (3, "a", [0.5, 2], np.float32([1.5]))]
    assert shown == ["3", "a", "0.5 2", "1.5"]
    assert prediction.as_json([tagged[0], np.float32([1.5])])[1] == [1.5]


@pytest.mark.slow
def test_predict_prints_equal_outputs_for_a_pipeline_and_its_export(saved, exported, pipeline, capsys):
    texts = ["uno dos", "la casa azul"]
    for folder in (saved, exported):
        assert commands.main(["predict", str(folder), *texts]) == 0
        assert capsys.readouterr().out.splitlines() == pipeline(texts)


@pytest.mark.slow
def test_messy_files_are_trained_on_and_predicted_by_commands(tmp_path, capsys):
    """The files have a byte order mark, a third column, a blank line, an empty field, quotes with line ends."""
    words = ["uno", "dos", "tres", "cuatro", "cinco"]
    lines = [f"{a} {b}\t{a} {b}!\tTatoeba" for a in words for b in words]
    (tmp_path / "pairs.tsv").write_text("\ufeff" + "\n".join([*lines[:3], "", "uno\t\tx", *lines[3:]]))
    rows = [f'"{a},\n{b}";{"si" if a == "uno" else "no"}' for a in words for b in words]
    (tmp_path / "reviews.csv").write_text("\n".join(["text;label", *rows, ";si"]))
    (tmp_path / "novel.txt").write_text("uno dos tres.\n\ncuatro cinco.\n" * 30)
    small = [*SMALL, "--epochs", "2", "--on-error", "skip", "--validation", "0.2"]
    trained = {
        "translate": ["pairs.tsv", "--columns", "0", "1", "--max-new-tokens", "8"],
        "classify": ["reviews.csv", "--columns", "text", "label"],
        "language-model": ["novel.txt", "--max-length", "32"],
    }
    for task, (name, *options) in trained.items():
        out = tmp_path / task
        arguments = ["train", task, "--data", str(tmp_path / name), *options, *small, "--output", str(out)]
        assert commands.main(arguments) == 0
        pipeline = pipelines.load(out / "pipeline")
        if task == "language-model":  # a sampler draws new noise in each call
            pipeline = pipeline.with_settings("greedy")
        export.onnx(pipeline, tmp_path / f"{task}-export")
        capsys.readouterr()
        texts = ["uno dos", "tres"]
        assert list(serving.load(tmp_path / f"{task}-export")(texts)) == pipeline(texts)


def test_backend_is_set_before_keras_is_imported(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.delitem(sys.modules, "keras")
    training.set_backend(None)
    assert os.environ["KERAS_BACKEND"] == "tensorflow"
    training.set_backend("jax")
    assert os.environ["KERAS_BACKEND"] == "jax"


def test_a_backend_that_differs_from_the_imported_keras_is_rejected(capsys):
    check_error(capsys, ["train", "tag", "--backend", "jax"], "`--backend`", "Received: jax")
